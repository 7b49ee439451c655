"""The attention without its padding, in two matrix products; all at once, or in parts of bounded memory.

Zero padding has no bias behind it, so a padded pixel's value is 0 and its content logit is 0: it needs no row in any
product. In the content softmax all of them together are one column, the sink, whose logit is the logarithm of their
number; in the positional attention their columns are dropped after normalisation. Exact, not an approximation.

Queries do not depend on each other, nor do images, so both can be cut into parts. When gradients are wanted a part's
maps are forgotten and computed again backwards, which costs the small product of queries and keys once more: the maps
are by far the largest thing that training would have to keep.

Shapes: B batch, C channels, h×w map without padding, R = h·w its pixels, Ho×Wo output map, M = Ho·Wo queries, K heads,
d head width, G groups.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tcnn.layers import attention, positions
from tcnn.layers.attention import Weights, at_least_float32
from tcnn.layers.positions import Geometry
from tcnn.layers.products import linear


def attend(
    x: Tensor,
    padded: Tensor,
    geometry: Geometry,
    factors: tuple[Tensor, Tensor],
    gate: Tensor,
    weights: Weights,
    limit: int | None = None,
    placed: Tensor | None = None,
) -> Tensor:
    """The output tokens of a whole map, (B, M, C_out).

    Args:
        x: (B, C_in, h, w). padded: the same after `positions.pad`.
        factors: of `positions.positional_attention` on the padded map, (K, Ho, H) and (K, Wo, W).
        gate: σ(λ/τ), (K,).
        limit: the most elements of attention maps (images × heads × queries × keys) that are held at once; None: all.
        placed: what `place` makes of these factors and this gate, where it has been kept.
    """
    heads = gate.shape[0]
    rows, columns = _inside(factors, x.shape[-2:], geometry)
    sinks = None
    pixels = padded
    if positions.zero_padded(geometry):
        sinks = padded.shape[-2] * padded.shape[-1] - x.shape[-2] * x.shape[-1]
        pixels = x
    # In order once, (B, R, C_in), and not again in each of the products.
    tokens = attention.tokens(pixels).contiguous()
    places = (
        tokens
        if geometry.asks_everywhere and sinks is not None
        else attention.tokens(positions.at_queries(padded, geometry))
    )
    asking = attention.split(places, weights.query, heads)
    keys = attention.split(tokens, weights.key, heads)
    values = tokens if weights.value is None else linear(tokens, weights.value)
    if limit is None:
        placed = _place(rows, columns, gate) if placed is None else placed
        return project(bring(asking, keys, values, placed, gate, sinks), weights)
    images, lines = part_size(limit, x.shape[0], rows.shape[1], heads * columns.shape[1] * tokens.shape[1])
    parts = []
    for few, key, value in zip(asking.split(images), keys.split(images), values.split(images), strict=True):
        cut = zip(few.split(lines * columns.shape[1], dim=2), rows.split(lines, dim=1), strict=True)
        brought = (
            bring(query, key, value, placed, gate, sinks)
            if placed is not None and lines == rows.shape[1]
            else _forgetful(query, key, value, few_rows, columns, gate, sinks)
            for query, few_rows in cut
        )
        parts.append(torch.cat([project(part, weights) for part in brought], dim=1))
    return torch.cat(parts)


def place(size: Sequence[int], geometry: Geometry, factors: tuple[Tensor, Tensor], gate: Tensor) -> Tensor:
    """gate_h · P_h on a map of `size` (h, w) before padding, in the order in which `bring` reads it, (M, K, R)."""
    return _place(*_inside(factors, size, geometry), gate).contiguous()


def part_size(limit: int, images: int, lines: int, line: int) -> tuple[int, int]:
    """How many images, and lines of their output, are one part of at most `limit` elements of `line` per line.

    Whole images while one fits; one line of one image at the least.
    """
    if lines * line <= limit:
        return min(images, max(1, limit // (lines * line))), lines
    return 1, max(1, limit // line)


def bring(query: Tensor, key: Tensor, value: Tensor, placed: Tensor, gate: Tensor, sinks: int | None) -> Tensor:
    """A_h X W_val of every head side by side, (B, M, K, C_in).

    Args:
        query: (B, K, M, d). key: (B, K, R, d). value: (B, R, C_in).
        placed: gate_h · P_h, (M, K, R).
        sinks: the number of keys beside these whose logit and value are 0; None where there can be none.
    """
    content = content_with_sinks(query, key, sinks)
    # Queries outside, heads inside: then what the heads bring together lies as the projection reads it.
    maps = torch.addcmul(placed, (1 - gate)[:, None], content.transpose(1, 2))  # (B, M, K, R)
    return torch.bmm(maps.to(value.dtype).flatten(1, 2), value).unflatten(1, (-1, gate.shape[0]))


def _forgetful(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor, sinks: int | None
) -> Tensor:
    """`bring`, whose maps are computed again for the gradients instead of kept."""

    def whole(query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor) -> Tensor:
        return bring(query, key, value, _place(rows, columns, gate), gate, sinks)

    given = query, key, value, rows, columns, gate
    if not torch.is_grad_enabled():
        return whole(*given)
    brought: Tensor = checkpoint(whole, *given, use_reentrant=False, preserve_rng_state=False)
    return brought


def _inside(factors: tuple[Tensor, Tensor], size: Sequence[int], geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The factors over the pixels that are computed: those of zeros around a map of `size` (h, w) are left out."""
    rows, columns = factors
    if not positions.zero_padded(geometry):
        return rows, columns
    top, left = positions.origin(size, geometry)
    return rows[..., top : top + size[0]], columns[..., left : left + size[1]]


def _place(rows: Tensor, columns: Tensor, gate: Tensor) -> Tensor:
    return (gate[:, None, None] * attention.outer(rows, columns)).transpose(0, 1)


def project(brought: Tensor, weights: Weights) -> Tensor:
    """What the heads brought, (B, M, K, C_in), to the output tokens, (B, M, C_out)."""
    if weights.groups == 1:
        return linear(brought.flatten(2), weights.proj, weights.bias)
    return attention.project(brought.transpose(1, 2), weights.proj, weights.bias, weights.groups)


def content_with_sinks(query: Tensor, key: Tensor, sinks: int | None) -> Tensor:
    """softmax_k(Q Kᵀ/√d) over the keys given and `sinks` more whose logit is 0; only the former are returned.

    (B, K, M, d) and (B, K, R, d) to (B, K, M, R), at least float32; rows sum to less than 1 if there are sinks.
    """
    logits = at_least_float32((query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2))
    if sinks is None:
        return torch.softmax(logits, dim=-1)
    sink = logits.new_full((1,), sinks).log().expand(*logits.shape[:-1], 1)  # of no sinks at all: −∞, which is nothing
    return torch.softmax(torch.cat((logits, sink), dim=-1), dim=-1)[..., :-1]
