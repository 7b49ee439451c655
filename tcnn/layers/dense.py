"""The attention of a map that fits into memory: padding costs nothing, and two matrix products do the rest.

Zero padding has no bias behind it, so a padded pixel's value is 0 and its content logit is 0: it needs no row in any
product. In the content softmax all of them together are one column, the sink, whose logit is the logarithm of their
number; in the positional attention their columns are dropped after normalisation. Exact, not an approximation.

Shapes: B batch, C channels, h×w map without padding, R = h·w its pixels, M queries, K heads, G groups.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers import attention, positions
from tcnn.layers.attention import at_least_float32
from tcnn.layers.positions import Geometry


def attend(
    x: Tensor,
    geometry: Geometry,
    factors: tuple[Tensor, Tensor],
    gate: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj: Tensor,
    bias: Tensor | None,
    groups: int,
) -> Tensor:
    """The output tokens of a whole map, (B, M, C_out); the parameters are `GPSA2d`'s.

    Args:
        x: (B, C_in, h, w), not padded.
        factors: of `positions.positional_attention` on the padded map, (K, Ho, H) and (K, Wo, W).
        gate: σ(λ/τ), (K,).
    """
    heads = gate.shape[0]
    padded = positions.pad(x, geometry)
    rows, columns = factors
    sinks = 0
    if geometry.padding_mode == "zeros":
        top, left = positions.origin(x.shape[-2:], geometry)
        sinks = padded.shape[-2] * padded.shape[-1] - x.shape[-2] * x.shape[-1]
        rows, columns = rows[..., top : top + x.shape[-2]], columns[..., left : left + x.shape[-1]]
        pixels = x
    else:
        pixels = padded
    asking = attention.split(positions.at_queries(padded, geometry), query, heads)
    content = content_with_sinks(asking, attention.split(pixels, key, heads), sinks)
    # Queries outside, heads inside: then what the heads bring together lies as the projection reads it.
    positional = (gate[:, None, None] * attention.outer(rows, columns)).transpose(0, 1)  # (M, K, R)
    maps = torch.addcmul(positional, (1 - gate)[:, None], content.transpose(1, 2))  # (B, M, K, R)
    tokens = F.linear(pixels.flatten(2).transpose(1, 2), value)  # (B, R, C_in)
    brought = torch.bmm(maps.to(tokens.dtype).flatten(1, 2), tokens)  # (B, M·K, C_in)
    if groups == 1:
        return F.linear(brought.unflatten(1, (-1, heads)).flatten(2), proj, bias)
    return attention.project(brought.unflatten(1, (-1, heads)).transpose(1, 2), proj, bias, groups)


def content_with_sinks(query: Tensor, key: Tensor, sinks: int) -> Tensor:
    """softmax_k(Q Kᵀ/√d) over the keys given and `sinks` more whose logit is 0; only the former are returned.

    (B, K, M, d) and (B, K, R, d) to (B, K, M, R), at least float32; rows sum to less than 1 if there are sinks.
    """
    logits = at_least_float32((query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2))
    if not sinks:
        return torch.softmax(logits, dim=-1)
    sink = logits.new_full((1,), math.log(sinks)).expand(*logits.shape[:-1], 1)
    return torch.softmax(torch.cat((logits, sink), dim=-1), dim=-1)[..., :-1]
