"""Attention in memory that is linear in the pixels: content in windows or on a pooled grid, positions by two products.

A head's positional map is an outer product of one map over rows and one over columns, so it is applied to the values
axis by axis, and no table of queries times keys is built, forward or backward. Exact, not an approximation: the map of
`GPSA2d.attention` is the one that is applied.

Shapes: B batch, C channels, H×W padded map, N = H·W, Ho×Wo output map, M = Ho·Wo, K heads, d head width, G groups,
n windows of P keys and Q queries each (a pooled grid is one window of R·R keys and all queries).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms import attention, positions, scopes
from tcnn.layers.terms.parameters import Parameters, at_least_float32, needed_matrix
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.products import Matrix, linear
from tcnn.layers.terms.scopes import Scope


class Windows(NamedTuple):
    """What meets in the content attention."""

    query: Tensor
    """(B·n, Q, K·d)."""
    key: Tensor
    """(B·n, P, K·d)."""
    value: Tensor
    """(B·n, P, C_in)."""
    hidden: Tensor
    """Added to the logits, (n, P): −∞ for a key that only fills up the last windows or may not be seen, else 0."""
    home: Tensor | None
    """Where each query stands among the n·Q, (M,); None if they stand in order."""


def attend(
    x: Tensor,
    padded: Tensor,
    geometry: Geometry,
    scope: Scope,
    factors: tuple[Tensor, Tensor],
    parameters: Parameters,
) -> Tensor:
    """The output tokens of a map, (B, M, C_out).

    Args:
        x: (B, C_in, h, w). padded: the same after `positions.pad`, (B, C_in, H, W).
        scope: `window:W`, `pooled:R`, or `global` as one window.
        factors: of `positions.positional_attention`, (K, Ho, H) and (K, Wo, W).
    """
    p, gate = parameters, parameters.gate
    pixels = padded.permute(0, 2, 3, 1)  # (B, H, W, C_in)
    values = _through(pixels, p.value)
    asking = linear(
        positions.at_queries(padded, geometry).permute(0, 2, 3, 1), needed_matrix(p.query)
    )  # (B, Ho, Wo, K·d)
    asking = asking * p.head_dim**-0.5
    if scope.kind == "pooled":
        pooled = pixels if scope.padding else x.permute(0, 2, 3, 1)
        windows = _pools(scope, asking, pooled, needed_matrix(p.key), p.value)
    else:
        windows = _windows(scope, geometry, x.shape[-2:], asking, linear(pixels, needed_matrix(p.key)), values)
    seen = _content(windows, 1 - gate, padded.shape[0])  # (B, M, K, C_in)
    rows, columns = factors
    placed = apply_positions(gate[:, None, None] * rows, columns, values)
    heads = seen + placed.flatten(1, 2)  # the sum lies in memory as the first of the two: as the projection reads it
    return attention.project(heads.transpose(1, 2), p.proj, p.bias, p.groups)


def apply_positions(rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """What the positional attention brings together: (K, Ho, H), (K, Wo, W) and (B, H, W, C) to (B, Ho, Wo, K, C).

    Both products are matrix products that contract one axis of the map with everything else on the other side, images
    and heads included: so their gradients, too, sum over it at once and never hold one small map for each row.
    """
    batch, height, _, channels = values.shape
    heads, outputs = columns.shape[:2]
    columns, rows = columns.to(values.dtype), rows.to(values.dtype)
    across = columns.flatten(0, 1) @ values.permute(2, 1, 0, 3).flatten(1)  # (K·Wo, H·B·C)
    across = across.view(heads, outputs, height, batch * channels).transpose(1, 2).flatten(2)  # (K, H, Wo·B·C)
    return torch.bmm(rows, across).view(heads, rows.shape[1], outputs, batch, channels).permute(3, 1, 2, 0, 4)


def _content(windows: Windows, share: Tensor, batch: int) -> Tensor:
    """share_h · softmax(QKᵀ/√d) V, (B, M, K, C_in)."""
    heads = share.shape[0]
    query, key = (  # (B·n·K, Q, d) and (B·n·K, P, d)
        tokens.unflatten(2, (heads, -1)).transpose(1, 2).flatten(0, 1) for tokens in (windows.query, windows.key)
    )
    # Not −∞ itself, of which a window that is hidden altogether would make no number.
    hidden = windows.hidden.to(query.dtype).clamp(min=torch.finfo(query.dtype).min / 2)
    hidden = hidden[:, None, None].expand(-1, heads, -1, -1)  # (n, K, 1, P)
    hidden = hidden.expand(batch, *hidden.shape).flatten(0, 2)
    logits = torch.baddbmm(hidden, query, key.transpose(1, 2)).unflatten(0, (-1, heads))
    # Queries outside, heads inside: then what the heads bring together lies as the projection reads it.
    maps = torch.softmax(at_least_float32(logits).transpose(1, 2), dim=-1) * share[:, None]  # (B·n, Q, K, P)
    seen = torch.bmm(maps.to(windows.value.dtype).flatten(1, 2), windows.value)  # (B·n, Q·K, C_in)
    slots = windows.hidden.shape[0] * windows.query.shape[1]
    seen = seen.view(batch, slots, heads, windows.value.shape[-1])
    return seen if windows.home is None else seen.index_select(1, windows.home)


def _windows(
    scope: Scope, geometry: Geometry, inner: Sequence[int], asking: Tensor, key: Tensor, values: Tensor
) -> Windows:
    """Windows of the map: (B, Ho, Wo, K·d), (B, H, W, K·d) and (B, H, W, C_in) are sorted into them.

    `inner` is the map's size (h, w) before padding.
    """
    size, counts = values.shape[1:3], asking.shape[1:3]
    down, across = (
        scopes.axis_windows(
            scope.window(size[axis], inner[axis]), size[axis], geometry.centre[axis], geometry.stride[axis],
            counts[axis], values.device,
        )
        for axis in (0, 1)
    )  # fmt: skip
    keys = _both(down.keys, across.keys, size[1])
    inside = (down.inside[:, None, :, None] & across.inside[None, :, None]).flatten(2).flatten(0, 1)
    if not scope.padding:
        own = scopes.own_pixels(size, inner, positions.origin(inner, geometry), values.device)
        inside = inside & own.flatten()[keys]
        values = values * own[..., None].to(values.dtype)  # a window of padding alone brings nothing together
    hidden = torch.zeros(inside.shape, device=values.device).masked_fill(~inside, -torch.inf)

    def sort(tokens: Tensor, numbers: Tensor) -> Tensor:
        sorted_ = tokens.flatten(1, 2).index_select(1, numbers.flatten())
        return sorted_.view(-1, numbers.shape[1], tokens.shape[3])

    # A query stands in row `down.home` of the sorted rows and in column `across.home`; windows are the outer index.
    slots = down.queries.shape[1], across.queries.shape[1]
    row, column = down.home[:, None], across.home
    window = row // slots[0] * across.queries.shape[0] + column // slots[1]
    home = (window * slots[0] + row % slots[0]) * slots[1] + column % slots[1]
    return Windows(
        sort(asking, _both(down.queries, across.queries, counts[1])),
        sort(key, keys),
        sort(values, keys),
        hidden,
        home.flatten(),
    )


def _both(down: Tensor, across: Tensor, width: int) -> Tensor:
    """Tables of two axes, (n₁, a) and (n₂, b), as one of row-major numbers on a map of this width, (n₁·n₂, a·b)."""
    return (down[:, None, :, None] * width + across[None, :, None]).flatten(2).flatten(0, 1)


def _pools(scope: Scope, asking: Tensor, pixels: Tensor, key: Matrix, value: Tensor | None) -> Windows:
    """The pooled grid: (B, Ho, Wo, K·d) ask the means of (B, H, W, C_in)."""
    batch, height, width, channels = pixels.shape
    down, across = (scopes.pooling(scope.pools(n), n, pixels) for n in (height, width))
    # The map in memory order of the first product, (H, B·W·C), then of the second.
    pooled = down @ pixels.transpose(0, 1).flatten(1)
    pooled = across @ pooled.view(down.shape[0] * batch, width, channels)  # (R·B, R, C_in)
    pooled = (
        pooled.view(down.shape[0], batch, across.shape[0], channels).transpose(0, 1).flatten(1, 2)
    )  # (B, R·R, C_in)
    hidden = torch.zeros(1, pooled.shape[1], device=pixels.device)
    return Windows(asking.flatten(1, 2), linear(pooled, key), _through(pooled, value), hidden, None)


def _through(tokens: Tensor, value: Tensor | None) -> Tensor:
    """X W_val."""
    return tokens if value is None else linear(tokens, value)
