"""Convolution geometry, padding, query positions, and the positional attention: pure functions.

Shapes: H, W padded map (rows, columns); Ho, Wo output map; K heads (kernel taps); M = Ho·Wo; N = H·W.

The positional logit of head h is −(α_h/τ)·‖δ − Δ_h‖² with δ = key − query in pixels (Cordonnier et al. 2020,
Eq. 8; d'Ascoli et al. 2021, Eq. 4). It is a sum over rows and columns and the grid is a rectangle, so its softmax
is exactly an outer product of a softmax over rows and one over columns: 2 small vectors instead of N logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.execution import is_exporting, is_jit_tracing, is_transformed

Pair = tuple[int, int]
Quad = tuple[int, int, int, int]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Factors = tuple[Tensor, Tensor | None]
"""Positional attention: a row factor (K, Ho, H) and a column factor (K, Wo, W). Or, where it is no product of two, the
whole map, (K, Ho, Wo, H, W) or for every image (B, K, Ho, Wo, H, W), and None."""


@dataclass(frozen=True)
class Geometry:
    """Geometry of a convolution: kernel size, stride, dilation and padding.

    `padding` is (left, right, top, bottom) in pixels, or "dynamic" for TensorFlow's SAME rule, under which the
    amount depends on the size of the map.
    """

    kernel_size: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Quad | Literal["dynamic"] = (0, 0, 0, 0)
    padding_mode: PaddingMode = "zeros"

    @property
    def heads(self) -> int:
        """Number of heads K, one per kernel tap."""
        return self.kernel_size[0] * self.kernel_size[1]

    @property
    def centre(self) -> Pair:
        """The kernel's centre in pixels from its first tap: the pixel of the query.

        An even span has no middle pixel; the one before it is taken, as PyTorch's `padding="same"` does.
        """
        rows, columns = (d * (k - 1) // 2 for k, d in zip(self.kernel_size, self.dilation, strict=True))
        return rows, columns

    @property
    def queries_every_pixel(self) -> bool:
        """Whether the query pixels are exactly the pixels of the unpadded map, as in most convolutions."""
        if self.padding == "dynamic" or self.stride != (1, 1):
            return False
        left, right, top, bottom = self.padding
        spans = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        return self.centre == (top, left) and spans == [top + bottom, left + right]


@cache
def tap_coordinates(geometry: Geometry) -> list[list[float]]:
    """Tap offsets Δ from the kernel's centre, [row, column] in pixels, K of them, row-major."""
    rows, columns = (
        [float(i * d - c) for i in range(k)]
        for k, d, c in zip(geometry.kernel_size, geometry.dilation, geometry.centre, strict=True)
    )
    return [[row, column] for row in rows for column in columns]


def tap_offsets(geometry: Geometry) -> Tensor:
    """`tap_coordinates` as a tensor, (K, 2), float64, on the CPU."""
    return torch.tensor(tap_coordinates(geometry), dtype=torch.float64, device="cpu")


def has_taps(dtype: torch.dtype, geometry: Geometry) -> bool:
    """Whether a floating-point type has the coordinates of all taps: bfloat16 has no odd number beyond 256."""
    held = torch.finfo(dtype)
    return all(
        abs(at) <= held.max and (math.frexp(at)[0] * 2 / held.eps).is_integer()
        for tap in tap_coordinates(geometry)
        for at in tap
    )


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> Pair:
    """TensorFlow's SAME padding along one axis: (before, after) so that the output has ceil(size / stride) pixels."""
    outputs = (size + stride - 1) // stride
    total: Any = (outputs - 1) * stride + dilation * (kernel - 1) + 1 - size
    if dilation * (kernel - 1) + 1 < stride:  # else it is never below 0, which a tracer need not ask of every size
        if isinstance(total, Tensor):
            total = total.clamp(min=0)  # `torch.jit` counts in tensors
        else:
            total = max(total, 0) if isinstance(total, int) else torch.sym_max(total, 0)  # SymInt under export
    return total // 2, total - total // 2


def padding_like_input(kernel_size: Pair, dilation: Pair) -> Quad:
    """The padding (left, right, top, bottom) of PyTorch's "same": an output as large as the input, at stride 1."""
    totals = [d * (k - 1) for k, d in zip(kernel_size, dilation, strict=True)]
    top, left = (total // 2 for total in totals)
    return left, totals[1] - left, top, totals[0] - top


def padding_of(size: Sequence[int], geometry: Geometry) -> Quad:
    """Padding (left, right, top, bottom) of a map of `size` (h, w)."""
    if geometry.padding != "dynamic":
        return geometry.padding
    (top, bottom), (left, right) = (
        same_padding(n, k, s, d)
        for n, k, s, d in zip(size, geometry.kernel_size, geometry.stride, geometry.dilation, strict=True)
    )
    return left, right, top, bottom


def padded_size(size: Sequence[int], geometry: Geometry) -> Pair:
    """Size (H, W) of a map of `size` (h, w) after `pad`."""
    left, right, top, bottom = padding_of(size, geometry)
    return top + size[0] + bottom, left + size[1] + right


def origin(size: Sequence[int], geometry: Geometry) -> Pair:
    """Position (row, column) on the padded map of the first pixel of a map of `size` (h, w)."""
    left, _, top, _ = padding_of(size, geometry)
    return top, left


def zero_padded(geometry: Geometry) -> bool:
    """Whether the map may be padded with zeros."""
    return geometry.padding_mode == "zeros" and (geometry.padding == "dynamic" or any(geometry.padding))


def pad(x: Tensor, geometry: Geometry) -> Tensor:
    """Pad (…, H, W) explicitly, as the convolution pads it."""
    if geometry.padding != "dynamic" and not any(geometry.padding):
        return x
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    return F.pad(x, padding_of(x.shape[-2:], geometry), mode=mode)


def output_size(size: Sequence[int], geometry: Geometry) -> Pair:
    """Output size (Ho, Wo) of a padded map of `size` (H, W)."""
    rows, columns = (
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(size, geometry.kernel_size, geometry.stride, geometry.dilation, strict=True)
    )
    return rows, columns


def take_query_pixels(x: Tensor, geometry: Geometry) -> Tensor:
    """Take the query pixels of a padded map (…, H, W), the kernel centre of each output pixel: (…, Ho, Wo)."""
    rows, columns = output_size(x.shape[-2:], geometry)
    (top, left), (down, right) = geometry.centre, geometry.stride
    if is_exporting() and (down, right) != (1, 1):
        # The end of a slice is one more size, of which a program for all of them would have to prove that it fits.
        below = top + down * torch.arange(rows, device=x.device)
        across = left + right * torch.arange(columns, device=x.device)
        return x.index_select(-2, below).index_select(-1, across)
    return x[..., top : top + (rows - 1) * down + 1 : down, left : left + (columns - 1) * right + 1 : right]


def axis_attention(strength: Tensor, centre: Tensor, queries: Tensor, size: int) -> Tensor:
    """Positional attention along one axis: softmax over keys of −strength·(key − query − centre)².

    Args:
        strength: α/τ of every head, in 1/pixel², (K,).
        centre: Δ along this axis, in pixels, (K,); or along several axes that are alike, (axes, K).
        queries: positions of the queries along the axis, in pixels, (Q,).
        size: number of keys along the axis.

    Returns: (K, Q, size) or (axes, K, Q, size); every row sums to 1.
    """
    keys = torch.arange(size, device=strength.device, dtype=strength.dtype)
    distance = keys - queries[:, None] - centre[..., None, None]
    return torch.softmax(-strength[:, None, None] * distance.square(), dim=-1)


def shifts(axis: int, size: Sequence[int], geometry: Geometry, device: torch.device) -> Tensor:
    """δ = key − query along an axis of a padded map of `size` (H, W), in pixels: (Ho, H) or (Wo, W), int64."""
    count, first, step = output_size(size, geometry)[axis], geometry.centre[axis], geometry.stride[axis]
    queries = first + step * torch.arange(count, device=device)
    return torch.arange(size[axis], device=device) - queries[:, None]


def without_traces(weights: Tensor) -> Tensor:
    """Attention weights with those of no account set to 0: below 2√tiny, 2e-19 in float32, they are lost beside 1.

    Products of such weights are subnormal numbers, which processors multiply up to a hundred times more slowly.
    """
    least = 2 * torch.finfo(weights.dtype).tiny ** 0.5
    if is_jit_tracing():  # the same, but slower
        return weights.masked_fill(weights <= least, 0.0)
    return F.threshold(weights, least, 0.0)


def positional_attention(
    strength: Tensor, centres: Tensor, size: Sequence[int], geometry: Geometry
) -> tuple[Tensor, Tensor]:
    """The row and column factors of the positional attention on a padded map of `size` (H, W).

    Args:
        strength: α/τ, (K,); its dtype is the dtype of the result.
        centres: Δ, (K, 2), (row, column), pixels.

    Returns: rows (K, Ho, H) and columns (K, Wo, W). Head h attends from query (i, j) to key (y, x) with weight rows[h,
    i, y] · columns[h, j, x], without traces.
    """

    def along(centre: Tensor, keys: int, count: int, first: int, stride: int) -> Tensor:
        queries = first + stride * torch.arange(count, device=strength.device, dtype=strength.dtype)
        return without_traces(axis_attention(strength, centre, queries, keys))

    down, across = zip(size, output_size(size, geometry), geometry.centre, geometry.stride, strict=True)
    # Both axes in one go where they are alike, unless a tracer would learn from one map that they always are.
    if not is_transformed() and down == across:
        rows, columns = along(centres.t(), *down).unbind()
        return rows, columns
    return along(centres[:, 0], *down), along(centres[:, 1], *across)
