"""Scoped backend: content attention in windows or on a pooled grid, in memory linear in the pixels.

A head's positional attention is an outer product of one map over rows and one over columns, so it is applied to the
values axis by axis, and no table of queries times keys is built, forward or backward; kinds of it that are no such
product (`terms.kinds`) are applied as maps. Exact, not an approximation: it applies the maps that `GPSA2d.attention`
returns.

Shapes: B batch, C channels, H×W padded map, N = H·W, Ho×Wo output map, M = Ho·Wo, K heads, d head width, G groups,
n windows of P keys and Q queries each (a pooled grid is one window of R·R keys and all queries).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import attention, positions, scopes
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.parameters import require_matrix
from tcnn.layers.terms.positions import Factors, Geometry
from tcnn.layers.terms.products import Matrix, batched, linear
from tcnn.layers.terms.scopes import Scope


class Windows(NamedTuple):
    """Queries, keys and values of content attention, sorted into windows."""

    query: Tensor
    """(B·n, Q, K·d)."""
    key: Tensor
    """(B·n, P, K·d)."""
    value: Tensor
    """(B·n, P, C_in)."""
    mask: Tensor
    """Additive attention mask, (n, P): −∞ for a key that fills up the last windows or is excluded, else 0."""
    query_index: Tensor | None
    """Index of each query among the n·Q, (M,); None if they are in order."""


def attend(inputs: AttentionInputs) -> Tensor:
    """Output tokens of the attention, (B, M, C_out); the scope is `window:W`, `pooled:R`, or `global` as one window."""
    x, geometry, scope, factors, p = inputs.x, inputs.geometry, inputs.scope, inputs.factors, inputs.parameters
    gate, padded = p.gate, inputs.padded
    pixels = padded.permute(0, 2, 3, 1)  # (B, H, W, C_in)
    values = _apply_value(pixels, p.value)
    query_pixels = positions.take_query_pixels(padded, geometry).permute(0, 2, 3, 1)
    query = linear(query_pixels, require_matrix(p.query))  # (B, Ho, Wo, K·d)
    query = query * p.head_dim**-0.5
    if scope.kind == "pooled":
        pooled = pixels if scope.padding else x.permute(0, 2, 3, 1)
        windows = _pools(scope, query, pooled, require_matrix(p.key), p.value)
    else:
        windows = _windows(scope, geometry, x.shape[-2:], query, linear(pixels, require_matrix(p.key)), values)
    content = _content(windows, 1 - gate, padded.shape[0])  # (B, M, K, C_in)
    positional = _apply_gated(factors, gate, values)
    heads = content + positional.flatten(1, 2)  # memory order of the first of the two: as the projection reads it
    return attention.project(heads.transpose(1, 2), p.proj, p.bias, p.groups)


def _apply_gated(factors: Factors, gate: Tensor, values: Tensor) -> Tensor:
    """Apply positional attention, times its gate, to values (B, H, W, C): (B, Ho, Wo, K, C).

    Where it has no factors it takes the memory of its maps, which are quadratic in the pixels.
    """
    rows, columns = factors
    if columns is not None:
        return apply_positions(gate[:, None, None] * rows, columns, values)
    maps = (gate[:, None, None] * attention.positional_map(factors)).flatten(-3, -2)  # ([B,] K·M, N)
    applied = maps.to(values.dtype) @ values.flatten(1, 2)
    return applied.unflatten(1, (gate.shape[0], *rows.shape[-4:-2])).permute(0, 2, 3, 1, 4)


def apply_positions(rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Apply positional attention to values: (K, Ho, H), (K, Wo, W) and (B, H, W, C) to (B, Ho, Wo, K, C).

    Both products are matrix products that contract one axis of the map with everything else on the other side, images
    and heads included: so their gradients, too, sum over it at once and never hold one small map for each row.
    """
    batch, height, _, channels = values.shape
    heads, outputs = columns.shape[:2]
    columns, rows = columns.to(values.dtype), rows.to(values.dtype)
    across = columns.flatten(0, 1) @ values.permute(2, 1, 0, 3).flatten(1)  # (K·Wo, H·B·C)
    across = across.view(heads, outputs, height, batch * channels).transpose(1, 2).flatten(2)  # (K, H, Wo·B·C)
    return batched(rows, across).view(heads, rows.shape[1], outputs, batch, channels).permute(3, 1, 2, 0, 4)


def _content(windows: Windows, share: Tensor, batch: int) -> Tensor:
    """Content attention applied to the values, times share = 1 − gate: share_h · softmax(QKᵀ/√d) V, (B, M, K, C_in)."""
    heads = share.shape[0]
    query, key = (  # (B·n·K, Q, d) and (B·n·K, P, d)
        tokens.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1) for tokens in (windows.query, windows.key)
    )
    # Not −∞ itself, of which a window that is masked altogether would make NaN.
    mask = windows.mask.to(query.dtype).clamp(min=torch.finfo(query.dtype).min / 2)
    mask = mask[:, None, None].expand(-1, heads, -1, -1)  # (n, K, 1, P)
    mask = mask.expand(batch, *mask.shape).flatten(0, 2)
    logits = torch.baddbmm(mask, query, key.transpose(1, 2)).unflatten(0, (-1, heads))
    # Queries outside, heads inside: the mixed values then have the memory order that the projection reads.
    maps = torch.softmax(at_least_float32(logits).transpose(1, 2), dim=-1) * share[:, None]  # (B·n, Q, K, P)
    content = batched(maps.to(windows.value.dtype).flatten(1, 2), windows.value)  # (B·n, Q·K, C_in)
    slots = windows.mask.shape[0] * windows.query.shape[1]
    content = content.view(batch, slots, heads, windows.value.shape[-1])
    return content if windows.query_index is None else content.index_select(1, windows.query_index)


def _windows(
    scope: Scope, geometry: Geometry, inner: Sequence[int], query: Tensor, key: Tensor, values: Tensor
) -> Windows:
    """Sort queries (B, Ho, Wo, K·d), keys (B, H, W, K·d) and values (B, H, W, C_in) into windows.

    `inner` is the size (h, w) of the unpadded map.
    """
    size, counts = values.shape[1:3], query.shape[1:3]
    down, across = (
        scopes.axis_windows(
            scope.window(size[axis], inner[axis]), scope.windows(size[axis], inner[axis]), size[axis],
            geometry.centre[axis], geometry.stride[axis], counts[axis], values.device,
        )
        for axis in (0, 1)
    )  # fmt: skip
    keys = _combine(down.keys, across.keys, size[1])
    valid = (down.valid[:, None, :, None] & across.valid[None, :, None]).flatten(2).flatten(0, 1)
    if not scope.padding:
        own = scopes.own_pixels(size, inner, positions.origin(inner, geometry), values.device)
        valid = valid & own.flatten()[keys]
        values = values * own[..., None].to(values.dtype)  # a window of padding alone brings nothing together
    mask = torch.zeros(valid.shape, device=values.device).masked_fill(~valid, -torch.inf)

    def sort(tokens: Tensor, numbers: Tensor) -> Tensor:
        sorted_ = tokens.flatten(1, 2).index_select(1, numbers.flatten())
        return sorted_.view(-1, numbers.shape[1], tokens.shape[3])

    # `query_index` is the row (or column) of a query among the sorted ones; windows are the outer index.
    slots = down.queries.shape[1], across.queries.shape[1]
    row, column = down.query_index[:, None], across.query_index
    window = row // slots[0] * across.queries.shape[0] + column // slots[1]
    index = (window * slots[0] + row % slots[0]) * slots[1] + column % slots[1]
    return Windows(
        sort(query, _combine(down.queries, across.queries, counts[1])),
        sort(key, keys),
        sort(values, keys),
        mask,
        index.flatten(),
    )


def _combine(down: Tensor, across: Tensor, width: int) -> Tensor:
    """Row-major indices on a map of this width, (n₁·n₂, a·b), from index tables of its axes, (n₁, a) and (n₂, b)."""
    return (down[:, None, :, None] * width + across[None, :, None]).flatten(2).flatten(0, 1)


def _pools(scope: Scope, query: Tensor, pixels: Tensor, key: Matrix, value: Tensor | None) -> Windows:
    """The pooled grid as one window: queries (B, Ho, Wo, K·d), keys and values from averages of (B, H, W, C_in)."""
    batch, height, width, channels = pixels.shape
    down, across = (scopes.pooling(scope.pools(n), n, pixels) for n in (height, width))
    # The map in memory order of the first product, (H, B·W·C), then of the second.
    pooled = down @ pixels.transpose(0, 1).flatten(1)
    pooled = across @ pooled.view(down.shape[0] * batch, width, channels)  # (R·B, R, C_in)
    pooled = (
        pooled.view(down.shape[0], batch, across.shape[0], channels).transpose(0, 1).flatten(1, 2)
    )  # (B, R·R, C_in)
    mask = torch.zeros(1, pooled.shape[1], device=pixels.device)
    return Windows(query.flatten(1, 2), linear(pooled, key), _apply_value(pooled, value), mask, None)


def _apply_value(tokens: Tensor, value: Tensor | None) -> Tensor:
    """Apply W_val to tokens: X W_val."""
    return tokens if value is None else linear(tokens, value)
