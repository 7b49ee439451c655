"""Chunks of a batch for the chunked backend: how many images and query rows are computed at a time, by the memory.

Shapes: B batch, C channels, R' keys, M queries, K heads, d head width; b images of a chunk, m queries of a chunk.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.backends.dense import Heads
from tcnn.layers.terms.execution import needs_gradients

CPU_CHUNK = 2**23
"""Elements of the largest tensor of a chunk on a CPU: 32 MiB in float32. Larger blocks the C library requests from the
system anew every time, at a quarter of a millisecond per MiB. Several that are nearly as large it gives back between
them, unless they are kept for the backward pass: without one, the chunks of a larger batch have half of that.
"""

SAVED_SHARE = 64
"""Share of a device's memory that a layer may save for the backward pass: a stage of six such layers a tenth of it."""


class ChunkPlan(NamedTuple):
    """How a batch is cut into chunks."""

    images: int
    """Images per chunk."""
    query_rows: int
    """Rows of the output map per chunk."""
    saved: int
    """Bytes that may be saved for the backward pass."""

    def covers(self, heads: Heads) -> bool:
        """Whether the whole batch is one chunk."""
        return self.images >= len(heads.value) and self.query_rows >= heads.query_rows


def plan_for(heads: Heads) -> ChunkPlan:
    """Choose the chunk sizes of a batch: from the device's total memory, not what is free, so that runs repeat."""
    images, _, _, _ = heads.query.shape
    query_rows, width = heads.query_rows, heads.query_columns
    line = heads.gate.shape[0] * width * max(heads.key.shape[2], heads.value.shape[2])  # elements of the largest tensor
    memory = total_memory(heads.value.device)
    saved = memory // SAVED_SHARE
    if heads.value.device.type == "cpu":
        if query_rows * line > CPU_CHUNK // 2:
            return ChunkPlan(1, max(1, CPU_CHUNK // 4 // line), saved)
        whole = CPU_CHUNK // (query_rows * line)
        one = images <= whole or needs_gradients(heads.tensors)
        return ChunkPlan(whole if one else whole // 2, query_rows, saved)
    # Five tensors of this size are alive at once, which may take half of the memory: every chunk costs launches.
    most = memory // 2 // 5 // heads.value.element_size()
    if query_rows * line > most:
        return ChunkPlan(1, max(1, most // line), saved)
    return ChunkPlan(max(1, most // (query_rows * line)), query_rows, saved)


def total_memory(device: torch.device) -> int:
    """Total memory of a device in bytes; 16 GiB where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 16 * 2**30


class Chunk(NamedTuple):
    """A chunk: some queries of some images."""

    images: slice
    queries: slice
    query: Tensor
    """Q/√d, (b·K, m, d)."""
    key: Tensor
    """K, (b·K, R', d)."""
    value: Tensor
    """X W_val, (b, R', C)."""


def chunks_of(heads: Heads, plan: ChunkPlan) -> Iterator[tuple[Heads, list[Chunk]]]:
    """Cut a batch into chunks: for some query rows at a time, the heads restricted to these rows, and their chunks."""
    width = heads.query_columns
    batch = len(heads.value)
    count = -(-batch // plan.images)
    images = [slice(i * batch // count, (i + 1) * batch // count) for i in range(count)]  # sizes differ by 1 at most
    for line in range(0, heads.query_rows, plan.query_rows):
        rows = heads.rows[:, line : line + plan.query_rows]
        queries = slice(line * width, (line + rows.shape[1]) * width)
        yield (
            heads if images and plan.query_rows >= heads.query_rows else replace(heads, rows=rows, gated=None),
            [
                Chunk(
                    some, queries, heads.query[some, :, queries].flatten(0, 1), heads.key[some].flatten(0, 1),
                    heads.value[some],
                )
                for some in images
            ],
        )  # fmt: skip
