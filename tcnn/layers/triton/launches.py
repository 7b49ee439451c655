"""Launches of the kernels of materialised attention: their grids, tiles and arguments.

Shapes: B images, h×w keys, R = h·w, Ho×Wo queries, M = Ho·Wo, H×W padded map, K heads, P of them with a positional
part, d head width. A row of a map takes R' numbers, R rounded up to a multiple of 16.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms.isotropic import SOFTPLUS_BETA
from tcnn.layers.triton.attention import current_device
from tcnn.layers.triton.materialised_inputs import Position, Sizes
from tcnn.layers.triton.tiles import power_of_two, width

PROGRAMS = 1024
"""Of so many programs or more one does several tiles of queries, which share their keys: a GPU is full with them."""


class Tiles(NamedTuple):
    """Of a map, and the options of a launch."""

    queries: int
    keys: int
    whole: bool
    """Whether one tile holds all keys."""
    warps: int
    stages: int

    def constants(self, head_dim: int, itemsize: int) -> dict[str, int]:
        """Arguments that the compiler knows."""
        return {
            "QUERIES": self.queries, "KEYS": self.keys, "HEAD": head_dim, "WIDTH": width(head_dim, itemsize),
            "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


def choose(kernel: str, sizes: Sizes, head_dim: int, itemsize: int) -> Tiles:
    """Tile sizes of a kernel: the fastest of those that were tried on an H100, for heads of 56 in bfloat16."""
    wide = width(head_dim, itemsize)
    room = min(256, 2**14 // wide)
    around = max(16, power_of_two(sizes.pitch))
    whole = around <= room and kernel != "backward_queries"
    keys = around if whole else min(128 if kernel == "forward" else 64, room, around)
    if kernel == "forward":
        queries, warps, stages = (32, 8, 1) if whole and keys > 64 else (64, 4, 2)
    elif kernel == "backward_keys" and whole:
        queries, warps, stages = (max(16, min(64, 2**12 // keys)), 4, 1)
    else:
        queries, warps, stages = 64, 4, 1
    if wide > 64:
        queries, warps = min(queries, 32), 8
    return Tiles(min(queries, max(16, power_of_two(prod(sizes.query)))), keys, whole, warps, stages)


def maps(query: Tensor, key: Tensor, position: Position, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Attention maps (B, M·K, R') and lse (B, K, M), the base-2 logarithms of the softmax sums, float32.

    Args:
        query: (B, M or more, K·d). key: (B, R or more, K·d). Channels lie beside each other.
    """
    from tcnn.layers.triton import isotropic_kernels, materialised_kernels

    images, asked, wide = len(query), prod(sizes.query), query.shape[2] // sizes.heads
    # Weights up to 1: float16 holds them to a quarter of what bfloat16 rounds a map by.
    half = torch.float16 if query.element_size() == 2 else torch.float32
    table = query.new_empty(asked, sizes.heads, sizes.pitch, dtype=half)
    found = query.new_empty(images, asked * sizes.heads, sizes.pitch)
    lse = query.new_empty(images, sizes.heads, asked, dtype=torch.float32)
    tiles = choose("forward", sizes, wide, query.element_size())
    parts = -(-asked // tiles.queries)
    steps = max(1, min(parts, images * sizes.heads * parts // PROGRAMS)) if tiles.whole else 1
    with current_device(query.device):
        isotropic_kernels.table[(asked * sizes.heads,)](
            *position, table, sizes.heads, len(position.gating), sizes.query[1], *_where(sizes),
            **_blocks(sizes), num_warps=1,
        )  # fmt: skip
        materialised_kernels.forward[(images * sizes.heads * -(-parts // steps),)](
            query, key, table, position.gating, position.gate_temperature, found, lse,
            *_strides(query, wide), *_strides(key, wide), images, sizes.heads, len(position.gating), asked,
            prod(sizes.key), sizes.pitch, steps, float(sizes.sinks), sizes.scale,
            WHOLE=tiles.whole, **tiles.constants(wide, query.element_size()),
        )  # fmt: skip
    return found, lse


def gradients(
    query: Tensor, key: Tensor, position: Position, grad_maps: Tensor, lse: Tensor, grads: tuple[Tensor, Tensor],
    sizes: Sizes, moving: bool,
) -> tuple[Tensor, Tensor, Tensor] | None:  # fmt: skip
    """Fill in the gradients of queries and keys, with zeros after the last pixel; return those of λ, raw and centres.

    Args:
        grad_maps: (B, M·K, R'), contiguous. moving: whether those of the parameters are wanted, else None is returned.
    """
    from tcnn.layers.triton import isotropic_kernels, materialised_kernels

    images, asked, wide, itemsize = (
        len(query), prod(sizes.query), query.shape[2] // sizes.heads, query.element_size(),
    )  # fmt: skip
    tiles = choose("backward_keys", sizes, wide, itemsize)
    few = tiles if tiles.whole else choose("backward_queries", sizes, wide, itemsize)
    blocks = 1 if tiles.whole else -(-asked // few.queries)
    expected, sums = torch.empty_like(lse), lse.new_empty(images, sizes.heads, blocks)
    given = query, key, position.gating, position.gate_temperature, grad_maps, lse, expected, sums
    strides = *_strides(query, wide), *_strides(key, wide)
    of_query, of_key = grads
    rest = (
        sizes.heads, len(position.gating), asked, prod(sizes.key), of_query.shape[1], sizes.pitch, sizes.scale,
    )  # fmt: skip
    with current_device(query.device):
        if not tiles.whole:
            materialised_kernels.backward_queries[(images * sizes.heads * blocks,)](
                *given, of_query, *strides, *of_query.stride()[:2], *rest, **few.constants(wide, itemsize)
            )
        materialised_kernels.backward_keys[(images * sizes.heads * -(-prod(sizes.key) // tiles.keys),)](
            *given, of_query, of_key, *strides, *of_query.stride()[:2], *of_key.stride()[:2], *rest,
            WHOLE=tiles.whole, **tiles.constants(wide, itemsize),
        )  # fmt: skip
        if not moving:
            return None
        taps = len(position.gating)
        parts = lse.new_empty(4, taps, asked)
        constants = _blocks(sizes)
        isotropic_kernels.gradients_of_queries[(taps * asked,)](
            grad_maps, *position[2:], parts, images, sizes.heads, taps, asked, sizes.query[1], *_where(sizes),
            **constants, IMAGES=max(1, min(4096 // constants["BLOCK"], power_of_two(images))), num_warps=4,
        )  # fmt: skip
        found = tuple(
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for tensor in (position.gating, position.raws, position.centres)
        )
        isotropic_kernels.gradients[(taps,)](
            *position[:3], position.temperature, parts, sums, *found, sizes.heads, taps, images, blocks, asked,
            BETA=SOFTPLUS_BETA, BLOCK=1024, num_warps=4,
        )  # fmt: skip
    return found  # type: ignore[return-value]


def _where(sizes: Sizes) -> tuple[int, ...]:
    return *sizes.key, *sizes.padded, *sizes.origin, *sizes.first, *sizes.stride, sizes.pitch


def _blocks(sizes: Sizes) -> dict[str, int]:
    high, wide = (max(16, power_of_two(n)) for n in sizes.padded)
    block = max(16, min(1024, power_of_two(sizes.pitch)))
    return {"BETA": SOFTPLUS_BETA, "ROWS": high, "COLUMNS": wide, "BLOCK": block}


def _strides(tensor: Tensor, wide: int) -> tuple[int, int, int]:
    """Strides of an image, a head and a pixel of queries or keys (B, …, K·d)."""
    return tensor.stride(0), wide, tensor.stride(1)
