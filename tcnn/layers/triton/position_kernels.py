"""Triton kernels of isotropic positional attention: its two factors, and the gradients of its parameters.

Along an axis with centre c of head h, and strength s = softplus(raw)/τ,

    factor[i, y] = softmax_y(−s·(y − q_i − c)²),   q_i = first + stride·i,

which plain operations compute in a dozen launches, and their gradients in two dozen, of which a GPU feels nothing but
the host's time. Weights of no account are 0, as `positions.without_traces` has them. Shapes: P heads with a positional
part of K heads, Ho×Wo output map, H×W padded map; content heads have factors of 0.
"""

import triton
import triton.language as tl

TRACE = tl.constexpr(2.168404344971009e-19)
"""2·√tiny of float32: weights up to it are 0."""
LINEAR = tl.constexpr(20.0)
"""Where β·raw is above it, PyTorch's softplus is the identity."""


@triton.jit
def _strength(raw, temperature, BETA: tl.constexpr):
    """softplus(raw)/τ, and its derivative by raw."""
    scaled = raw * BETA
    small = tl.exp(-tl.abs(scaled))
    one = 1 + small  # log(1 + small), also where 1 + small has lost digits of it
    logarithm = tl.where(one == 1, small, tl.log(one) * (small / (one - 1)))
    soft = (tl.maximum(scaled, 0.0) + logarithm) / BETA
    slope = 1 / (1 + tl.exp(-scaled))
    return tl.where(scaled > LINEAR, raw, soft) / temperature, tl.where(scaled > LINEAR, 1.0, slope) / temperature


@triton.jit
def _softmax(strength, centre, i, size, first, stride, BLOCK: tl.constexpr):
    """Weights (queries, BLOCK), key − query − centre likewise, and the mask of the keys."""
    y = tl.arange(0, BLOCK)
    distance = y[None, :].to(tl.float32) - (first + stride * i).to(tl.float32)[:, None] - centre
    logits = tl.where((y < size)[None, :], -strength * distance * distance, float("-inf"))
    weights = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None], distance, (y < size)[None, :]


@triton.jit
def forward(
    raws, centres, temperatures, rows, columns, taps,
    out_height, out_width, height, width, first_row, first_column, down, across,
    BETA: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows (K, Ho, H) and columns (K, Wo, W), float32. Programs: (K, tiles of the rows and of the columns)."""
    head, part = tl.program_id(0), tl.program_id(1)
    tap = head < taps
    raw = tl.load(raws + head, mask=tap, other=0.0).to(tl.float32)
    strength, _ = _strength(raw, tl.load(temperatures).to(tl.float32), BETA)
    tiles = tl.cdiv(out_height, TILE)
    along_rows = part < tiles
    count = tl.where(along_rows, out_height, out_width)
    size = tl.where(along_rows, height, width)
    first = tl.where(along_rows, first_row, first_column)
    stride = tl.where(along_rows, down, across)
    centre = tl.load(centres + 2 * head + tl.where(along_rows, 0, 1), mask=tap, other=0.0).to(tl.float32)
    i, y = tl.where(along_rows, part, part - tiles) * TILE + tl.arange(0, TILE), tl.arange(0, BLOCK)
    weights, _distance, keys = _softmax(strength, centre, i, size, first, stride, BLOCK)
    weights = tl.where((weights > TRACE) & tap, weights, 0.0)
    place = i[:, None] * size + y[None, :]
    inside = (i < count)[:, None] & keys
    if along_rows:
        tl.store(rows + head * out_height * height + place, weights, mask=inside)
    else:
        tl.store(columns + head * out_width * width + place, weights, mask=inside)


@triton.jit
def _along(
    gradient, strength, centre, count, size, first, stride, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Gradients of strength and centre from that of the factor along an axis, (count, size)."""
    y = tl.arange(0, BLOCK)
    of_strength = tl.zeros((TILE,), tl.float32)
    of_centre = tl.zeros((TILE,), tl.float32)
    for begin in range(0, count, TILE):
        i = begin + tl.arange(0, TILE)
        weights, distance, keys = _softmax(strength, centre, i, size, first, stride, BLOCK)
        inside = (i < count)[:, None] & keys
        upstream = tl.load(gradient + i[:, None] * size + y[None, :], mask=inside, other=0.0)
        upstream = tl.where(weights > TRACE, upstream, 0.0)
        logits = weights * (upstream - tl.sum(weights * upstream, axis=1)[:, None])
        logits = tl.where(inside, logits, 0.0)
        of_strength -= tl.sum(logits * distance * distance, axis=1)
        of_centre += tl.sum(logits * 2 * strength * distance, axis=1)
    return tl.sum(of_strength, axis=0), tl.sum(of_centre, axis=0)


@triton.jit
def backward(
    raws, centres, temperatures, grad_rows, grad_columns, grad_raws, grad_centres,
    out_height, out_width, height, width, first_row, first_column, down, across,
    BETA: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of the raw strengths (P,) and the centres (P, 2); a program for each of these heads."""
    head = tl.program_id(0)
    raw = tl.load(raws + head).to(tl.float32)
    strength, slope = _strength(raw, tl.load(temperatures).to(tl.float32), BETA)
    row = tl.load(centres + 2 * head).to(tl.float32)
    column = tl.load(centres + 2 * head + 1).to(tl.float32)
    grad_rows += head * out_height * height
    grad_columns += head * out_width * width
    by_row, of_row = _along(grad_rows, strength, row, out_height, height, first_row, down, TILE, BLOCK)
    by_column, of_column = _along(grad_columns, strength, column, out_width, width, first_column, across, TILE, BLOCK)
    tl.store(grad_raws + head, ((by_row + by_column) * slope).to(grad_raws.dtype.element_ty))
    tl.store(grad_centres + 2 * head, of_row.to(grad_centres.dtype.element_ty))
    tl.store(grad_centres + 2 * head + 1, of_column.to(grad_centres.dtype.element_ty))
