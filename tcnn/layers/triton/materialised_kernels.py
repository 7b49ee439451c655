"""Triton kernels of attention whose maps are materialised, once and in 16 bits: forward, backward, and of its factors.

The products of maps with values are the library's, which reach several times the rate of a kernel that keeps the map
in registers (`kernels.py`); what these kernels save is everything before: queries and keys are read as the projection
left them, logits are never written, and softmax, sinks, gate and positional attention cost one write of the map. Of the
forward pass lse is saved, from which content attention is computed again, tile by tile. The mathematics and the shapes
are those of `kernels.py`. Of the maps (B, M, K, R), a row takes `pitch` ≥ R numbers, what follows R is not written. Rows
and columns are those of the padded map, (K, Ho, H) and (K, Wo, W), on which the map of the keys begins at (top, left).
No sum is made by atomics: two runs agree in every bit.
"""

import triton
import triton.language as tl

from tcnn.layers.triton.kernels import _dot, _factor, _logits, _pixels, _positional, _tokens


@triton.jit
def _gate(gating, temperature, head, taps):
    """Gate σ(λ/τ) of a head; exactly 0 for a content head, of which there are no λ."""
    tap = head < taps
    raw = tl.load(gating + head, mask=tap, other=0.0).to(tl.float32)
    found = 1 / (1 + tl.exp(-raw / tl.load(temperature).to(tl.float32)))
    return tl.where(tap, found, 0.0)


@triton.jit
def forward(
    query, key, rows, columns, gating, temperature, maps, lse,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    heads, taps, width, out_height, out_width, height, map_width, padded_height, padded_width, top, left,
    pitch, sinks, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Maps (B, M, K, pitch) and lse (B, K, M); one program per tile of queries of a head of an image."""
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    head = program // query_tiles % heads
    image = (program // (query_tiles * heads)).to(tl.int64)
    queries, query_mask, i, j = _pixels(program % query_tiles, out_height, out_width, Q_ROWS, Q_COLUMNS)
    queries_here = out_height * out_width
    g = _gate(gating, temperature, head, taps)
    key += image * key_image + head * key_head
    rows += head * out_height * padded_height + top
    columns += head * out_width * padded_width + left
    q = _tokens(query + image * query_image + head * query_head, queries, query_mask, query_pixel, 0, width, WIDTH)
    place = maps + (image * queries_here + queries)[:, None] * (heads * pitch) + head * pitch

    # log(n + Σ exp): the keys of zeros are what the running sum begins with.
    largest = tl.full((Q_ROWS * Q_COLUMNS,), float("-inf"), tl.float32)
    largest = tl.where(sinks > 0, tl.zeros_like(largest), largest)
    total = tl.zeros_like(largest) + sinks
    if WHOLE:
        keys, key_mask, y, x = _pixels(0, height, map_width, K_ROWS, K_COLUMNS)
        logits = _logits(q, _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH), scale)
        logits = tl.where(key_mask[None, :], logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, axis=1))
        weights = tl.exp2(logits - new[:, None])
        total = total * tl.exp2(largest - new) + tl.sum(weights, axis=1)
        largest = new
        row = _factor(rows, i, 0, out_height, height, padded_height, 1, Q_ROWS, K_ROWS)
        column = _factor(columns, j, 0, out_width, map_width, padded_width, 1, Q_COLUMNS, K_COLUMNS)
        mixed = weights * ((1 - g) / total)[:, None] + _positional(g * row, column)
        inside = query_mask[:, None] & key_mask[None, :]
        tl.store(place + keys[None, :], mixed.to(maps.dtype.element_ty), mask=inside)
        log_sum = largest + tl.log2(total)
    else:
        for part in range(key_tiles):
            keys, key_mask, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
            logits = _logits(q, _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH), scale)
            logits = tl.where(key_mask[None, :], logits, float("-inf"))
            new = tl.maximum(largest, tl.max(logits, axis=1))
            total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(logits - new[:, None]), axis=1)
            largest = new
        log_sum = largest + tl.log2(total)
        for part in range(key_tiles):
            keys, key_mask, y, x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
            logits = _logits(q, _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH), scale)
            row = _factor(rows, i, y, out_height, height, padded_height, 1, Q_ROWS, K_ROWS)
            column = _factor(columns, j, x, out_width, map_width, padded_width, 1, Q_COLUMNS, K_COLUMNS)
            mixed = (1 - g) * tl.exp2(logits - log_sum[:, None]) + _positional(g * row, column)
            inside = query_mask[:, None] & key_mask[None, :]
            tl.store(place + keys[None, :], mixed.to(maps.dtype.element_ty), mask=inside)
    tl.store(lse + (image * heads + head) * queries_here + queries, log_sum, mask=query_mask)


@triton.jit
def backward_queries(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grad_query,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, grad_image, grad_pixel,
    heads, taps, width, out_height, out_width, height, map_width, pitch, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of one tile of queries over all keys, for maps of several tiles of keys.

    Writes expected = Σ_r C D (B, K, M), its sum over the tile (B, K, tiles), and grad_query (1 − g)·scale·Σ_r C (D −
    expected) k_r, in which `expected` is taken out of the sum, because it is not known before the end.
    """
    query_tiles = tl.cdiv(out_height, Q_ROWS) * tl.cdiv(out_width, Q_COLUMNS)
    key_tiles = tl.cdiv(height, K_ROWS) * tl.cdiv(map_width, K_COLUMNS)
    program = tl.program_id(0)
    head = program // query_tiles % heads
    image = (program // (query_tiles * heads)).to(tl.int64)
    queries, query_mask, _i, _j = _pixels(program % query_tiles, out_height, out_width, Q_ROWS, Q_COLUMNS)
    queries_here = out_height * out_width
    plane = image * heads + head
    key += image * key_image + head * key_head
    q = _tokens(query + image * query_image + head * query_head, queries, query_mask, query_pixel, 0, width, WIDTH)
    log_sum = tl.load(lse + plane * queries_here + queries, mask=query_mask, other=0.0)
    place = grad_maps + (image * queries_here + queries)[:, None] * (heads * pitch) + head * pitch

    mean = tl.zeros((Q_ROWS * Q_COLUMNS,), tl.float32)
    weighted = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C D k_r
    plain = tl.zeros((Q_ROWS * Q_COLUMNS, WIDTH), tl.float32)  # Σ_r C k_r
    for part in range(key_tiles):
        keys, key_mask, _y, _x = _pixels(part, height, map_width, K_ROWS, K_COLUMNS)
        inside = query_mask[:, None] & key_mask[None, :]
        k = _tokens(key, keys, key_mask, key_pixel, 0, width, WIDTH)
        content = tl.where(inside, tl.exp2(_logits(q, k, scale) - log_sum[:, None]), 0.0)
        moved = content * tl.load(place + keys[None, :], mask=inside, other=0.0).to(tl.float32)
        mean += tl.sum(moved, axis=1)
        weighted = _dot(moved.to(k.dtype), k, weighted)
        plain = _dot(content.to(k.dtype), k, plain)
    tl.store(expected + plane * queries_here + queries, mean, mask=query_mask)
    tl.store(sums + program, tl.sum(mean, axis=0))
    share = (1 - _gate(gating, temperature, head, taps)) * scale
    c = tl.arange(0, WIDTH)
    here = grad_query + image * grad_image + head * width + queries[:, None] * grad_pixel + c[None, :]
    found = (share * (weighted - mean[:, None] * plain)).to(grad_query.dtype.element_ty)
    tl.store(here, found, mask=query_mask[:, None] & (c < width)[None, :])


@triton.jit
def backward_keys(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grad_query, grad_key,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    grad_query_image, grad_query_pixel, grad_key_image, grad_key_pixel,
    heads, taps, width, out_height, out_width, height, map_width, pitch, scale,
    Q_ROWS: tl.constexpr, Q_COLUMNS: tl.constexpr, K_ROWS: tl.constexpr, K_COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Of one tile of keys over all queries: grad_key.

    With one tile of keys it has whole rows of the map, and writes what `backward_queries` writes, too, a sum for each
    head of an image; else `expected` is read. A tile of the map is transposed here, (keys, queries).
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
    lse += plane * queries_here
    expected += plane * queries_here
    grad_maps += image * queries_here * heads * pitch + head * pitch
    grad_query += image * grad_query_image + head * width
    share = (1 - _gate(gating, temperature, head, taps)) * scale
    c = tl.arange(0, WIDTH)
    k = _tokens(key + image * key_image + head * key_head, keys, key_mask, key_pixel, 0, width, WIDTH)

    found = tl.zeros((K_ROWS * K_COLUMNS, WIDTH), tl.float32)
    means = tl.zeros((Q_ROWS * Q_COLUMNS,), tl.float32)
    for tile in range(query_tiles):
        queries, query_mask, _i, _j = _pixels(tile, out_height, out_width, Q_ROWS, Q_COLUMNS)
        inside = key_mask[:, None] & query_mask[None, :]
        q = _tokens(query, queries, query_mask, query_pixel, 0, width, WIDTH)
        log_sum = tl.load(lse + queries, mask=query_mask, other=0.0)
        content = tl.where(inside, tl.exp2(_logits(k, q, scale) - log_sum[None, :]), 0.0)
        upstream = tl.load(grad_maps + keys[:, None] + queries[None, :] * (heads * pitch), mask=inside, other=0.0)
        upstream = upstream.to(tl.float32)
        if WHOLE:
            mean = tl.sum(content * upstream, axis=0)
            means += mean
        else:
            mean = tl.load(expected + queries, mask=query_mask, other=0.0)
        grad_logits = (share * content * (upstream - mean[None, :])).to(q.dtype)
        found = _dot(grad_logits, q, found)
        if WHOLE:
            here = grad_query + queries[:, None] * grad_query_pixel + c[None, :]
            moved = _dot(tl.trans(grad_logits), k)
            tl.store(here, moved.to(grad_query.dtype.element_ty), mask=query_mask[:, None] & (c < width)[None, :])
    if WHOLE:
        tl.store(sums + plane, tl.sum(means, axis=0))
    here = grad_key + image * grad_key_image + head * width + keys[:, None] * grad_key_pixel + c[None, :]
    tl.store(here, found.to(grad_key.dtype.element_ty), mask=key_mask[:, None] & (c < width)[None, :])


@triton.jit
def factors_of_queries(
    grad_maps, rows, columns, row_parts, column_parts, gate_parts,
    images, heads, out_height, out_width, height, map_width, padded_height, padded_width, top, left, pitch,
    IMAGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of one query of a head, over all images and keys: Σ columns·D (K, M, h), Σ rows·D (K, M, w), Σ rows·columns·D."""
    queries_here = out_height * out_width
    program = tl.program_id(0)  # head · M + query
    head, m = program // queries_here, program % queries_here
    y, x, b = tl.arange(0, ROWS), tl.arange(0, COLUMNS), tl.arange(0, IMAGES).to(tl.int64)
    inside = (y < height)[:, None] & (x < map_width)[None, :]
    place = grad_maps + (m * heads + head) * pitch + (y * map_width)[None, :, None] + x[None, None, :]
    sums = tl.zeros((IMAGES, ROWS, COLUMNS), tl.float32)
    for first in range(0, images, IMAGES):
        here = ((first + b) < images)[:, None, None] & inside[None, :, :]
        sums += tl.load(place + (first + b)[:, None, None] * queries_here * heads * pitch, mask=here, other=0.0).to(
            tl.float32
        )
    total = tl.sum(sums, axis=0)
    row = tl.load(rows + (head * out_height + m // out_width) * padded_height + top + y, mask=y < height, other=0.0)
    column = tl.load(
        columns + (head * out_width + m % out_width) * padded_width + left + x, mask=x < map_width, other=0.0
    )
    by_row = tl.sum(total * column[None, :], axis=1)
    tl.store(row_parts + program * height + y, by_row, mask=y < height)
    tl.store(column_parts + program * map_width + x, tl.sum(total * row[:, None], axis=0), mask=x < map_width)
    tl.store(gate_parts + program, tl.sum(by_row * row, axis=0))


@triton.jit
def _summed(
    parts, out, first, outer, inner, size, before, padded, outer_step, inner_step, weight,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[o, before + n] = weight · Σ_i parts[o, i, n], for TILE of the outer numbers o; 0 where there is no n."""
    o, at = first + tl.arange(0, TILE), tl.arange(0, BLOCK)
    n = at - before
    inside = (o < outer)[:, None] & ((n >= 0) & (n < size))[None, :]
    total = tl.zeros((TILE, BLOCK), tl.float32)
    for i in range(inner):
        total += tl.load(parts + i * inner_step + o[:, None] * outer_step + n[None, :], mask=inside, other=0.0)
    tl.store(
        out + o[:, None] * padded + at[None, :], weight * total, mask=(o < outer)[:, None] & (at < padded)[None, :]
    )


@triton.jit
def factors(
    gating, temperature, row_parts, column_parts, gate_parts, sums, grad_rows, grad_columns, grad_gating,
    heads, taps, images, tiles, out_height, out_width, height, map_width, padded_height, padded_width, top, left,
    TILE: tl.constexpr, BLOCK: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """Gradients of rows (K, Ho, H), columns (K, Wo, W) and λ (P,), from what `factors_of_queries` has summed.

    `sums` are those of Σ_r C D, (B, K, tiles). Programs: (K, tiles of the rows, of the columns, and one for the gate).
    """
    head, part = tl.program_id(0), tl.program_id(1)
    queries_here = out_height * out_width
    down = tl.cdiv(out_height, TILE)
    across = tl.cdiv(out_width, TILE)
    g = _gate(gating, temperature, head, taps)
    if part < down:
        _summed(
            row_parts + head * queries_here * height, grad_rows + head * out_height * padded_height, part * TILE,
            out_height, out_width, height, top, padded_height, out_width * height, height, g, TILE, BLOCK,
        )  # fmt: skip
    elif part < down + across:
        _summed(
            column_parts + head * queries_here * map_width, grad_columns + head * out_width * padded_width,
            (part - down) * TILE, out_width, out_height, map_width, left, padded_width, map_width,
            out_width * map_width, g, TILE, BLOCK,
        )  # fmt: skip
    else:
        n = tl.arange(0, NUMBERS)
        total = tl.zeros((NUMBERS,), tl.float32)
        for first in range(0, queries_here, NUMBERS):
            m = first + n
            total += tl.load(gate_parts + head * queries_here + m, mask=m < queries_here, other=0.0)
        for first in range(0, images * tiles, NUMBERS):
            m = first + n
            place = (m // tiles * heads + head) * tiles + m % tiles
            total -= tl.load(sums + place, mask=m < images * tiles, other=0.0)
        found = tl.sum(total, axis=0) * g * (1 - g) / tl.load(temperature).to(tl.float32)
        tl.store(grad_gating + head, found.to(grad_gating.dtype.element_ty), mask=head < taps)
