"""Scope of content attention: which keys a query attends to (global, windows, pooled grid), as pure functions.

`global`: every pixel of the padded map.

`window:W`: the padded map is cut into non-overlapping windows, as few as suffice for W×W pixels of the unpadded map in
each (padding is added to that); all have one size, and the last is filled up with masked pixels. A query attends to the
window that contains its own pixel (the kernel's centre).

`pooled:R`: the map average-pooled to R×R.

`,unpadded` after one of them excludes the padding: keys and pools are those of the unpadded map.

Windows and pools are separable, so a map has one table for its rows and one for its columns; tables over pairs of
pixels are built for inspection only.

Shapes: B batch, K heads, d head width, H×W padded map, N = H·W keys, q some queries, R pools along an axis.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from tcnn.config import CONTENT
from tcnn.errors import RequestError
from tcnn.layers.terms import attention
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Geometry, output_size


@dataclass(frozen=True)
class Scope:
    """Scope of content attention; `str` returns it as it is written in configurations."""

    kind: Literal["global", "window", "pooled"] = "global"
    size: int = 0
    """Window size W or pooled size R; 0 for `global`."""
    padding: bool = True
    """Whether padding pixels are among the keys."""

    def __str__(self) -> str:
        return (f"{self.kind}:{self.size}" if self.size else self.kind) + ("" if self.padding else UNPADDED)

    def covers(self, size: Sequence[int], inner: Sequence[int]) -> bool:
        """Whether the scope is every pixel of a padded map of `size` (H, W) with an unpadded map of `inner` (h, w).

        Every pixel of the unpadded map, if padding is excluded.
        """
        return self.kind == "global" or self.size >= max(inner if self.kind == "window" or not self.padding else size)

    def window(self, size: int, inner: int) -> int:
        """Window length along an axis of `size` pixels, `inner` of them unpadded; for `global` the whole axis."""
        windows = self._most(inner)
        return (size + windows - 1) // windows

    def windows(self, size: int, inner: int) -> int:
        """Number of windows along an axis: as few of their length as cover it.

        Under `torch.export` with free sizes it is what their length was computed from, of which the last may be masked
        altogether: of a quotient of quotients torch 2.15 cannot say what sizes it allows.
        """
        window = self.window(size, inner)
        return (size + window - 1) // window if isinstance(size, int) else self._most(inner)

    def _most(self, inner: int) -> int:
        return (inner + self.size - 1) // self.size if self.size else 1

    def pools(self, size: int | Tensor) -> int:
        """Number of pools along an axis of `size` pixels; never more than pixels."""
        size = int(size) if isinstance(size, Tensor) else size  # `torch.jit` counts in tensors
        # Of plain numbers a compiler before torch 2.12 knows only Python's minimum; SymInt under export has its own.
        return min(self.size, size) if isinstance(size, int) else torch.sym_min(self.size, size)


UNPADDED = ",unpadded"
GLOBAL = Scope()


def parse(text: str) -> Scope:
    """Parse `global`, `window:W` or `pooled:R`, perhaps with `,unpadded`; raises `RequestError` for anything else."""
    found = re.fullmatch(CONTENT, text) if isinstance(text, str) else None
    if found is None:
        raise RequestError(
            "content: expected global, window:W or pooled:R with a whole number from 1 to 999999, and perhaps "
            f"{UNPADDED} behind it, found {text!r}"
        )
    kind, size, unpadded = found.groups()
    if kind is None:
        return Scope(padding=unpadded is None)
    return Scope("window" if kind == "window" else "pooled", int(size), unpadded is None)


class AxisWindows(NamedTuple):
    """Index tables of the n windows along one axis."""

    keys: Tensor
    """Pixel indices of every window, (n, W)."""
    valid: Tensor
    """Mask of the entries of `keys` that are on the map, (n, W), bool; the others fill up the last window."""
    queries: Tensor
    """Query indices of every window, (n, S), filled up with repeated ones where a stride leaves fewer than S."""
    query_index: Tensor
    """Index of every query in the flattened `queries`, (queries,)."""


def axis_windows(
    window: int, windows: int, size: int, first: int, stride: int, count: int, device: torch.device
) -> AxisWindows:
    """Index tables for windows of `window` pixels on an axis of `size`, with `count` queries at first + stride·i."""
    starts = window * torch.arange(windows, device=device)
    pixels = starts[:, None] + torch.arange(window, device=device)
    earliest = ((starts - first + stride - 1) // stride).clamp(min=0)  # the first query at or behind each start
    slots = (window + stride - 1) // stride
    queries = earliest[:, None] + torch.arange(slots, device=device)
    number = torch.arange(count, device=device)
    mine = (first + stride * number) // window
    return AxisWindows(
        keys=pixels.clamp(max=size - 1),
        valid=pixels < size,
        queries=queries.clamp(max=count - 1),
        query_index=mine * slots + number - earliest[mine],
    )


def pooling(pools: int, size: int, like: Tensor) -> Tensor:
    """Matrix of adaptive average pooling along an axis, (R, size), in the dtype and on the device of `like`.

    Pool i is the mean of the pixels from ⌊i·size/R⌋ to before ⌈(i+1)·size/R⌉: every pixel is in at least one pool, and
    in two where R does not divide the size. Rows sum to 1; as many pools as pixels give the identity.
    """
    number = torch.arange(pools, device=like.device)[:, None]
    pixel = torch.arange(size, device=like.device)
    member = (pixel >= number * size // pools) & (pixel < ((number + 1) * size + pools - 1) // pools)
    weights = member.to(at_least_float32(like).dtype)
    return (weights / weights.sum(1, keepdim=True)).to(like.dtype)


def query_pixels(size: Sequence[int], geometry: Geometry, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and column, on a padded map of `size` (H, W), of the pixel of each query, row-major, (M,) each."""
    rows, columns = (
        first + stride * torch.arange(count, device=device)
        for first, stride, count in zip(geometry.centre, geometry.stride, output_size(size, geometry), strict=True)
    )
    down, across = torch.meshgrid(rows, columns, indexing="ij")
    return down.flatten(), across.flatten()


def content(
    scope: Scope,
    query: Tensor,
    key: Tensor,
    size: Sequence[int],
    inner: Sequence[int],
    origin: Sequence[int],
    rows: Tensor,
    columns: Tensor,
) -> Tensor:
    """Content attention weights over all pixels of the padded map within a scope: (B, K, q, N), at least float32.

    Args:
        query: (B, K, q, d). key: of every pixel of the padded map of `size` (H, W), (B, K, N, d).
        inner: size (h, w) of the unpadded map, whose first pixel is at `origin` on the padded map.
        rows, columns: the pixel of each query, (q,) each.

    The weight of a pooled key is spread evenly over the pixels of its pool: softmax(Q K_poolᵀ/√d) times the pooling
    matrix. Every row sums to 1, except that of a query whose window is all padding where padding is excluded: it is 0.
    """
    if scope.padding and scope.covers(size, inner):
        return attention.content(query, key)
    if scope.kind == "pooled":
        to_rows, to_columns = (
            _pooling(scope, n, m, first, key) for n, m, first in zip(size, inner, origin, strict=True)
        )
        pooled = torch.einsum("iy,jx,bkyxd->bkijd", to_rows, to_columns, key.unflatten(2, tuple(size))).flatten(2, 3)
        weights = attention.content(query, pooled).unflatten(3, (to_rows.shape[0], to_columns.shape[0]))
        spread = (to_rows.to(weights.dtype), to_columns.to(weights.dtype))
        return torch.einsum("bkqij,iy,jx->bkqyx", weights, *spread).flatten(3)
    down, across = (scope.window(n, m) for n, m in zip(size, inner, strict=True))
    visible = _same_window(down, rows, size[0])[:, :, None] & _same_window(across, columns, size[1])[:, None]
    if not scope.padding:
        visible = visible & own_pixels(size, inner, origin, visible.device)
    visible = visible.flatten(1)
    logits = at_least_float32((query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2))
    weights = torch.softmax(logits.masked_fill(~visible, torch.finfo(logits.dtype).min), dim=-1)
    return weights.masked_fill(~visible, 0)


def own_pixels(size: Sequence[int], inner: Sequence[int], origin: Sequence[int], device: torch.device) -> Tensor:
    """Mask of the unpadded pixels on a padded map, (H, W), bool; the arguments are those of `content`."""
    down, across = (
        (torch.arange(n, device=device) >= first) & (torch.arange(n, device=device) < first + m)
        for n, m, first in zip(size, inner, origin, strict=True)
    )
    return down[:, None] & across


def _pooling(scope: Scope, size: int, inner: int, first: int, like: Tensor) -> Tensor:
    """Pooling matrix along an axis of the padded map, (R, size)."""
    if scope.padding:
        return pooling(scope.pools(size), size, like)
    return torch.nn.functional.pad(pooling(scope.pools(inner), inner, like), (first, size - inner - first))


def _same_window(window: int, places: Tensor, size: int) -> Tensor:
    """Mask of the keys in the same window as each query along one axis, (q, size), bool."""
    return (places // window)[:, None] == torch.arange(size, device=places.device) // window
