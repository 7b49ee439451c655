"""ConViT's attention (timm's `convit_*`) computed without its maps: same weights, outputs and gradients, in less time.

Positional logits v·r_δ with r_δ = (δ_x, δ_y, ‖δ‖²) are a sum of one term in δ_x and one in δ_y (ConViT, Eq. 6–8), so
the softmax over an H×W grid is the outer product of one over a row and one over a column, the same for every image.
What remains of N×N maps is content attention, for which PyTorch has kernels. The two are gated after the values are
summed, not before: (1 − σ(λ)) A_content V + σ(λ) A_position V. Both have rows that sum to one, as has what is gated.

Shapes: B images, K heads, d head width, C = K·d, H×W patches, N = H·W.
"""

from math import isqrt
from typing import Self

import torch
from timm.models import register_notrace_module
from timm.models.convit import GPSA, ConVit
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Pair
from tcnn.layers.terms.products import linear


@register_notrace_module  # as timm's own
class ConViTAttention(GPSA):  # type: ignore[misc]
    """timm's `GPSA` with another forward pass: parameters, their names and `get_attention` are timm's.

    Unlike timm's it takes grids that are no squares. With dropout of attention weights it computes as timm does.
    """

    grid: Pair | None = None
    """Rows and columns of patches; a square where None, or where there are other tokens than these."""
    rel_indices: Tensor

    @classmethod
    def of(cls, layer: GPSA, grid: Pair | None = None) -> Self:
        """This layer in the place of timm's, with its very parameters, hooks and state."""
        fast = cls(layer.dim, layer.num_heads, device="meta")
        fast.__dict__.update(layer.__dict__)
        fast.grid = grid
        return fast

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, N, C)."""
        if self.training and self.attn_drop.p:
            return super().forward(x)
        query, key = self.qk(x).unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        value = self.v(x).unflatten(2, (self.num_heads, -1)).transpose(1, 2)  # (B, K, N, d)
        gate = torch.sigmoid(self.gating_param).view(-1, 1, 1)
        content = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        y = torch.lerp(content, self._positional(value), gate.to(content.dtype))
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def positional_factors(self, size: Pair) -> tuple[Tensor, Tensor]:
        """Positional attention along columns (K, H, H) and rows (K, W, W), whose products are the map over patches."""
        # The bias is the same for all keys, so that softmax drops it.
        right, down, square = at_least_float32(self.pos_proj.weight).unbind(1)
        return axis_attention(down, square, size[0]), axis_attention(right, square, size[1])

    def _positional(self, value: Tensor) -> Tensor:
        """The values (B, K, N, d) averaged by positional attention."""
        height, width = self.size(value.shape[2])
        columns, rows = (factor.to(value.dtype) for factor in self.positional_factors((height, width)))
        along = rows[:, None] @ value.unflatten(2, (height, width))  # (B, K, H, W, d)
        return (columns @ along.flatten(3)).unflatten(3, (width, -1)).flatten(2, 3)

    def size(self, tokens: int) -> Pair:
        """Rows and columns of so many patches."""
        if self.grid is not None and self.grid[0] * self.grid[1] == tokens:
            return self.grid
        return isqrt(tokens), isqrt(tokens)

    def get_attention(self, x: Tensor) -> Tensor:
        """The gated maps (B, K, N, N), as timm computes them."""
        if self.rel_indices.shape[1] != x.shape[1]:
            self.rel_indices = self.get_rel_indices(x.shape[1])
        return super().get_attention(x)

    def get_rel_indices(self, num_patches: int) -> Tensor:
        """r_δ = (δ_x, δ_y, ‖δ‖²) of all pairs, (1, N, N, 3): timm's, for any grid."""
        height, width = self.size(num_patches)
        like = self.qk.weight
        places = torch.cartesian_prod(
            torch.arange(height, device=like.device), torch.arange(width, device=like.device)
        ).to(like.dtype)
        offset = places[None] - places[:, None]
        return torch.cat((offset.flip(-1), offset.square().sum(-1, keepdim=True)), dim=-1)[None]


def axis_attention(slope: Tensor, square: Tensor, size: int) -> Tensor:
    """Softmax along one axis of slope·δ + square·δ², (K,) each, for every pair of places: (K, size, size)."""
    place = torch.arange(size, device=slope.device, dtype=slope.dtype)
    offset = place[None] - place[:, None]
    return torch.softmax(slope[:, None, None] * offset + square[:, None, None] * offset.square(), dim=-1)


@register_notrace_module
class Linear(nn.Linear):
    """`nn.Linear` whose products are oneDNN's where the BLAS leaves half of the processor idle (`terms.products`)."""

    def forward(self, input: Tensor) -> Tensor:
        """(…, in) to (…, out)."""
        return linear(input, self.weight, self.bias)


def use_fast_attention(model: nn.Module) -> int:
    """Let timm's `convit_*` compute the attention of its GPSA layers as `ConViTAttention` does, in place.

    Its linear layers become `Linear`. Checkpoints, optimisers and hooks do not notice. Returns the number of attention
    layers; 0 for any other model.
    """
    if not isinstance(model, ConVit):
        return 0
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear
    layers = [block for block in model.blocks if type(block.attn) is GPSA]
    for block in layers:
        block.attn = ConViTAttention.of(block.attn, tuple(model.patch_embed.grid_size))
    return len(layers)
