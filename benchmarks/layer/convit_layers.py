"""GPSA as ConViT and timm compute it, with the heads and the padding of a T-CNN; what `gpsa.py` compares with."""

import torch
from timm.models import convit
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.layers import GPSA2d

KERNEL = 3


class ConViT(nn.Module):
    """GPSA as ConViT states it (d'Ascoli et al. 2021, Eq. 3 and 6–8): v_posᵀ r_δ for every pair of pixels, both
    softmaxes, the gated sum, rows divided by their sums, a value matrix for every head. Heads and padding as in a
    T-CNN: one head per tap, and values as wide as X, without which it could be no convolution (T-CNN, Eq. 5).
    """

    shared = False
    """Whether the heads share one value matrix; that is the T-CNN's own saving (there, below Eq. 6)."""

    def __init__(self, channels: int, head_dim: int, strength: float = 1.0) -> None:
        super().__init__()
        self.heads, self.head_dim = KERNEL**2, head_dim
        self.query = nn.Linear(channels, self.heads * head_dim, bias=False)
        self.key = nn.Linear(channels, self.heads * head_dim, bias=False)
        self.value = nn.Linear(channels, channels * (1 if self.shared else self.heads), bias=False)
        self.proj = nn.Linear(self.heads * channels, channels)
        self.gating_param = nn.Parameter(torch.ones(self.heads))
        self.pos_proj = nn.Linear(3, self.heads)
        self.offsets: Tensor | None = None
        taps = torch.cartesian_prod(torch.arange(KERNEL), torch.arange(KERNEL)) - KERNEL // 2
        with torch.no_grad():  # −α‖δ − Δ‖² = −α(‖δ‖² − 2δ·Δ) + const.
            self.pos_proj.weight.copy_(strength * torch.cat((-torch.ones(self.heads, 1), 2 * taps), dim=1))
            self.pos_proj.bias.zero_()

    def _offsets(self, side: int, device: torch.device) -> Tensor:
        """(‖δ‖², δ_row, δ_column) of every query and key, (M, N, 3)."""
        if self.offsets is None or self.offsets.shape[0] != side**2:
            where = torch.arange(side + 2, device=device, dtype=torch.float32)
            keys = torch.cartesian_prod(where, where)
            inner = where[1:-1]
            delta = keys[None] - torch.cartesian_prod(inner, inner)[:, None]
            self.offsets = torch.cat((delta.square().sum(-1, keepdim=True), delta), dim=-1)
        return self.offsets

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        padded = F.pad(x, (1, 1, 1, 1)).flatten(2).transpose(1, 2)
        tokens = x.flatten(2).transpose(1, 2)
        q = self.query(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        k = self.key(padded).unflatten(2, (self.heads, -1)).transpose(1, 2)
        content = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(dim=-1)
        position = self.pos_proj(self._offsets(side, x.device).to(x.dtype)).permute(2, 0, 1).softmax(dim=-1)
        gate = torch.sigmoid(self.gating_param).view(1, -1, 1, 1)
        attention = (1 - gate) * content + gate * position
        attention = attention / attention.sum(dim=-1, keepdim=True)
        return self._project(attention, padded).unflatten(2, (side, side))

    def _project(self, attention: Tensor, padded: Tensor) -> Tensor:
        """Maps (B, h, M, N) and pixels (B, N, C) → outputs (B, C, M)."""
        values = self.value(padded).unflatten(2, (1 if self.shared else self.heads, -1)).transpose(1, 2)
        return self.proj((attention @ values).transpose(1, 2).flatten(2)).transpose(1, 2)

    @torch.no_grad()
    def become(self, layer: GPSA2d) -> None:
        """Take a layer's weights."""
        for ours in ("query", "key", "proj"):
            getattr(self, ours).weight.copy_(getattr(layer, ours))
        self.value.weight.copy_(layer.value.repeat(1 if self.shared else self.heads, 1))
        self.proj.bias.copy_(layer.bias)


class SharedConViT(ConViT):
    """The same with one value matrix."""

    shared = True


class TimmConViT(ConViT):
    """The same by timm's own code: positions for every image of the batch, queries for padded pixels, too."""

    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__(channels, head_dim)
        self.theirs = convit.GPSA(self.heads * head_dim, self.heads)
        self.theirs.qk = nn.Linear(channels, 2 * self.heads * head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        side = x.shape[-1]
        padded = F.pad(x, (1, 1, 1, 1)).flatten(2).transpose(1, 2)
        pixels = padded.shape[1]
        if self.theirs.rel_indices.shape[1] != pixels:
            self.theirs.rel_indices = self.theirs.get_rel_indices(pixels)
        maps = self.theirs.get_attention(padded).unflatten(2, (side + 2, side + 2))[:, :, 1:-1, 1:-1].flatten(2, 3)
        return self._project(maps, padded).unflatten(2, (side, side))

    @torch.no_grad()
    def become(self, layer: GPSA2d) -> None:
        """As above; timm's offsets are (column, row, ‖δ‖²)."""
        super().become(layer)
        self.theirs.qk.weight.copy_(torch.cat((layer.query, layer.key)))
        self.theirs.pos_proj.weight.copy_(self.pos_proj.weight[:, [2, 1, 0]])
        self.theirs.pos_proj.bias.copy_(self.pos_proj.bias)
