"""Gated positional self-attention on a GPU in Triton: the backward kernels.

Nothing is kept of the forward pass but lse, from which tiles of the map are computed again; shapes, constants and the
mathematics are those of `triton_kernels.py`. With D = ∂/∂A = ∂/∂out · valueᵀ:

    ∂/∂logits = (1 − g)·C·(D − Σ_r C D),  ∂/∂rows[i, y] = g·Σ_{b, j, x} columns[j, x]·D,  ∂/∂g = Σ (rows·columns − C)·D

and for the columns likewise. No sum is made by atomics: every number is written once, by one program, so two runs agree
in every bit. What is summed over programs, the small sums for rows, columns and gate, is left to PyTorch.
"""

import triton
import triton.language as tl

from tcnn.layers.triton.kernels import _block, _dot, _factor, _logits, _pixels, _positional, _tokens


@triton.jit
def _keep(matrix, block, top, left, height, width, stride, step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Writes a block of a matrix as `_factor` reads one."""
    pointers, inside = _block(matrix, top, left, height, width, stride, step, ROWS, COLUMNS)
    tl.store(pointers, block, mask=inside)


@triton.jit
def _factor_gradients(gradient, rows, columns):
    """The gradients of both factors, given that of `_positional`."""
    tile = tl.reshape(gradient, (rows.shape[0], columns.shape[0], rows.shape[1], columns.shape[1]))
    of_rows = tl.sum(tl.sum(tile * columns[None, :, None, :], axis=3), axis=1)
    of_columns = tl.sum(tl.sum(tile * rows[:, None, :, None], axis=2), axis=0)
    return of_rows, of_columns


@triton.jit
def backward_queries(
    query, key, value, rows, columns, gate, lse, gradient, expected, of_query, of_rows, of_columns,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, value_image, value_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What a tile of queries of a head of an image leaves when it has passed all keys once; for maps of several tiles.

    expected = Σ_r C D (B, K, M); of_query (B, M, K, d) = (1 − g)·scale·Σ_r C (D − expected) k_r, in which `expected` is
    taken out of the sum, because it is not known before the end; of_rows (B, K, tiles of queries, tiles of keys across,
    Q_ROWS, h) and of_columns (B, K, tiles of queries, Q_COLUMNS, w), sums over the tile yet without g.
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    down = tl.cdiv(height, K_ROWS)
    across = tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    tile = program % query_tiles
    head = program // query_tiles % heads
    image = (program // (query_tiles * heads)).to(tl.int64)
    queries, asking, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
    queries_here = out_height * out_width
    plane = image * heads + head
    key += image * key_image + head * key_head
    value += image * value_image
    rows += head * out_height * height
    columns += head * out_width * map_width
    gradient += image * queries_here * heads * channels + head * channels
    of_rows += (plane * query_tiles + tile) * across * Q_ROWS * height
    of_columns += (plane * query_tiles + tile) * Q_COLUMNS * map_width
    base = query + image * query_image + head * query_head
    q = _tokens(base, queries, asking, query_pixel, 0, width, WIDTH)
    log_sum = tl.load(lse + plane * queries_here + queries, mask=asking, other=0.0)

    mean = tl.zeros((Q_ROWS * Q_COLUMNS,), tl.float32)
    weighted = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C D k_r
    plain = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C k_r
    column_sums = tl.zeros((Q_COLUMNS, K_COLUMNS), tl.float32)
    for part in range(down * across):
        keys, seen, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
        of_map = tl.zeros((Q_ROWS * Q_COLUMNS, K_ROWS * K_COLUMNS), tl.float32)
        for first in range(0, channels, CHANNELS):
            upstream = _tokens(gradient, queries, asking, heads * channels, first, channels, CHANNELS)
            v = _tokens(value, keys, seen, value_pixel, first, channels, CHANNELS)
            of_map = _dot(upstream, tl.trans(v), of_map)
        row = _factor(rows, i, y, out_height, height, height, 1, Q_ROWS, K_ROWS)
        column = _factor(columns, j, x, out_width, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
        row_sums, more = _factor_gradients(of_map, row, column)
        column_sums = tl.where(y == 0, 0.0, column_sums) + more  # tiles come down the map, then the next column of them
        kept = of_rows + x // K_COLUMNS * Q_ROWS * height
        _keep(kept, row_sums, 0, y, Q_ROWS, height, height, 1, Q_ROWS, K_ROWS)
        if part % down == down - 1:
            _keep(of_columns, column_sums, 0, x, Q_COLUMNS, map_width, map_width, 1, Q_COLUMNS, K_COLUMNS)
        k = _tokens(key, keys, seen, key_pixel, 0, width, WIDTH)
        logits = _logits(q, k, scale)
        content = tl.where(seen[None, :], tl.exp2(logits - log_sum[:, None]), 0.0)
        moved = content * of_map
        mean += tl.sum(moved, axis=1)
        weighted = _dot(moved.to(k.dtype), k, weighted)
        plain = _dot(content.to(k.dtype), k, plain)
    tl.store(expected + plane * queries_here + queries, mean, mask=asking)
    share = (1 - tl.load(gate + head)) * scale
    c = tl.arange(0, WIDTH)
    here = of_query + image * queries_here * heads * width + head * width
    here += queries[:, None] * (heads * width) + c[None, :]
    found = (share * (weighted - mean[:, None] * plain)).to(query.dtype.element_ty)
    tl.store(here, found, mask=asking[:, None] & (c < width)[None, :])


@triton.jit
def backward_keys(
    query, key, value, rows, columns, gate, lse, gradient, expected, of_query, of_key, of_rows, of_columns,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, value_image, value_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """of_key (B, R, K, d) of a tile of keys of a head of an image, which all queries pass.

    With one tile of keys it sees whole rows of the map, and leaves all that `backward_queries` leaves, too; else
    `expected` is read. A tile of the map is transposed here, (keys, queries).
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    head = program // key_tiles % heads
    image = (program // (key_tiles * heads)).to(tl.int64)
    keys, seen, _y, _x = _pixels(program % key_tiles, height, map_width, K_ROWS, K_COLUMNS)
    queries_here = out_height * out_width
    plane = image * heads + head
    query += image * query_image + head * query_head
    value += image * value_image
    rows += head * out_height * height
    columns += head * out_width * map_width
    lse += plane * queries_here
    expected += plane * queries_here
    gradient += image * queries_here * heads * channels + head * channels
    of_query += image * queries_here * heads * width + head * width
    share = (1 - tl.load(gate + head)) * scale
    c = tl.arange(0, WIDTH)
    k = _tokens(key + image * key_image + head * key_head, keys, seen, key_pixel, 0, width, WIDTH)

    found = tl.zeros((K_ROWS * K_COLUMNS, WIDTH), tl.float32)
    for tile in range(query_tiles):
        queries, asking, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
        of_map = tl.zeros((K_ROWS * K_COLUMNS, Q_ROWS * Q_COLUMNS), tl.float32)
        for first in range(0, channels, CHANNELS):
            v = _tokens(value, keys, seen, value_pixel, first, channels, CHANNELS)
            upstream = _tokens(gradient, queries, asking, heads * channels, first, channels, CHANNELS)
            of_map = _dot(v, tl.trans(upstream), of_map)
        if WHOLE:
            row = _factor(rows, 0, i, height, out_height, 1, height, K_ROWS, Q_ROWS)
            column = _factor(columns, 0, j, map_width, out_width, 1, map_width, K_COLUMNS, Q_COLUMNS)
            row_sums, column_sums = _factor_gradients(of_map, row, column)
            kept = of_rows + (plane * query_tiles + tile) * Q_ROWS * height
            _keep(kept, row_sums, 0, 0, height, Q_ROWS, 1, height, K_ROWS, Q_ROWS)
            kept = of_columns + (plane * query_tiles + tile) * Q_COLUMNS * map_width
            _keep(kept, column_sums, 0, 0, map_width, Q_COLUMNS, 1, map_width, K_COLUMNS, Q_COLUMNS)
        q = _tokens(query, queries, asking, query_pixel, 0, width, WIDTH)
        log_sum = tl.load(lse + queries, mask=asking, other=0.0)
        logits = _logits(k, q, scale)
        content = tl.where(seen[:, None], tl.exp2(logits - log_sum[None, :]), 0.0)
        if WHOLE:
            mean = tl.sum(content * of_map, axis=0)
            tl.store(expected + queries, mean, mask=asking)
        else:
            mean = tl.load(expected + queries, mask=asking, other=0.0)
        of_logits = (share * content * (of_map - mean[None, :])).to(q.dtype)
        found = _dot(of_logits, q, found)
        if WHOLE:
            here = of_query + queries[:, None] * (heads * width) + c[None, :]
            moved = _dot(tl.trans(of_logits), k)
            tl.store(here, moved.to(q.dtype), mask=asking[:, None] & (c < width)[None, :])
    here = of_key + image * height * map_width * heads * width + head * width
    here += keys[:, None] * (heads * width) + c[None, :]
    tl.store(here, found.to(k.dtype), mask=seen[:, None] & (c < width)[None, :])


@triton.jit
def backward_values(
    query, key, value, rows, columns, gate, lse, gradient, of_value,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    heads, width, channels, out_height, out_width, height, map_width, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """of_value (B, R, C) = Σ over heads of Aᵀ ∂/∂out, a tile of keys and a step of channels of an image a program."""
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    steps = tl.cdiv(channels, CHANNELS)
    program = tl.program_id(0)
    first = program % steps * CHANNELS
    image = (program // (steps * key_tiles)).to(tl.int64)
    keys, seen, y, x = _pixels(program // steps % key_tiles, height, map_width, K_ROWS, K_COLUMNS)
    queries_here = out_height * out_width
    query += image * query_image
    key += image * key_image
    gradient += image * queries_here * heads * channels
    lse += image * heads * queries_here

    found = tl.zeros((K_ROWS * K_COLUMNS, CHANNELS), tl.float32)
    for head in range(heads):
        g = tl.load(gate + head)
        k = _tokens(key + head * key_head, keys, seen, key_pixel, 0, width, WIDTH)
        for tile in range(query_tiles):
            queries, asking, i, j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
            q = _tokens(query + head * query_head, queries, asking, query_pixel, 0, width, WIDTH)
            log_sum = tl.load(lse + head * queries_here + queries, mask=asking, other=0.0)
            upstream = _tokens(gradient + head * channels, queries, asking, heads * channels, first, channels, CHANNELS)
            logits = _logits(k, q, scale)
            content = tl.where(seen[:, None], tl.exp2(logits - log_sum[None, :]), 0.0)
            row = _factor(rows + head * out_height * height, y, i, height, out_height, 1, height, K_ROWS, Q_ROWS)
            column = _factor(
                columns + head * out_width * map_width, x, j, map_width, out_width, 1, map_width, K_COLUMNS, Q_COLUMNS
            )
            tile_of_map = (1 - g) * content + _positional(g * row, column)
            found = _dot(tile_of_map.to(upstream.dtype), upstream, found)
    c = first + tl.arange(0, CHANNELS)
    here = of_value + image * height * map_width * channels + keys[:, None] * channels + c[None, :]
    tl.store(here, found.to(value.dtype.element_ty), mask=seen[:, None] & (c < channels)[None, :])
