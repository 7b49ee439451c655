"""Triton kernels between logits and attention maps: softmax and gating in one pass over memory, and its backward pass.

For head h, query m and key r, with content attention C = softmax_r(logits) and gated positional attention P,

    A[m, r] = P[m, r] + s·C[m, r],   ∂/∂logits = s·C·(D − Σ_r C D),   D = ∂/∂A.

Matrix products before and behind are the library's, which reach several times the rate of a kernel that keeps the map
in registers (`kernels.py`), where a map of bfloat16 is no larger than the values that it mixes. Plain operations read
and write a map of float32 a dozen times; these kernels read it once and write it once, in 16 bits.

Shapes: B images, K heads, M queries, R keys and the sinks behind them R', which is what a row of a map holds. Logits
are (B, K, M, R'), maps (B, M, K, R').
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
"""Of a program: 32 registers of float32 in each of 128 threads, for each of the two or three rows of numbers it has."""


@triton.jit
def _content(logits, row, r, here, pixels, keys, sink):
    """Content attention of some rows of logits; every sink has the same logit, whatever is stored."""
    found = tl.load(logits + row[:, None] * keys + r[None, :], mask=here, other=0.0).to(tl.float32)
    found = tl.where((r < pixels)[None, :], found, tl.where((r < keys)[None, :], sink, float("-inf")))
    weights = tl.exp(found - tl.max(found, axis=1)[:, None])
    return weights / tl.sum(weights, axis=1)[:, None]


@triton.jit
def _rows(heads, queries, ROWS: tl.constexpr):
    """Of a program: the image, the head, and the queries."""
    program = tl.program_id(0)
    blocks = tl.cdiv(queries, ROWS)
    image = (program // (blocks * heads)).to(tl.int64)
    return image, program // blocks % heads, program % blocks * ROWS + tl.arange(0, ROWS)


@triton.jit
def forward(
    logits, gated, share, maps, heads, queries, keys, pixels, sink, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Maps (B, M, K, R') of logits (B, K, M, R'), gated positional attention (M, K, R') and shares (K,)."""
    image, head, m = _rows(heads, queries, ROWS)
    r = tl.arange(0, BLOCK)
    here = (m < queries)[:, None] & (r < keys)[None, :]
    content = _content(logits, (image * heads + head) * queries + m, r, here, pixels, keys, sink)
    place = (m * heads + head).to(tl.int64)  # 49 heads over a map of 90×90 have more than 2³¹ weights
    positional = tl.load(gated + place[:, None] * keys + r[None, :], mask=here, other=0.0)
    mixed = positional + tl.load(share + head) * content
    row = (image * queries + m) * heads + head
    tl.store(maps + row[:, None] * keys + r[None, :], mixed.to(maps.dtype.element_ty), mask=here)


@triton.jit
def backward(
    logits, share, grad_maps, grad_logits, sums, heads, queries, keys, pixels, sink,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradient of the logits (B, K, M, R'), 0 at the sinks, and Σ_r C D (B, K, M), of that of the maps."""
    image, head, m = _rows(heads, queries, ROWS)
    r = tl.arange(0, BLOCK)
    here = (m < queries)[:, None] & (r < keys)[None, :]
    plane = (image * heads + head) * queries + m
    content = _content(logits, plane, r, here, pixels, keys, sink)
    row = (image * queries + m) * heads + head
    upstream = tl.load(grad_maps + row[:, None] * keys + r[None, :], mask=here, other=0.0).to(tl.float32)
    moved = content * upstream
    total = tl.sum(moved, axis=1)
    tl.store(sums + plane, total, mask=m < queries)
    found = tl.load(share + head) * (moved - content * total[:, None])
    found = tl.where((r < pixels)[None, :], found, 0.0)
    tl.store(grad_logits + plane[:, None] * keys + r[None, :], found.to(grad_logits.dtype.element_ty), mask=here)


def maps_of(logits: Tensor, gated: Tensor, share: Tensor, pixels: int, sink: float, dtype: torch.dtype) -> Tensor:
    """Attention maps (B, M, K, R') of a dtype.

    Args:
        logits: (B, K, M, R'), contiguous. gated: (M, K, R'), float32, contiguous. share: 1 − g, (K,), float32.
        pixels: keys that are no sinks, R.
        sink: logit of each of the others.
    """
    images, heads, queries, keys = logits.shape
    maps = logits.new_empty(images, queries, heads, keys, dtype=dtype)
    options = launch_options(queries, keys)
    grid = (images * heads * triton.cdiv(queries, options["ROWS"]),)
    forward[grid](logits, gated, share, maps, heads, queries, keys, pixels, sink, **options)
    return maps


def gradients_of(logits: Tensor, share: Tensor, grad_maps: Tensor, pixels: int, sink: float) -> tuple[Tensor, Tensor]:
    """Gradients of the logits, like them, and Σ_r C D, (B, K, M), float32; `grad_maps` is (B, M, K, R'), contiguous."""
    images, heads, queries, keys = logits.shape
    found, sums = torch.empty_like(logits), logits.new_empty(images, heads, queries, dtype=torch.float32)
    options = launch_options(queries, keys)
    grid = (images * heads * triton.cdiv(queries, options["ROWS"]),)
    backward[grid](logits, share, grad_maps, found, sums, heads, queries, keys, pixels, sink, **options)
    return found, sums


def launch_options(queries: int, keys: int) -> dict[str, int]:
    """How many rows of a map a program has, the length that they are held in, and its warps."""
    block = triton.next_power_of_2(keys)
    rows = max(1, min(ELEMENTS // block, triton.next_power_of_2(queries)))
    return {"ROWS": rows, "BLOCK": block, "num_warps": 4 if block <= ELEMENTS else 8}
