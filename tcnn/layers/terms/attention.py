"""What the heads look at and what they make of it: the arithmetic of Eq. 4 (Transformed CNNs), as pure functions.

Shapes: B batch, C channels, H×W padded map, Ho×Wo output map, M = Ho·Wo queries, N = H·W keys, K heads, d head width,
G groups.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms.parameters import at_least_float32
from tcnn.layers.terms.products import Matrix, Packed, linear


class AttentionMaps(NamedTuple):
    """What every head looks at, before the gate mixes the two parts."""

    content: Tensor
    """softmax_k(Q Kᵀ/√d), (B, K, M, N)."""
    positional: Tensor
    """softmax_k(−(α/τ)‖δ − Δ‖²), (K, M, N)."""
    gate: Tensor
    """σ(λ/τ), (K,)."""

    @property
    def total(self) -> Tensor:
        """A = (1 − gate)·content + gate·positional, (B, K, M, N); every row sums to 1."""
        gate = self.gate[:, None, None]
        return (1 - gate) * self.content + gate * self.positional


def tokens(pixels: Tensor) -> Tensor:
    """A map as a row of pixels: (B, C, H, W) to (B, H·W, C), a view."""
    return pixels.flatten(2).transpose(1, 2)


def split(tokens: Tensor, weight: Matrix, heads: int) -> Tensor:
    """Pixels as each head sees them, queries or keys: (B, N, C_in) by W (K·d, C_in) to (B, K, N, d)."""
    seen = linear(tokens, weight)
    return seen.unflatten(2, (heads, weight.shape[0] // heads)).transpose(1, 2)


def content(query: Tensor, key: Tensor) -> Tensor:
    """softmax_k(Q Kᵀ/√d), at least float32: (B, K, M, d) and (B, K, N, d) to (B, K, M, N)."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return torch.softmax(at_least_float32(logits), dim=-1)


def outer(rows: Tensor, columns: Tensor) -> Tensor:
    """The two factors of `positions.positional_attention` as one map: (K, Ho, H) and (K, Wo, W) to (K, M, N)."""
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]  # (K, Ho, Wo, H, W)
    return product.flatten(3).flatten(1, 2)


def project(heads: Tensor, proj: Matrix, bias: Tensor | None, groups: int) -> Tensor:
    """Σ_h (A_h X W_val) W_out^h + b, each group of channels by itself.

    Args:
        heads: A_h X W_val, (B, K, M, C_in).
        proj: W_out, (C_out, K·C_in/G). bias: (C_out,).

    Returns: (B, M, C_out).
    """
    if groups == 1 or isinstance(proj, Packed):
        return linear(heads.transpose(1, 2).flatten(2), proj, bias)
    grouped = heads.unflatten(3, (groups, -1))
    weight = proj.unflatten(0, (groups, -1)).unflatten(2, (heads.shape[1], -1))
    y = torch.einsum("bkmgc,gokc->bmgo", grouped, weight).flatten(2)
    return y if bias is None else y + bias
