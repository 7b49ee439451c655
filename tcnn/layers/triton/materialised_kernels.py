"""Triton kernels of attention whose maps are materialised, once and in 16 bits: forward, backward, and of its factors.

The products of maps with values are the library's, which reach several times the rate of a kernel that keeps the map
in registers (`kernels.py`); what these kernels save is everything before: queries and keys are read as the projection
left them, logits are never written, and softmax, sinks and gate cost one write of the map. Of the forward pass lse is
saved, from which content attention is computed again, tile by tile. The mathematics and the shapes are those of
`kernels.py`, but queries and keys are taken in the order of the map, so that a thread loads and stores eight numbers at
a time: of a map (M, R) a row takes `pitch` numbers, a multiple of 16, those after R are 0. For that the positional
attention, times its gate, is a table (M, K, pitch), which all images share and the second-level cache holds; images are
what neighbouring programs differ in. The width of a head is a constant, or masks would undo the eight numbers.

No sum is made by atomics: two runs agree in every bit.
"""

import triton
import triton.language as tl

from tcnn.layers.triton.kernels import _dot, _logits


@triton.jit
def _gate(gating, temperature, head, taps):
    """Gate σ(λ/τ) of a head; exactly 0 for a content head, of which there are no λ."""
    tap = head < taps
    raw = tl.load(gating + head, mask=tap, other=0.0).to(tl.float32)
    found = 1 / (1 + tl.exp(-raw / tl.load(temperature).to(tl.float32)))
    return tl.where(tap, found, 0.0)


@triton.jit
def _vectors(tokens, pixels, inside, stride, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    """Load the queries or keys of these pixels, (pixels, WIDTH); 0 outside."""
    c = tl.arange(0, WIDTH)
    mask = inside[:, None] & (c < HEAD)[None, :]
    return tl.load(tokens + pixels[:, None] * stride + c[None, :], mask=mask, other=0.0)


@triton.jit
def _store_vectors(tokens, found, pixels, inside, stride, HEAD: tl.constexpr, WIDTH: tl.constexpr):
    """Store them."""
    c = tl.arange(0, WIDTH)
    mask = inside[:, None] & (c < HEAD)[None, :]
    tl.store(tokens + pixels[:, None] * stride + c[None, :], found.to(tokens.dtype.element_ty), mask=mask)


@triton.jit
def positional(
    rows, columns, gating, temperature, table,
    heads, taps, out_width, height, width, out_height, padded_height, padded_width, top, left, pitch,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gated positional attention g·rows·columns, (M, K, pitch); one program per query of a head."""
    program = tl.program_id(0)  # query · K + head
    head, m = program % heads, program // heads
    g = _gate(gating, temperature, head, taps)
    rows += (head * out_height + m // out_width) * padded_height + top
    columns += (head * out_width + m % out_width) * padded_width + left
    for first in range(0, pitch, BLOCK):
        r = first + tl.arange(0, BLOCK)
        inside = r < height * width
        row = tl.load(rows + r // width, mask=inside, other=0.0)
        column = tl.load(columns + r % width, mask=inside, other=0.0)
        tl.store(table + program.to(tl.int64) * pitch + r, g * row * column, mask=r < pitch)


@triton.jit
def forward(
    query, key, table, gating, temperature, maps, lse,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    images, heads, taps, queries_here, keys_here, pitch, sinks, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Maps (B, M, K, pitch) and lse (B, K, M); one program per tile of queries of a head of an image."""
    program = tl.program_id(0)
    image = (program % images).to(tl.int64)
    head = program // images % heads
    m = program // (images * heads) * QUERIES + tl.arange(0, QUERIES)
    asked = m < queries_here
    g = _gate(gating, temperature, head, taps)
    key += image * key_image + head * key_head
    q = _vectors(query + image * query_image + head * query_head, m, asked, query_pixel, HEAD, WIDTH)
    of_table = table + (m.to(tl.int64)[:, None] * heads + head) * pitch
    place = maps + ((image * queries_here + m)[:, None] * heads + head) * pitch

    # log(n + Σ exp): the keys of zeros are what the running sum begins with.
    largest = tl.full((QUERIES,), float("-inf"), tl.float32)
    largest = tl.where(sinks > 0, tl.zeros_like(largest), largest)
    total = tl.zeros_like(largest) + sinks
    if WHOLE:
        r = tl.arange(0, KEYS)
        logits = _logits(q, _vectors(key, r, r < keys_here, key_pixel, HEAD, WIDTH), scale)
        logits = tl.where((r < keys_here)[None, :], logits, float("-inf"))
        new = tl.maximum(largest, tl.max(logits, axis=1))
        weights = tl.exp2(logits - new[:, None])
        total = total * tl.exp2(largest - new) + tl.sum(weights, axis=1)
        here = asked[:, None] & (r < pitch)[None, :]
        mixed = weights * ((1 - g) / total)[:, None] + tl.load(of_table + r[None, :], mask=here, other=0.0)
        tl.store(place + r[None, :], mixed.to(maps.dtype.element_ty), mask=here)
        log_sum = new + tl.log2(total)
    else:
        for first in range(0, keys_here, KEYS):
            r = first + tl.arange(0, KEYS)
            logits = _logits(q, _vectors(key, r, r < keys_here, key_pixel, HEAD, WIDTH), scale)
            logits = tl.where((r < keys_here)[None, :], logits, float("-inf"))
            new = tl.maximum(largest, tl.max(logits, axis=1))
            total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(logits - new[:, None]), axis=1)
            largest = new
        log_sum = largest + tl.log2(total)
        for first in range(0, pitch, KEYS):
            r = first + tl.arange(0, KEYS)
            logits = _logits(q, _vectors(key, r, r < keys_here, key_pixel, HEAD, WIDTH), scale)
            content = tl.where((r < keys_here)[None, :], tl.exp2(logits - log_sum[:, None]), 0.0)
            here = asked[:, None] & (r < pitch)[None, :]
            mixed = (1 - g) * content + tl.load(of_table + r[None, :], mask=here, other=0.0)
            tl.store(place + r[None, :], mixed.to(maps.dtype.element_ty), mask=here)
    tl.store(lse + (image * heads + head) * queries_here + m, log_sum, mask=asked)


@triton.jit
def backward_queries(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grad_query,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel, grad_image, grad_pixel,
    heads, taps, queries_here, keys_here, pitch, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of one tile of queries over all keys, for maps of several tiles of keys.

    Writes expected = Σ_r C D (B, K, M), its sum over the tile (B, K, tiles), and grad_query (1 − g)·scale·Σ_r C (D −
    expected) k_r, in which `expected` is taken out of the sum, because it is not known before the end.
    """
    tiles = tl.cdiv(queries_here, QUERIES)
    program = tl.program_id(0)
    head = program // tiles % heads
    image = (program // (tiles * heads)).to(tl.int64)
    m = program % tiles * QUERIES + tl.arange(0, QUERIES)
    asked = m < queries_here
    plane = image * heads + head
    key += image * key_image + head * key_head
    q = _vectors(query + image * query_image + head * query_head, m, asked, query_pixel, HEAD, WIDTH)
    log_sum = tl.load(lse + plane * queries_here + m, mask=asked, other=0.0)
    place = grad_maps + ((image * queries_here + m)[:, None] * heads + head) * pitch

    mean = tl.zeros((QUERIES,), tl.float32)
    weighted = tl.zeros((QUERIES, WIDTH), tl.float32)  # Σ_r C D k_r
    plain = tl.zeros((QUERIES, WIDTH), tl.float32)  # Σ_r C k_r
    for first in range(0, keys_here, KEYS):
        r = first + tl.arange(0, KEYS)
        inside = asked[:, None] & (r < keys_here)[None, :]
        k = _vectors(key, r, r < keys_here, key_pixel, HEAD, WIDTH)
        upstream = tl.load(place + r[None, :], mask=asked[:, None] & (r < pitch)[None, :], other=0.0).to(tl.float32)
        content = tl.where(inside, tl.exp2(_logits(q, k, scale) - log_sum[:, None]), 0.0)
        moved = tl.where(inside, content * upstream, 0.0)
        mean += tl.sum(moved, axis=1)
        weighted = _dot(moved.to(k.dtype), k, weighted)
        plain = _dot(content.to(k.dtype), k, plain)
    tl.store(expected + plane * queries_here + m, mean, mask=asked)
    tl.store(sums + program, tl.sum(mean, axis=0))
    share = (1 - _gate(gating, temperature, head, taps)) * scale
    here = grad_query + image * grad_image + head * HEAD
    _store_vectors(here, share * (weighted - mean[:, None] * plain), m, asked, grad_pixel, HEAD, WIDTH)


@triton.jit
def backward_keys(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grad_query, grad_key,
    query_image, query_head, query_pixel, key_image, key_head, key_pixel,
    grad_query_image, grad_query_pixel, grad_key_image, grad_key_pixel,
    heads, taps, queries_here, keys_here, pitch, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Of one tile of keys over all queries: grad_key.

    With one tile of keys it has whole rows of the map, and writes what `backward_queries` writes, too, a sum for each
    head of an image; else `expected` is read. A tile of the map is transposed here, (keys, queries).
    """
    tiles = tl.cdiv(keys_here, KEYS)
    program = tl.program_id(0)
    head = program // tiles % heads
    image = (program // (tiles * heads)).to(tl.int64)
    r = program % tiles * KEYS + tl.arange(0, KEYS)
    seen = r < keys_here
    plane = image * heads + head
    query += image * query_image + head * query_head
    lse += plane * queries_here
    expected += plane * queries_here
    grad_maps += image * queries_here * heads * pitch + head * pitch
    grad_query += image * grad_query_image + head * HEAD
    share = (1 - _gate(gating, temperature, head, taps)) * scale
    k = _vectors(key + image * key_image + head * key_head, r, seen, key_pixel, HEAD, WIDTH)

    found = tl.zeros((KEYS, WIDTH), tl.float32)
    means = tl.zeros((QUERIES,), tl.float32)
    for first in range(0, queries_here, QUERIES):
        m = first + tl.arange(0, QUERIES)
        asked = m < queries_here
        inside = seen[:, None] & asked[None, :]
        q = _vectors(query, m, asked, query_pixel, HEAD, WIDTH)
        log_sum = tl.load(lse + m, mask=asked, other=0.0)
        upstream = tl.load(
            grad_maps + m[None, :] * (heads * pitch) + r[:, None], mask=(r < pitch)[:, None] & asked[None, :], other=0.0
        )
        upstream = tl.where(inside, upstream.to(tl.float32), 0.0)
        content = tl.where(inside, tl.exp2(_logits(k, q, scale) - log_sum[None, :]), 0.0)
        if WHOLE:
            mean = tl.sum(content * upstream, axis=0)
            means += mean
        else:
            mean = tl.load(expected + m, mask=asked, other=0.0)
        grad_logits = (share * content * (upstream - mean[None, :])).to(q.dtype)
        found = _dot(grad_logits, q, found)
        if WHOLE:
            moved = _dot(tl.trans(grad_logits), k)
            _store_vectors(grad_query, moved, m, asked, grad_query_pixel, HEAD, WIDTH)
    if WHOLE:
        tl.store(sums + plane, tl.sum(means, axis=0))
    _store_vectors(
        grad_key + image * grad_key_image + head * HEAD, found, r, seen, grad_key_pixel, HEAD, WIDTH
    )  # fmt: skip


@triton.jit
def factors_of_queries(
    grad_table, rows, columns, row_parts, column_parts, gate_parts,
    heads, out_height, out_width, height, width, padded_height, padded_width, top, left, pitch,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Of one query of a head, from D summed over images (M, K, pitch): Σ columns·D (K, M, h), Σ rows·D (K, M, w), and
    Σ rows·columns·D (K, M)."""
    queries_here = out_height * out_width
    program = tl.program_id(0)  # head · M + query
    head, m = program // queries_here, program % queries_here
    y, x = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (y < height)[:, None] & (x < width)[None, :]
    place = grad_table + (m * heads + head).to(tl.int64) * pitch + (y * width)[:, None] + x[None, :]
    total = tl.load(place, mask=inside, other=0.0)
    row = tl.load(rows + (head * out_height + m // out_width) * padded_height + top + y, mask=y < height, other=0.0)
    column = tl.load(columns + (head * out_width + m % out_width) * padded_width + left + x, mask=x < width, other=0.0)
    by_row = tl.sum(total * column[None, :], axis=1)
    tl.store(row_parts + program * height + y, by_row, mask=y < height)
    tl.store(column_parts + program * width + x, tl.sum(total * row[:, None], axis=0), mask=x < width)
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
    here = (o < outer)[:, None] & (at < padded)[None, :]
    tl.store(out + o[:, None] * padded + at[None, :], weight * total, mask=here)


@triton.jit
def factors(
    gating, temperature, row_parts, column_parts, gate_parts, sums, grad_rows, grad_columns, grad_gating,
    heads, taps, images, tiles, out_height, out_width, height, width, padded_height, padded_width, top, left,
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
            column_parts + head * queries_here * width, grad_columns + head * out_width * padded_width,
            (part - down) * TILE, out_width, out_height, width, left, padded_width, width,
            out_width * width, g, TILE, BLOCK,
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
