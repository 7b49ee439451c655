"""Tile sizes of the Triton kernels, from shapes and dtype alone: nothing is tuned, nothing is measured.

A tile is a rectangle of a map whose sides are powers of two, at least 16 pixels, as tensor cores want them.
"""

from typing import Literal, NamedTuple

Size = tuple[int, int]
Kernel = Literal["forward", "backward_queries", "backward_keys", "backward_values"]


class Tiles(NamedTuple):
    """Tile sizes and launch options of a kernel."""

    query: Size
    key: Size
    whole: bool
    """Whether one tile holds all keys."""
    channels: int
    """Channels of the values per step."""
    warps: int
    stages: int


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def count(size: Size, tile: Size) -> Size:
    """Number of tiles that cover a map, (down, across)."""
    return -(-size[0] // tile[0]), -(-size[1] // tile[1])


def rectangle(size: Size, pixels: int) -> Size:
    """The tile shape with `pixels` (a power of two) of which the fewest cover a map; of several the widest."""
    shapes = [(pixels >> log, 1 << log) for log in range(pixels.bit_length())]

    def cost(tile: Size) -> tuple[int, int]:
        down, across = count(size, tile)
        return down * across, -tile[1]

    return min(shapes, key=cost)


def width(head: int, itemsize: int = 2) -> int:
    """Head width as the kernels pad it: a power of two, at least 16, in 16 bits 32.

    In tiles of 16 Triton 3.6 made a kernel for an H100 whose gradient of the keys lacked half of it (measured: 0.72 of
    its norm is wrong for heads of 8 numbers and 9×12 keys; with 24 numbers, padded to 32, it is right).
    """
    return max(32 if itemsize == 2 else 16, power_of_two(head))


def choose(kernel: Kernel, query_size: Size, key_size: Size, head: int, channels: int, itemsize: int) -> Tiles:
    """Choose the tile sizes and launch options of a kernel.

    In 16 bits, by what the compiler reports for compute capability 8.0 and 9.0
    (`tests/layers/kernels/test_triton_compiled.py`): a thread has 255 registers, a program at most 99 KiB of shared
    memory even on the smallest of these GPUs.

    forward: a tile of 64×256 logits in float32 is 128 registers a thread of 4 warps, and 64 more once it is rounded; 64
    channels of 256 values, twice, are 64 KiB. Keys that need several tiles are met again for every step of channels, so
    the step is as wide as the registers allow: 256.
    backward_queries, backward_keys: the logits and their gradient are held side by side, with the gradient of queries
    or keys; hence 64×64 tiles, and 32 queries where all 256 keys are held.
    backward_values: 128 keys read each gradient of the output twice at 14×14; 256 channels make what is computed again
    for a step, d multiply-adds a pair, a quarter of its work or less.

    float32 has no tensor cores that keep its precision: tiles are small, because every multiply-add is an instruction.

    Args:
        query_size: (Ho, Wo). key_size: (h, w). head: d. channels: C. itemsize: bytes of a number.
    """
    half, wide = itemsize == 2, width(head, itemsize)
    room = 2**14 // wide if half else 2**12 // max(wide, 64)  # keys of which one tile fits into shared memory
    around = max(16, power_of_two(key_size[0]) * power_of_two(key_size[1]))
    whole = kernel in ("forward", "backward_keys") and around <= min(256, room)
    if not half:
        queries, keys, warps, stages = 32, around if whole else 32, 8, 2
        step = 64 if kernel in ("forward", "backward_values") else 32
    elif kernel == "forward":
        queries, stages = 64, 2
        keys, step, warps = (around, 64, 4) if whole else (min(64, 2**13 // wide), 256, 8)
    elif kernel == "backward_queries":
        queries, keys, step, warps, stages = min(64, 2**13 // wide), 64, 64, 8, 2 if wide > 128 else 3
    elif kernel == "backward_keys":
        keys, stages = around if whole else min(128, room), 3
        queries, step = (32, 32) if keys * wide == 2**14 else (64, 64)
        warps = 8 if keys * wide > 2**12 else 4
    else:
        queries, keys, step, warps, stages = 32, min(128, room, around), 256, 8, 2 if wide > 64 else 3
    tile = rectangle(query_size, min(queries, max(16, power_of_two(query_size[0]) * power_of_two(query_size[1]))))
    return Tiles(tile, rectangle(key_size, keys), whole, channel_step(channels, step), warps, stages)


def channel_step(channels: int, most: int) -> int:
    """Channels per step: a power of two from 16 to `most`, chosen so that few padded channels are computed."""
    step = min(most, max(16, power_of_two(channels)))
    while step > 64 and -(-channels // (step // 2)) * (step // 2) < -(-channels // step) * step:
        step //= 2
    return step
