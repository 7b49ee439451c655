"""What every layer that attends has: a place in a convolution's stead, matrices, and heads that know where to look."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.layers import positions
from tcnn.layers.attention import Weights, at_least_float32
from tcnn.layers.memo import Memo
from tcnn.layers.positions import Geometry
from tcnn.layers.scopes import Scope

SOFTPLUS_BETA = 5


class AttentionLayer(nn.Module):
    """The parameters of the attention by their names, what follows from them, and the geometry of the convolution.

    Shapes: K heads, d head width, C channels, G groups, H×W padded map, Ho×Wo output map. ``gating_param``,
    ``locality_raw``, ``attention_centers`` and ``temperature`` are None where all heads are content heads.
    """

    geometry: Geometry
    scope: Scope
    in_channels: int
    out_channels: int
    groups: int
    heads: int
    content_heads: int = 0
    """How many of the heads, the last, have no positional part: a gate of exactly 0, and no parameters for it."""
    head_dim: int
    query: nn.Parameter
    key: nn.Parameter
    value: nn.Parameter | None
    proj: nn.Parameter
    bias: nn.Parameter | None
    gating_param: nn.Parameter
    locality_raw: nn.Parameter
    attention_centers: nn.Parameter
    temperature: Tensor
    memo: Memo
    """What `compute` keeps between two calls."""

    @property
    def kernel_size(self) -> positions.Pair:
        """(kh, kw), as `nn.Conv2d` has it: DaViT's forward pass reads it from the layer that was replaced."""
        return self.geometry.kernel_size

    @property
    def stride(self) -> positions.Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.stride

    @property
    def dilation(self) -> positions.Pair:
        """(rows, columns), as `nn.Conv2d` has it."""
        return self.geometry.dilation

    @property
    def weights(self) -> Weights:
        """The matrices as they are trained."""
        return Weights(self.query, self.key, self.value, self.proj, self.bias, self.groups)

    @property
    def locality_strength(self) -> Tensor:
        """α > 0, (K,), in 1/pixel² at τ = 1, at least float32: (1/β)·log(1 + exp(β·raw)), β = 5."""
        return F.softplus(at_least_float32(self.locality_raw), beta=SOFTPLUS_BETA)

    @property
    def gate(self) -> Tensor:
        """σ(λ/τ), (K,), at least float32: 1 looks at positions only, 0 at content only."""
        if self.content_heads == self.heads:
            return at_least_float32(self.query.new_zeros(self.heads))
        gate = torch.sigmoid(at_least_float32(self.gating_param) / at_least_float32(self.temperature))
        return F.pad(gate, (0, self.content_heads)) if self.content_heads else gate

    @property
    def strength(self) -> Tensor:
        """α/τ, (K,), in 1/pixel², at least float32: how fast positional attention falls off around its centre."""
        return self.locality_strength / at_least_float32(self.temperature)

    def positional_factors(self, size: positions.Pair) -> tuple[Tensor, Tensor]:
        """Rows (K, Ho, H) and columns (K, Wo, W) of the positional attention on a padded map of `size` (H, W).

        Zeros for content heads.
        """
        if self.content_heads == self.heads:
            counts = positions.output_size(size, self.geometry)
            rows, columns = (self.gate.new_zeros(self.heads, m, n) for m, n in zip(counts, size, strict=True))
            return rows, columns
        centres = at_least_float32(self.attention_centers)
        rows, columns = positions.positional_attention(self.strength, centres, size, self.geometry)
        if not self.content_heads:
            return rows, columns
        beside = (0, 0, 0, 0, 0, self.content_heads)
        return F.pad(rows, beside), F.pad(columns, beside)

    def train(self, mode: bool = True) -> Self:
        """As every module's; what was kept for inference is dropped."""
        self.memo.clear()
        return super().train(mode)
