"""Triton forward kernel of gated positional self-attention on a GPU, and helpers shared with the backward kernels.

Head h of image b mixes, for query m = (i, j) and key r = (y, x),

    A[m, r] = (1 − g)·C[m, r] + g·rows[i, y]·columns[j, x],   C[m, r] = exp(scale·q_m·k_r − lse_m),

and out_m = Σ_r A[m, r]·v_r, with lse_m = log(n + Σ_r exp(scale·q_m·k_r)): n keys of zeros beside the map are n times
exp(0), so they cost nothing. That is softmax · sigmoid(lse − log n) of the map alone.

Queries and keys are taken in tiles that are rectangles of their maps. Then the positional part of a tile of A is an
outer product of two small blocks, and the gradients of its factors are sums over the axes of the tile: neither needs a
load or a store for each pair of pixels. A tile of A lives in registers only, from its logits to its product with the
values, before which it is mixed. That costs 0.35 million multiply-adds an image (14×14, 9 heads, 512 channels) beside
the 177 million of the product, which the content part needs in any case. Positions as two small products outside would
be 25 million more, and write and read (B, M, K, C), the largest tensor of the layer, twice.

Where one tile holds all keys (`WHOLE`, up to 16×16) nothing is computed twice. Where it does not, lse comes first, and
logits are computed again for every step of channels: d multiply-adds a pair beside the step's 256.

Shapes: B images, K heads, d head width, C channels, Ho×Wo queries, M = Ho·Wo, h×w keys, R = h·w. Logarithms are to
base 2. Constants, powers of two: tiles of Q_ROWS×Q_COLUMNS queries and of K_ROWS×K_COLUMNS keys, WIDTH ≥ d, CHANNELS of
a step. Strides are those of an image, a head and a pixel; channels lie beside each other.
"""

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def _dot(a, b, more=None):
    """Matrix product a b + more, accumulated in float32."""
    if (
        INTERPRETED
    ):  # it would multiply the bit patterns of bfloat16 (triton-lang/triton#11584); this is the same number
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, more, input_precision="ieee")


@triton.jit
def _logits(a, b, scale):
    """Attention logits to base 2."""
    return _dot(a, tl.trans(b)) * (scale * LOG2_E)


@triton.jit
def _pixels(tile, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pixels of a tile of a map: row-major indices, a mask of those on the map, and the tile's rows and columns.

    Tiles are numbered down the map first.
    """
    down = tl.cdiv(height, ROWS)
    top = tile % down * ROWS
    left = tile // down * COLUMNS
    n = tl.arange(0, ROWS * COLUMNS)
    y = top + n // COLUMNS
    x = left + n % COLUMNS
    return y * width + x, (y < height) & (x < width), top, left


@triton.jit
def _tokens(tokens, pixels, inside, stride, first, channels, CHANNELS: tl.constexpr):
    """Load channels from `first` of these pixels, (pixels, CHANNELS); 0 outside."""
    c = first + tl.arange(0, CHANNELS)
    mask = inside[:, None] & (c < channels)[None, :]
    return tl.load(tokens + pixels[:, None] * stride + c[None, :], mask=mask, other=0.0)


@triton.jit
def _block(matrix, top, left, height, width, stride, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to a block of a matrix, and the mask of those inside it."""
    y = top + tl.arange(0, ROWS)
    x = left + tl.arange(0, COLUMNS)
    return matrix + y[:, None] * stride + x[None, :] * step, (y < height)[:, None] & (x < width)[None, :]


@triton.jit
def _factor(matrix, top, left, height, width, stride, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Load a block of a factor of the positional attention; 0 outside."""
    pointers, inside = _block(matrix, top, left, height, width, stride, step, ROWS, COLUMNS)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _positional(rows, columns):
    """Positional attention of a tile, rows[i, y]·columns[j, x]: (I, Y) and (J, X) to (I·J, Y·X)."""
    product = rows[:, None, :, None] * columns[None, :, None, :]
    return tl.reshape(product, (rows.shape[0] * columns.shape[0], rows.shape[1] * columns.shape[1]))


@triton.jit
def forward(
    query, key, value, rows, columns, gate, out, lse,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, value_image, value_pixel,
    heads, width, channels, out_height, out_width, height, map_width, sinks, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Forward kernel: out (B, M, K, C) and lse (B, K, M); one program per tile of queries of a head of an image."""
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    tile = program % query_tiles
    head = program // query_tiles % heads
    image = (program // (query_tiles * heads)).to(tl.int64)
    queries, query_mask, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
    key += image * key_image + head * key_head
    value += image * value_image
    rows += head * out_height * height
    columns += head * out_width * map_width
    g = tl.load(gate + head)
    base = query + image * query_image + head * query_head
    q = _tokens(base, queries, query_mask, query_pixel, 0, width, WIDTH)

    # log(n + Σ exp): the keys of zeros are what the running sum begins with.
    largest = tl.full((Q_ROWS * Q_COLUMNS,), float("-inf"), tl.float32)
    largest = tl.where(sinks > 0, tl.zeros_like(largest), largest)
    total = tl.zeros_like(largest) + sinks
    if WHOLE:
        keys, key_mask, y, x = _pixels(0, height, map_width, K_ROWS, K_COLUMNS)
        k = _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH)
        logits = _logits(q, k, scale)
        logits = tl.where(key_mask[None, :], logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, axis=1))
        weights = tl.exp2(logits - new[:, None])
        total = total * tl.exp2(largest - new) + tl.sum(weights, axis=1)
        largest = new
        row = _factor(rows, i, 0, out_height, height, height, 1, Q_ROWS, K_ROWS)
        column = _factor(columns, j, 0, out_width, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
        whole = weights * ((1 - g) / total)[:, None] + _positional(g * row, column)
        whole = whole.to(value.dtype.element_ty)
    else:
        for part in range(key_tiles):
            keys, key_mask, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
            k = _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH)
            logits = _logits(q, k, scale)
            logits = tl.where(key_mask[None, :], logits, float("-inf"))
            new = tl.maximum(largest, tl.max(logits, axis=1))
            total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(logits - new[:, None]), axis=1)
            largest = new
    log_sum = largest + tl.log2(total)
    queries_here = out_height * out_width
    tl.store(lse + (image * heads + head) * queries_here + queries, log_sum, mask=query_mask)

    out += image * queries_here * heads * channels + head * channels
    for first in range(0, channels, CHANNELS):
        if WHOLE:
            keys, key_mask, y, x = _pixels(0, height, map_width, K_ROWS, K_COLUMNS)
            v = _tokens(value, keys, key_mask, value_pixel, first, channels, CHANNELS)
            mixed = _dot(whole, v)
        else:
            mixed = tl.zeros((Q_ROWS * Q_COLUMNS, CHANNELS), tl.float32)
            for part in range(key_tiles):
                keys, key_mask, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
                k = _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH)
                v = _tokens(value, keys, key_mask, value_pixel, first, channels, CHANNELS)
                logits = _logits(q, k, scale)
                content = tl.where(key_mask[None, :], tl.exp2(logits - log_sum[:, None]), 0.0)
                row = _factor(rows, i, y, out_height, height, height, 1, Q_ROWS, K_ROWS)
                column = _factor(columns, j, x, out_width, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
                tile_of_map = (1 - g) * content + _positional(g * row, column)
                mixed = _dot(tile_of_map.to(v.dtype), v, mixed)
        c = first + tl.arange(0, CHANNELS)
        where = out + queries[:, None] * (heads * channels) + c[None, :]
        tl.store(where, mixed.to(value.dtype.element_ty), mask=query_mask[:, None] & (c < channels)[None, :])
