"""Launches of the kernels of materialised attention: their grids, tiles and arguments.

Shapes: B images, h×w keys, R = h·w, Ho×Wo queries, M = Ho·Wo, H×W padded map, K heads, P of them with a positional
part, d head width. A row of a map takes R' numbers, R rounded up to a multiple of 16.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tcnn.layers.terms.isotropic import SOFTPLUS_BETA
from tcnn.layers.triton.attention import current_device
from tcnn.layers.triton.materialised_inputs import Position, Sizes
from tcnn.layers.triton.tiles import power_of_two, width

PROGRAMS = 1024
"""Of so many programs or more one does several tiles of queries, which share their keys: a GPU is full with them."""


Launcher = Callable[[Any], Any]
"""What a kernel is launched by: `itself`, or `torch.library.wrap_triton`, by which compilers see it."""


def itself(kernel: Any) -> Any:
    """Launches without a detour."""
    return kernel


class Tiles(NamedTuple):
    """Of a map, and the options of a launch."""

    queries: int
    keys: int
    whole: bool
    """Whether one tile holds all keys."""
    warps: int
    stages: int

    def constants(self, scale: float, head_dim: int, itemsize: int) -> dict[str, float]:
        """Arguments that the compiler knows; the scale, too, which torch's compiler would hand over in float64."""
        return {
            "SCALE": scale, "QUERIES": self.queries, "KEYS": self.keys, "HEAD": head_dim,
            "WIDTH": width(head_dim, itemsize), "num_warps": self.warps, "num_stages": self.stages,
        }  # fmt: skip


def choose(kernel: str, sizes: Sizes, head_dim: int, itemsize: int) -> Tiles:
    """Tile sizes of a kernel: the fastest of those that were tried on an H100 or H200, for heads of 56 in bfloat16."""
    wide = width(head_dim, itemsize)
    room = min(256, 2**14 // wide)
    around = max(16, power_of_two(sizes.pitch))
    whole = around <= room and kernel != "backward_queries"
    keys = around if whole else min(128 if kernel == "forward" else 64, room, around)
    if kernel == "forward":
        queries, warps, stages = 64, 4, 1 if whole and keys > 64 else 2
    elif kernel == "backward_keys" and whole:
        queries, warps, stages = (max(16, min(64, 2**12 // keys)), 4, 1)
    else:
        queries, warps, stages = 64, 4, 1
    if wide > 64:
        queries, warps = min(queries, 32), 8
    return Tiles(min(queries, max(16, power_of_two(prod(sizes.query)))), keys, whole, warps, stages)


def maps(
    queries: Tensor, keys: Tensor, position: Position, sizes: Sizes, launcher: Launcher = itself
) -> tuple[Tensor, Tensor]:
    """Attention maps (B, M·K, R') and lse (B, K, M), the base-2 logarithms of the softmax sums, float32.

    Args:
        queries, keys: as `Kept` has them, contiguous.
    """
    from tcnn.layers.triton import isotropic_kernels, materialised_kernels

    query, key = _split(queries, keys)
    images, asked, wide, itemsize = len(query), prod(sizes.query), query.shape[2] // sizes.heads, query.element_size()
    # Weights up to 1: float16 holds them to a quarter of what bfloat16 rounds a map by.
    half = torch.float16 if itemsize == 2 else torch.float32
    table = query.new_empty(asked, sizes.heads, sizes.pitch, dtype=half)
    found = query.new_empty(images, asked * sizes.heads, sizes.pitch)
    lse = query.new_empty(images, sizes.heads, asked, dtype=torch.float32)
    tiles = choose("forward", sizes, wide, itemsize)
    parts = -(-asked // tiles.queries)
    steps = max(1, min(parts, images * sizes.heads * parts // PROGRAMS)) if tiles.whole else 1
    with current_device(query.device):
        launcher(isotropic_kernels.table)[(asked * sizes.heads,)](
            *position, table, sizes.heads, len(position.gating), sizes.query[1], *_where(sizes),
            **_blocks(sizes), num_warps=1,
        )  # fmt: skip
        launcher(materialised_kernels.forward)[(images * sizes.heads * -(-parts // steps),)](
            query, key, table, position.gating, position.gate_temperature, found, lse,
            *query.stride()[:2], *key.stride()[:2], images, sizes.heads, len(position.gating), asked,
            prod(sizes.key), sizes.pitch, steps, sizes.sinks,
            WHOLE=tiles.whole, **tiles.constants(sizes.scale, wide, itemsize),
        )  # fmt: skip
    return found, lse


def gradients(
    queries: Tensor, keys: Tensor, position: Position, grad_maps: Tensor, lse: Tensor, sizes: Sizes, moving: bool,
    launcher: Launcher = itself,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...] | None]:  # fmt: skip
    """Gradients of queries and keys, like them, with zeros after the last pixel, and those of λ, raw and centres.

    Args:
        queries, keys: as for `maps`.
        grad_maps: (B, M·K, R'), contiguous.
        moving: whether the gradients of the parameters are wanted, else they are None.
    """
    from tcnn.layers.triton import materialised_kernels

    query, key = _split(queries, keys)
    images, asked, wide, itemsize = len(query), prod(sizes.query), query.shape[2] // sizes.heads, query.element_size()
    tiles = choose("backward_keys", sizes, wide, itemsize)
    few = tiles if tiles.whole else choose("backward_queries", sizes, wide, itemsize)
    blocks = 1 if tiles.whole else -(-asked // few.queries)
    expected, sums = torch.empty_like(lse), lse.new_empty(images, sizes.heads, blocks)
    # In one piece: a compiler would copy what is a view of another that a kernel writes, too.
    grads = queries.new_empty(queries.numel() + keys.numel())
    first_key = queries.numel() if keys.numel() else queries.shape[2] // 2
    given = query, key, position.gating, position.gate_temperature, grad_maps, lse, expected, sums, grads
    of_query, of_key = queries.stride()[:2], key.stride()[:2]  # where they lie in `grads`, too
    rest = sizes.heads, len(position.gating), asked, prod(sizes.key), queries.shape[1], sizes.pitch
    with current_device(query.device):
        if not tiles.whole:
            launcher(materialised_kernels.backward_queries)[(images * sizes.heads * blocks,)](
                *given, *of_query, *of_key, *of_query, *rest, **few.constants(sizes.scale, wide, itemsize)
            )
        launcher(materialised_kernels.backward_keys)[(images * sizes.heads * -(-prod(sizes.key) // tiles.keys),)](
            *given, *of_query, *of_key, *of_query, *of_key, first_key, *rest,
            WHOLE=tiles.whole, **tiles.constants(sizes.scale, wide, itemsize),
        )  # fmt: skip
        of_position = _of_position(position, grad_maps, sums, sizes, launcher) if moving else None
    grad_queries, grad_keys = grads.split((queries.numel(), keys.numel()))
    return grad_queries.view_as(queries), grad_keys.view_as(keys), of_position


def _of_position(
    position: Position, grad_maps: Tensor, sums: Tensor, sizes: Sizes, launcher: Launcher
) -> tuple[Tensor, ...]:
    """Gradients of λ, raw and centres; `sums` as `backward_keys` leaves them."""
    from tcnn.layers.triton import isotropic_kernels

    (images, _, blocks), taps, asked = sums.shape, len(position.gating), prod(sizes.query)
    parts = sums.new_empty(4, taps, asked)
    constants = _blocks(sizes)
    launcher(isotropic_kernels.gradients_of_queries)[(taps * asked,)](
        grad_maps, *position[2:], parts, images, sizes.heads, taps, asked, sizes.query[1], *_where(sizes),
        **constants, IMAGES=max(1, min(4096 // constants["BLOCK"], power_of_two(images))), num_warps=4,
    )  # fmt: skip
    found = tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor in (position.gating, position.raws, position.centres)
    )
    launcher(isotropic_kernels.gradients)[(taps,)](
        *position[:3], position.temperature, parts, sums, *found, sizes.heads, taps, images, blocks, asked,
        BETA=SOFTPLUS_BETA, BLOCK=1024, num_warps=4,
    )  # fmt: skip
    return found


def _split(queries: Tensor, keys: Tensor) -> tuple[Tensor, ...]:
    """Queries and keys, (B, …, K·d) each, as views."""
    return (queries, keys) if keys.numel() else queries.chunk(2, dim=2)


def _where(sizes: Sizes) -> tuple[int, ...]:
    return *sizes.key, *sizes.padded, *sizes.origin, *sizes.first, *sizes.stride, sizes.pitch


def _blocks(sizes: Sizes) -> dict[str, int]:
    high, wide = (max(16, power_of_two(n)) for n in sizes.padded)
    block = max(16, min(1024, power_of_two(sizes.pitch)))
    return {"BETA": SOFTPLUS_BETA, "ROWS": high, "COLUMNS": wide, "BLOCK": block}
