"""Triton backward kernels of gated positional self-attention on a GPU.

Of the forward pass only lse is saved, from which tiles of the map are recomputed; shapes, constants and the
mathematics are those of `kernels.py`. With D = ∂/∂A = ∂/∂out · valueᵀ:

    ∂/∂logits = (1 − g)·C·(D − Σ_r C D),  ∂/∂rows[i, y] = g·Σ_{b, j, x} columns[j, x]·D,  ∂/∂g = Σ (rows·columns − C)·D

and for the columns likewise. No sum is made by atomics: every number is written once, by one program, so two runs agree
in every bit. What is summed over programs, the small sums for rows, columns and gate, is left to PyTorch.
"""

import triton
import triton.language as tl

from tcnn.layers.triton.kernels import _block, _dot, _factor, _logits, _pixels, _positional, _tokens


@triton.jit
def _store(matrix, block, top, left, height, width, stride, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Store a block of a matrix, as `_factor` loads one."""
    pointers, inside = _block(matrix, top, left, height, width, stride, step, ROWS, COLUMNS)
    tl.store(pointers, block, mask=inside)


@triton.jit
def _factor_gradients(gradient, rows, columns):
    """Gradients of the row and column factors, given that of `_positional`."""
    tile = tl.reshape(gradient, (rows.shape[0], columns.shape[0], rows.shape[1], columns.shape[1]))
    grad_rows = tl.sum(tl.sum(tile * columns[None, :, None, :], axis=3), axis=1)
    grad_columns = tl.sum(tl.sum(tile * rows[:, None, :, None], axis=2), axis=0)
    return grad_rows, grad_columns


@triton.jit
def backward_queries(
    query, key, value, rows, columns, gate, lse, gradient, expected, grad_query, grad_rows, grad_columns,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, value_image, value_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Backward kernel of one tile of queries over all keys, for maps of several tiles of keys.

    Writes expected = Σ_r C D (B, K, M); grad_query (B, M, K, d) = (1 − g)·scale·Σ_r C (D − expected) k_r, in which
    `expected` is taken out of the sum, because it is not known before the end; grad_rows (B, K, tiles of queries, tiles
    of keys across, Q_ROWS, h) and grad_columns (B, K, tiles of queries, Q_COLUMNS, w), sums over the tile yet without
    g.
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    down = tl.cdiv(height, K_ROWS)
    across = tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    tile = program % query_tiles
    head = program // query_tiles % heads
    image = (program // (query_tiles * heads)).to(tl.int64)
    queries, query_mask, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
    queries_here = out_height * out_width
    plane = image * heads + head
    key += image * key_image + head * key_head
    value += image * value_image
    rows += head * out_height * height
    columns += head * out_width * map_width
    gradient += image * queries_here * heads * channels + head * channels
    grad_rows += (plane * query_tiles + tile) * across * Q_ROWS * height
    grad_columns += (plane * query_tiles + tile) * Q_COLUMNS * map_width
    base = query + image * query_image + head * query_head
    q = _tokens(base, queries, query_mask, query_pixel, 0, width, WIDTH)
    log_sum = tl.load(lse + plane * queries_here + queries, mask=query_mask, other=0.0)

    mean = tl.zeros((Q_ROWS * Q_COLUMNS,), tl.float32)
    weighted = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C D k_r
    plain = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C k_r
    column_sums = tl.zeros((Q_COLUMNS, K_COLUMNS), tl.float32)
    for part in range(down * across):
        keys, key_mask, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
        grad_map = tl.zeros((Q_ROWS * Q_COLUMNS, K_ROWS * K_COLUMNS), tl.float32)
        for first in range(0, channels, CHANNELS):
            upstream = _tokens(gradient, queries, query_mask, heads * channels, first, channels, CHANNELS)
            v = _tokens(value, keys, key_mask, value_pixel, first, channels, CHANNELS)
            grad_map = _dot(upstream, tl.trans(v), grad_map)
        row = _factor(rows, i, y, out_height, height, height, 1, Q_ROWS, K_ROWS)
        column = _factor(columns, j, x, out_width, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
        row_sums, more = _factor_gradients(grad_map, row, column)
        column_sums = tl.where(y == 0, 0.0, column_sums) + more  # tiles come down the map, then the next column of them
        kept = grad_rows + x // K_COLUMNS * Q_ROWS * height
        _store(kept, row_sums, 0, y, Q_ROWS, height, height, 1, Q_ROWS, K_ROWS)
        if part % down == down - 1:
            _store(grad_columns, column_sums, 0, x, Q_COLUMNS, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
        k = _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH)
        logits = _logits(q, k, scale)
        content = tl.where(key_mask[None, :], tl.exp2(logits - log_sum[:, None]), 0.0)
        moved = content * grad_map
        mean += tl.sum(moved, axis=1)
        weighted = _dot(moved.to(k.dtype), k, weighted)
        plain = _dot(content.to(k.dtype), k, plain)
    tl.store(expected + plane * queries_here + queries, mean, mask=query_mask)
    share = (1 - tl.load(gate + head)) * scale
    c = tl.arange(0, WIDTH)
    here = grad_query + image * queries_here * heads * width + head * width
    here += queries[:, None] * (heads * width) + c[None, :]
    found = (share * (weighted - mean[:, None] * plain)).to(query.dtype.element_ty)
    tl.store(here, found, mask=query_mask[:, None] & (c < width)[None, :])


@triton.jit
def backward_keys(
    query, key, value, rows, columns, gate, lse, gradient, expected, grad_query, grad_key, grad_rows, grad_columns,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, value_image, value_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Backward kernel of one tile of keys over all queries: grad_key (B, R, K, d).

    With one tile of keys it has whole rows of the map, and writes all that `backward_queries` writes, too; else
    `expected` is read. A tile of the map is transposed here, (keys, queries).
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    head = program // key_tiles % heads
    image = (program // (key_tiles * heads)).to(tl.int64)
    keys, key_mask, _y, _x = _pixels(program % key_tiles, height, map_width, K_ROWS, K_COLUMNS)
    queries_here = out_height * out_width
    plane = image * heads + head
    query += image * query_image + head * query_head
    value += image * value_image
    rows += head * out_height * height
    columns += head * out_width * map_width
    lse += plane * queries_here
    expected += plane * queries_here
    gradient += image * queries_here * heads * channels + head * channels
    grad_query += image * queries_here * heads * width + head * width
    share = (1 - tl.load(gate + head)) * scale
    c = tl.arange(0, WIDTH)
    k = _tokens(key + image * key_image + head * key_head, keys, key_mask, key_pixel, 0, width, WIDTH)

    found = tl.zeros((K_ROWS * K_COLUMNS, WIDTH), tl.float32)
    for tile in range(query_tiles):
        queries, query_mask, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
        grad_map = tl.zeros((K_ROWS * K_COLUMNS, Q_ROWS * Q_COLUMNS), tl.float32)
        for first in range(0, channels, CHANNELS):
            v = _tokens(value, keys, key_mask, value_pixel, first, channels, CHANNELS)
            upstream = _tokens(gradient, queries, query_mask, heads * channels, first, channels, CHANNELS)
            grad_map = _dot(v, tl.trans(upstream), grad_map)
        if WHOLE:
            row = _factor(rows, 0, i, height, out_height, 1, height, K_ROWS, Q_ROWS)
            column = _factor(columns, 0, j, map_width, out_width, 1, map_width, K_COLUMNS, Q_COLUMNS)
            row_sums, column_sums = _factor_gradients(grad_map, row, column)
            kept = grad_rows + (plane * query_tiles + tile) * Q_ROWS * height
            _store(kept, row_sums, 0, 0, height, Q_ROWS, 1, height, K_ROWS, Q_ROWS)
            kept = grad_columns + (plane * query_tiles + tile) * Q_COLUMNS * map_width
            _store(kept, column_sums, 0, 0, map_width, Q_COLUMNS, 1, map_width, K_COLUMNS, Q_COLUMNS)
        q = _tokens(query, queries, query_mask, query_pixel, 0, width, WIDTH)
        log_sum = tl.load(lse + queries, mask=query_mask, other=0.0)
        logits = _logits(k, q, scale)
        content = tl.where(key_mask[:, None], tl.exp2(logits - log_sum[None, :]), 0.0)
        if WHOLE:
            mean = tl.sum(content * grad_map, axis=0)
            tl.store(expected + queries, mean, mask=query_mask)
        else:
            mean = tl.load(expected + queries, mask=query_mask, other=0.0)
        grad_logits = (share * content * (grad_map - mean[None, :])).to(q.dtype)
        found = _dot(grad_logits, q, found)
        if WHOLE:
            here = grad_query + queries[:, None] * (heads * width) + c[None, :]
            moved = _dot(tl.trans(grad_logits), k)
            tl.store(here, moved.to(q.dtype), mask=query_mask[:, None] & (c < width)[None, :])
    here = grad_key + image * height * map_width * heads * width + head * width
    here += keys[:, None] * (heads * width) + c[None, :]
    tl.store(here, found.to(k.dtype), mask=key_mask[:, None] & (c < width)[None, :])


@triton.jit
def backward_values(
    query, key, value, rows, columns, gate, lse, gradient, grad_value,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Backward kernel of the values: grad_value (B, R, C) = Σ over heads of Aᵀ ∂/∂out.

    One program per tile of keys and step of channels of an image.
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    steps = tl.cdiv(channels, CHANNELS)
    program = tl.program_id(0)
    first = program % steps * CHANNELS
    image = (program // (steps * key_tiles)).to(tl.int64)
    keys, key_mask, y, x = _pixels(program // steps % key_tiles, height, map_width, K_ROWS, K_COLUMNS)
    queries_here = out_height * out_width
    query += image * query_image
    key += image * key_image
    gradient += image * queries_here * heads * channels
    lse += image * heads * queries_here

    found = tl.zeros((K_ROWS * K_COLUMNS, CHANNELS), tl.float32)
    for head in range(heads):
        g = tl.load(gate + head)
        k = _tokens(key + head * key_head, keys, key_mask, key_pixel, 0, width, WIDTH)
        for tile in range(query_tiles):
            queries, query_mask, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
            q = _tokens(query + head * query_head, queries, query_mask, query_pixel, 0, width, WIDTH)
            log_sum = tl.load(lse + head * queries_here + queries, mask=query_mask, other=0.0)
            upstream = _tokens(
                gradient + head * channels, queries, query_mask, heads * channels, first, channels, CHANNELS
            )
            logits = _logits(k, q, scale)
            content = tl.where(key_mask[:, None], tl.exp2(logits - log_sum[None, :]), 0.0)
            row = _factor(rows + head * out_height * height, y, i, height, out_height, 1, height, K_ROWS, Q_ROWS)
            column = _factor(
                columns + head * out_width * map_width, x, j, map_width, out_width, 1, map_width, K_COLUMNS, Q_COLUMNS
            )
            tile_of_map = (1 - g) * content + _positional(g * row, column)
            found = _dot(tile_of_map.to(upstream.dtype), upstream, found)
    c = first + tl.arange(0, CHANNELS)
    here = grad_value + image * height * map_width * channels + keys[:, None] * channels + c[None, :]
    tl.store(here, found.to(value.dtype.element_ty), mask=key_mask[:, None] & (c < channels)[None, :])
