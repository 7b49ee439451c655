"""Triton kernels of gated isotropic positional attention: the table of it, and the gradients of its parameters.

For head h and query (i, j) with gate g = σ(λ/τ_g), strength s = softplus(raw)/τ_p and centre (c_y, c_x), on the padded
map, with d_y = y − q_i − c_y and d_x = x − q_j − c_x,

    table = g·R[y]·C[x],   R = softmax_y(−s·d_y²),   C = softmax_x(−s·d_x²),

weights of no account being 0, as `positions.without_traces` has them. With W = R·C·D, where D is the gradient of the
maps summed over the images, and E the mean under R or C, the gradients are sums over the keys of one query,

    ∂s = −g·Σ W·(d_y² − E d_y² + d_x² − E d_x²),   ∂c = 2·s·g·Σ W·(d − E d),   ∂g = Σ W − Σ C·D,

so that neither R nor C need be stored, forward or backward: what plain operations compute in forty launches takes one
forward and two backward. Shapes: M queries, R keys, K heads, P of them with a positional part; the others' table is 0.
"""

import triton
import triton.language as tl

TRACE = tl.constexpr(2.168404344971009e-19)
"""2·√tiny of float32: weights up to it are 0."""
LINEAR = tl.constexpr(20.0)
"""Where β·raw is above it, PyTorch's softplus is the identity."""


@triton.jit
def gate_of(gating, temperature, head, taps):
    """Gate σ(λ/τ) of a head; exactly 0 for a content head, of which there are no λ."""
    tap = head < taps
    raw = tl.load(gating + head, mask=tap, other=0.0).to(tl.float32)
    found = 1 / (1 + tl.exp(-raw / tl.load(temperature).to(tl.float32)))
    return tl.where(tap, found, 0.0)


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
def _axis(strength, at, size, BLOCK: tl.constexpr):
    """Of softmax_y(−s·(y − at)²), 0 ≤ y < size: largest logit, sum of exponentials, means of y − at and its square."""
    y = tl.arange(0, BLOCK)
    distance = y.to(tl.float32) - at
    logits = tl.where(y < size, -strength * distance * distance, float("-inf"))
    largest = tl.max(logits, axis=0)
    weights = tl.exp(logits - largest)
    total = tl.sum(weights, axis=0)
    first = tl.sum(weights * distance, axis=0) / total
    return largest, total, first, tl.sum(weights * distance * distance, axis=0) / total


@triton.jit
def _weight(strength, distance, largest, total):
    """A weight of that softmax, 0 where it is of no account."""
    found = tl.exp(-strength * distance * distance - largest) / total
    return tl.where(found > TRACE, found, 0.0)


@triton.jit
def table(
    gating, gate_temperature, raws, centres, temperature, out,
    heads, taps, out_width, height, width, padded_height, padded_width, top, left, first_row, first_column, down,
    across, pitch,
    BETA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gated positional attention (M, K, pitch), 0 beyond the keys; one program per query of a head."""
    program = tl.program_id(0)  # query · K + head
    head, m = program % heads, program // heads
    tap = head < taps
    g = gate_of(gating, gate_temperature, head, taps)
    raw = tl.load(raws + head, mask=tap, other=0.0).to(tl.float32)
    strength, _ = _strength(raw, tl.load(temperature).to(tl.float32), BETA)
    at_row = first_row + down * (m // out_width) + tl.load(centres + 2 * head, mask=tap, other=0.0).to(tl.float32)
    at_column = first_column + across * (m % out_width)
    at_column += tl.load(centres + 2 * head + 1, mask=tap, other=0.0).to(tl.float32)
    top_row, sum_row, _a, _b = _axis(strength, at_row, padded_height, ROWS)
    top_column, sum_column, _c, _d = _axis(strength, at_column, padded_width, COLUMNS)
    out += program.to(tl.int64) * pitch
    for first in range(0, pitch, BLOCK):
        r = first + tl.arange(0, BLOCK)
        row = _weight(strength, (top + r // width).to(tl.float32) - at_row, top_row, sum_row)
        column = _weight(strength, (left + r % width).to(tl.float32) - at_column, top_column, sum_column)
        found = tl.where(r < height * width, g * row * column, 0.0)
        tl.store(out + r, found.to(out.dtype.element_ty), mask=r < pitch)


@triton.jit
def gradients_of_queries(
    grad_maps, raws, centres, temperature, parts,
    images, heads, taps, queries_here, out_width, height, width, padded_height, padded_width, top, left, first_row,
    first_column, down, across, pitch,
    BETA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IMAGES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one query of a head: Σ W and, without g, gradients of s, c_y and c_x, (4, P, M), from D (B, M, K, pitch)."""
    program = tl.program_id(0)  # head · M + query
    head, m = program // queries_here, program % queries_here
    strength, _ = _strength(tl.load(raws + head).to(tl.float32), tl.load(temperature).to(tl.float32), BETA)
    at_row = first_row + down * (m // out_width) + tl.load(centres + 2 * head).to(tl.float32)
    at_column = first_column + across * (m % out_width) + tl.load(centres + 2 * head + 1).to(tl.float32)
    top_row, sum_row, mean_row, square_row = _axis(strength, at_row, padded_height, ROWS)
    top_column, sum_column, mean_column, square_column = _axis(strength, at_column, padded_width, COLUMNS)
    b = tl.arange(0, IMAGES).to(tl.int64)
    grad_maps += (m * heads + head) * pitch
    all = tl.zeros((BLOCK,), tl.float32)
    of_strength = tl.zeros((BLOCK,), tl.float32)
    of_row = tl.zeros((BLOCK,), tl.float32)
    of_column = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, height * width, BLOCK):
        r = first + tl.arange(0, BLOCK)
        sums = tl.zeros((IMAGES, BLOCK), tl.float32)
        for image in range(0, images, IMAGES):
            place = grad_maps + (image + b)[:, None] * queries_here * heads * pitch + r[None, :]
            here = ((image + b) < images)[:, None] & (r < pitch)[None, :]
            sums += tl.load(place, mask=here, other=0.0).to(tl.float32)
        by_row = (top + r // width).to(tl.float32) - at_row
        by_column = (left + r % width).to(tl.float32) - at_column
        weight = _weight(strength, by_row, top_row, sum_row) * _weight(strength, by_column, top_column, sum_column)
        weight = tl.where(r < height * width, weight * tl.sum(sums, axis=0), 0.0)
        all += weight
        of_strength -= weight * (by_row * by_row - square_row + by_column * by_column - square_column)
        of_row += weight * (by_row - mean_row)
        of_column += weight * (by_column - mean_column)
    step = taps * queries_here
    tl.store(parts + program, tl.sum(all, axis=0))
    tl.store(parts + step + program, tl.sum(of_strength, axis=0))
    tl.store(parts + 2 * step + program, 2 * strength * tl.sum(of_row, axis=0))
    tl.store(parts + 3 * step + program, 2 * strength * tl.sum(of_column, axis=0))


@triton.jit
def _total(numbers, count, BLOCK: tl.constexpr):
    """Sum of so many numbers."""
    n = tl.arange(0, BLOCK)
    found = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, count, BLOCK):
        found += tl.load(numbers + first + n, mask=first + n < count, other=0.0)
    return tl.sum(found, axis=0)


@triton.jit
def gradients(
    gating, gate_temperature, raws, temperature, parts, sums, grad_gating, grad_raws, grad_centres,
    heads, taps, images, tiles, queries_here,
    BETA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of λ (P,), raw (P,) and centres (P, 2) of one head, from what `gradients_of_queries` has summed.

    `sums` are those of Σ_r C D, (B, K, tiles).
    """
    head = tl.program_id(0)
    g = gate_of(gating, gate_temperature, head, taps)
    _, slope = _strength(tl.load(raws + head).to(tl.float32), tl.load(temperature).to(tl.float32), BETA)
    parts += head * queries_here
    step = taps * queries_here
    n = tl.arange(0, BLOCK)
    content = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, images * tiles, BLOCK):
        at = first + n
        place = (at // tiles * heads + head) * tiles + at % tiles
        content += tl.load(sums + place, mask=at < images * tiles, other=0.0)
    found = _total(parts, queries_here, BLOCK) - tl.sum(content, axis=0)
    found = found * g * (1 - g) / tl.load(gate_temperature).to(tl.float32)
    tl.store(grad_gating + head, found.to(grad_gating.dtype.element_ty))
    of_raw = g * slope * _total(parts + step, queries_here, BLOCK)
    tl.store(grad_raws + head, of_raw.to(grad_raws.dtype.element_ty))
    of_row = g * _total(parts + 2 * step, queries_here, BLOCK)
    tl.store(grad_centres + 2 * head, of_row.to(grad_centres.dtype.element_ty))
    of_column = g * _total(parts + 3 * step, queries_here, BLOCK)
    tl.store(grad_centres + 2 * head + 1, of_column.to(grad_centres.dtype.element_ty))
