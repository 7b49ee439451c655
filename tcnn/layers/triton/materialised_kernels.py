"""Triton kernels of attention whose maps are materialised, once and in 16 bits: forward and backward.

The products of maps with values are the library's, which reach several times the rate of a kernel that keeps the map
in registers (`kernels.py`); what these kernels save is everything before: queries and keys are read as the projection
left them, logits are never written, and softmax, sinks and gate cost one write of the map. Of the forward pass lse is
saved, from which content attention is computed again, tile by tile. The mathematics and the shapes are those of
`kernels.py`, but queries and keys are taken in the order of the map, so that a thread loads and stores eight numbers at
a time: of a map (M, R) a row takes `pitch` numbers, a multiple of 16, those after R are 0. Positional attention, times
its gate, is a table (M, K, pitch) (`isotropic_kernels.py`), which all images share and the second-level cache holds;
images are what neighbouring programs differ in. The width of a head is a constant, or masks would undo the eight
numbers.

No sum is made by atomics: two runs agree in every bit.
"""

import triton
import triton.language as tl

from tcnn.layers.triton.isotropic_kernels import gate_of
from tcnn.layers.triton.kernels import _dot, _logits


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
def forward(
    query, key, table, gating, temperature, maps, lse,
    query_image, query_pixel, key_image, key_pixel,
    images, heads, taps, queries_here, keys_here, pitch, steps, sinks,
    SCALE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Maps (B, M, K, pitch) and lse (B, K, M); one program per `steps` tiles of queries of a head of an image."""
    program = tl.program_id(0)
    image = (program % images).to(tl.int64)
    head = program // images % heads
    begin = program // (images * heads) * steps * QUERIES
    g = gate_of(gating, temperature, head, taps)
    query += image * query_image + head * HEAD
    key += image * key_image + head * HEAD
    table += head * pitch
    maps += image * queries_here * heads * pitch + head * pitch
    lse += (image * heads + head) * queries_here
    r = tl.arange(0, KEYS)
    if WHOLE:
        k = _vectors(key, r, r < keys_here, key_pixel, HEAD, WIDTH)
    for first_query in range(begin, tl.minimum(begin + steps * QUERIES, queries_here), QUERIES):
        m = first_query + tl.arange(0, QUERIES)
        asked = m < queries_here
        q = _vectors(query, m, asked, query_pixel, HEAD, WIDTH)
        row = m.to(tl.int64)[:, None] * (heads * pitch)
        # log(n + Σ exp): the keys of zeros are what the running sum begins with.
        largest = tl.full((QUERIES,), float("-inf"), tl.float32)
        largest = tl.where(sinks > 0, tl.zeros_like(largest), largest)
        total = tl.zeros_like(largest) + sinks
        if WHOLE:
            here = asked[:, None] & (r < pitch)[None, :]
            positional = tl.load(table + row + r[None, :], mask=here, other=0.0).to(tl.float32)
            logits = tl.where((r < keys_here)[None, :], _logits(q, k, SCALE), float("-inf"))
            new = tl.maximum(largest, tl.max(logits, axis=1))
            weights = tl.exp2(logits - new[:, None])
            total = total * tl.exp2(largest - new) + tl.sum(weights, axis=1)
            mixed = weights * ((1 - g) / total)[:, None] + positional
            tl.store(maps + row + r[None, :], mixed.to(maps.dtype.element_ty), mask=here)
            log_sum = new + tl.log2(total)
        else:
            for first in range(0, keys_here, KEYS):
                inside = first + r < keys_here
                logits = _logits(q, _vectors(key, first + r, inside, key_pixel, HEAD, WIDTH), SCALE)
                logits = tl.where(inside[None, :], logits, float("-inf"))
                new = tl.maximum(largest, tl.max(logits, axis=1))
                total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(logits - new[:, None]), axis=1)
                largest = new
            log_sum = largest + tl.log2(total)
            for first in range(0, pitch, KEYS):
                inside = first + r < keys_here
                logits = _logits(q, _vectors(key, first + r, inside, key_pixel, HEAD, WIDTH), SCALE)
                content = tl.where(inside[None, :], tl.exp2(logits - log_sum[:, None]), 0.0)
                here = asked[:, None] & (first + r < pitch)[None, :]
                positional = tl.load(table + row + (first + r)[None, :], mask=here, other=0.0).to(tl.float32)
                mixed = (1 - g) * content + positional
                tl.store(maps + row + (first + r)[None, :], mixed.to(maps.dtype.element_ty), mask=here)
        tl.store(lse + m, log_sum, mask=asked)


@triton.jit
def backward_queries(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grads,
    query_image, query_pixel, key_image, key_pixel, grad_image, grad_pixel,
    heads, taps, queries_here, keys_here, query_rows, pitch,
    SCALE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Of one tile of queries over all keys, for maps of several tiles of keys.

    Writes expected = Σ_r C D (B, K, M), its sum over the tile (B, K, tiles), and grad_query (1 − g)·scale·Σ_r C (D −
    expected) k_r, in which `expected` is taken out of the sum, because it is not known before the end. Of grad_query,
    with which `grads` begins, there are `query_rows`, of which those after the queries are 0.
    """
    tiles = tl.cdiv(queries_here, QUERIES)
    program = tl.program_id(0)
    head = program // tiles % heads
    image = (program // (tiles * heads)).to(tl.int64)
    m = program % tiles * QUERIES + tl.arange(0, QUERIES)
    asked = m < queries_here
    plane = image * heads + head
    key += image * key_image + head * HEAD
    q = _vectors(query + image * query_image + head * HEAD, m, asked, query_pixel, HEAD, WIDTH)
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
        content = tl.where(inside, tl.exp2(_logits(q, k, SCALE) - log_sum[:, None]), 0.0)
        moved = tl.where(inside, content * upstream, 0.0)
        mean += tl.sum(moved, axis=1)
        weighted = _dot(moved.to(k.dtype), k, weighted)
        plain = _dot(content.to(k.dtype), k, plain)
    tl.store(expected + plane * queries_here + m, mean, mask=asked)
    tl.store(sums + program, tl.sum(mean, axis=0))
    share = (1 - gate_of(gating, temperature, head, taps)) * SCALE
    here = grads + image * grad_image + head * HEAD
    _store_vectors(here, share * (weighted - mean[:, None] * plain), m, m < query_rows, grad_pixel, HEAD, WIDTH)


@triton.jit
def backward_keys(
    query, key, gating, temperature, grad_maps, lse, expected, sums, grads,
    query_image, query_pixel, key_image, key_pixel,
    grad_query_image, grad_query_pixel, grad_key_image, grad_key_pixel, first_key,
    heads, taps, queries_here, keys_here, query_rows, pitch,
    SCALE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Of one tile of keys over all queries: grad_key, which begins `first_key` numbers into `grads`, a multiple of 8.

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
    query += image * query_image + head * HEAD
    lse += plane * queries_here
    expected += plane * queries_here
    grad_maps += image * queries_here * heads * pitch + head * pitch
    grad_query = grads + image * grad_query_image + head * HEAD
    share = (1 - gate_of(gating, temperature, head, taps)) * SCALE
    k = _vectors(key + image * key_image + head * HEAD, r, seen, key_pixel, HEAD, WIDTH)

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
        content = tl.where(inside, tl.exp2(_logits(k, q, SCALE) - log_sum[None, :]), 0.0)
        if WHOLE:
            mean = tl.sum(content * upstream, axis=0)
            means += mean
        else:
            mean = tl.load(expected + m, mask=asked, other=0.0)
        grad_logits = (share * content * (upstream - mean[None, :])).to(q.dtype)
        found = _dot(grad_logits, q, found)
        if WHOLE:
            moved = _dot(tl.trans(grad_logits), k)
            _store_vectors(grad_query, moved, m, m < query_rows, grad_query_pixel, HEAD, WIDTH)
    if WHOLE:
        tl.store(sums + plane, tl.sum(means, axis=0))
    # As a product with 8, by which the compiler knows that eight numbers may be stored at a time.
    grad_key = grads + first_key // 8 * 8 + image * grad_key_image + head * HEAD
    _store_vectors(grad_key, found, r, r < pitch, grad_key_pixel, HEAD, WIDTH)
