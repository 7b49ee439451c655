"""What the heads look at and what they make of it: the arithmetic of Eq. 4 (Transformed CNNs), as pure functions.

Shapes: B batch, C channels, H×W padded map, Ho×Wo output map, M = Ho·Wo queries, N = H·W keys, K heads, d head width,
G groups.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.products import Matrix, Packed, linear


class Weights(NamedTuple):
    """The matrices of a layer; `GPSA2d` says what they are."""

    query: Matrix
    """(K·d, C_in)."""
    key: Matrix
    """(K·d, C_in)."""
    value: Tensor | None
    """(C_in, C_in); None where it is folded into `proj`."""
    proj: Matrix
    """(C_out, K·C_in/G)."""
    bias: Tensor | None
    """(C_out,)."""
    groups: int

    @property
    def plain_proj(self) -> Tensor:
        """`proj`, where it has not been packed."""
        if isinstance(self.proj, Packed):
            raise TypeError("a packed matrix cannot be read back")
        return self.proj


def fold_value(weights: Weights) -> Weights:
    """W_val multiplied into W_out, so that it costs nothing any more: W_out^h W_val.

    Where the channels are grouped the product would not be: there W_val stays, unless it is the identity.
    """
    value, proj = weights.value, weights.plain_proj
    if value is None:
        return weights
    if weights.groups > 1:
        identity = torch.eye(value.shape[0], device=value.device, dtype=value.dtype)
        return weights._replace(value=None) if torch.equal(value, identity) else weights
    with torch.autocast(value.device.type, enabled=False):
        heads = at_least_float32(proj).unflatten(1, (-1, value.shape[0]))  # (C_out, K, C_in)
        folded = (heads @ at_least_float32(value)).flatten(1).to(value.dtype)
    return weights._replace(value=None, proj=folded)


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


def at_least_float32(x: Tensor) -> Tensor:
    """Softmaxes, gates and distances are never taken in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
