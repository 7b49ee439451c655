"""Content attention, attention maps and output projection: Eq. 4 of Transformed CNNs as pure functions.

Shapes: B batch, C channels, H×W padded map, Ho×Wo output map, M = Ho·Wo queries, N = H·W keys, K heads, d head width,
G groups.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Factors
from tcnn.layers.terms.products import Matrix, Packed, linear


class AttentionMaps(NamedTuple):
    """Attention maps of every head: content and positional attention before the gate mixes them."""

    content: Tensor
    """Content attention softmax_k(Q Kᵀ/√d), (B, K, M, N)."""
    positional: Tensor
    """Positional attention, (K, M, N); (B, K, M, N) where it depends on the image."""
    gate: Tensor
    """Gate σ(λ/τ), (K,)."""

    @property
    def total(self) -> Tensor:
        """Attention weights A = (1 − gate)·content + gate·positional, (B, K, M, N); every row sums to 1."""
        return mixed(*self)


def mixed(content: Tensor, positional: Tensor, gate: Tensor) -> Tensor:
    """`AttentionMaps.total` of its fields."""
    gate = gate[:, None, None]
    return (1 - gate) * content + gate * positional


def to_tokens(pixels: Tensor) -> Tensor:
    """Flatten a feature map into tokens: (B, C, H, W) to (B, H·W, C), a view."""
    return pixels.flatten(2).transpose(1, 2)


def split_heads(tokens: Tensor, weight: Matrix, heads: int) -> Tensor:
    """Project tokens and split them into heads (queries or keys): (B, N, C_in) by W (K·d, C_in) to (B, K, N, d)."""
    seen = linear(tokens, weight)
    return seen.unflatten(2, (heads, weight.shape[0] // heads)).transpose(1, 2)


def content(query: Tensor, key: Tensor) -> Tensor:
    """Content attention weights softmax_k(Q Kᵀ/√d), at least float32: (B, K, M, d) and (B, K, N, d) to (B, K, M, N)."""
    logits = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    return torch.softmax(at_least_float32(logits), dim=-1)


def outer_product(rows: Tensor, columns: Tensor) -> Tensor:
    """Positional attention map from its two factors (outer product): (K, Ho, H) and (K, Wo, W) to (K, M, N)."""
    product = rows[:, :, None, :, None] * columns[:, None, :, None, :]  # (K, Ho, Wo, H, W)
    return product.flatten(3).flatten(1, 2)


def positional_map(factors: Factors) -> Tensor:
    """Positional attention map (K, M, N) from its factors, or (B, K, M, N) where it depends on the image."""
    rows, columns = factors
    return rows.flatten(-2).flatten(-3, -2) if columns is None else outer_product(rows, columns)


def project(heads: Tensor, proj: Matrix, bias: Tensor | None, groups: int) -> Tensor:
    """Output projection Σ_h (A_h X W_val) W_out^h + b, for each group of channels separately.

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
    return y if bias is None else y + bias.to(y.dtype)  # under autocast the bias alone is in float32
