"""Softmax and gating of attention maps, and their backward pass, by the kernels of `map_kernels.py`.

Shapes: B images, K heads, M queries, R keys and the sinks behind them R'. Logits are (B, K, M, R'), maps (B, M, K, R').
"""

import torch
import triton
from torch import Tensor

from tcnn.layers.triton.map_kernels import backward, forward

ELEMENTS = 4096
"""Of a program: 32 registers of float32 in each of 128 threads, for each of the two or three rows of numbers it has."""


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
