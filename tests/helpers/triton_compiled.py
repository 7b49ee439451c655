"""The kernels through Triton's compiler, for GPUs that are not there: errors of syntax and type that the interpreter
does not see, what a program needs of a GPU, and that no sum is made by atomics.
"""

import re
from typing import Any, NamedTuple

import pytest
import torch

from tcnn.layers.triton import tiles as triton_tiles

compiler = pytest.importorskip("triton.compiler")
targets = pytest.importorskip("triton.backends.compiler")

SMALL_GPU = 99 * 2**10
"""Bytes of shared memory that one program may have where it is least: compute capability 8.6, 8.9 and 12.0."""
LARGE_GPU = 227 * 2**10
"""The same at 9.0."""


class Kind(NamedTuple):
    kernel: triton_tiles.Kernel
    map: tuple[int, int]
    width: int
    dtype: torch.dtype = torch.bfloat16
    channels: int = 512
    heads: int = 9


class Compiled(NamedTuple):
    ptx: str
    shared: int
    """Bytes."""


def compile_for(kind: Kind, capability: int) -> Compiled:
    """As a launch would compile it: numbers that are multiples of 16 are known to be, and a 1 is a constant."""
    from tcnn.layers.triton import backward as triton_backward
    from tcnn.layers.triton import kernels as triton_kernels

    kernel = getattr(triton_kernels if kind.kernel == "forward" else triton_backward, kind.kernel)
    tiles = triton_tiles.choose(kind.kernel, kind.map, kind.map, kind.width, kind.channels, kind.dtype.itemsize)
    constants: dict[str, object] = {
        "Q_ROWS": tiles.query[0], "Q_COLUMNS": tiles.query[1], "K_ROWS": tiles.key[0], "K_COLUMNS": tiles.key[1],
        "WIDTH": triton_tiles.width(kind.width, kind.dtype.itemsize), "CHANNELS": tiles.channels, "WHOLE": tiles.whole,
    }  # fmt: skip
    numbers = {
        "heads": kind.heads, "width": kind.width, "channels": kind.channels, "out_height": kind.map[0],
        "out_width": kind.map[1], "height": kind.map[0], "map_width": kind.map[1],
    }  # fmt: skip
    short = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[kind.dtype]
    signature, known, multiples = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        number = numbers.get(name, kind.width)  # a stride, if it is none of them
        if name in constants:
            signature[name], known[name] = "constexpr", constants[name]
        elif name in ("sinks", "scale"):
            signature[name] = "fp32"
        elif name in ("query", "key", "value", "out", "gradient", "grad_query", "grad_key", "grad_value"):
            signature[name], multiples[place,] = short, [["tt.divisibility", 16]]
        elif name in ("rows", "columns", "gate", "lse", "expected", "grad_rows", "grad_columns"):
            signature[name], multiples[place,] = "*fp32", [["tt.divisibility", 16]]
        elif number == 1:
            signature[name], known[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if number % 16 == 0:
                multiples[place,] = [["tt.divisibility", 16]]
    source = compiler.ASTSource(kernel, signature, constexprs=known, attrs=multiples)
    return _compiled(
        source, {"num_warps": tiles.warps, "num_stages": tiles.stages, "enable_fp_fusion": True}, capability
    )


def compile_maps_for(name: str, keys: int, dtype: torch.dtype, capability: int) -> Compiled:
    """A kernel of `map_kernels.py`, for rows of so many keys, a multiple of 8, as a launch would compile it."""
    from tcnn.layers.triton import map_kernels
    from tcnn.layers.triton.map_kernels import launch_options

    kernel, constants = getattr(map_kernels, name), launch_options(196, keys)
    short = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}[dtype]
    signature, known, multiples = {}, {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument], known[argument] = "constexpr", constants[argument]
        elif argument in ("heads", "queries", "keys", "pixels"):
            signature[argument] = "i32"
        elif argument == "sink":
            signature[argument] = "fp32"
        else:
            signature[argument] = "*fp32" if argument in ("gated", "share", "sums") else short
            multiples[place,] = [["tt.divisibility", 16]]
    source = compiler.ASTSource(kernel, signature, constexprs=known, attrs=multiples)
    return _compiled(source, {"num_warps": constants["num_warps"]}, capability)


def _compiled(source: Any, options: dict[str, object], capability: int) -> Compiled:
    try:
        found = compiler.compile(source, target=targets.GPUTarget("cuda", capability, 32), options=options)
    except (FileNotFoundError, AttributeError, RuntimeError) as error:
        if "ptxas" in str(error) and "not" in str(error):
            pytest.skip(f"no ptxas: {error}")
        raise
    return Compiled(found.asm["ptx"], found.metadata.shared)


def check(kind: Kind, capability: int) -> Compiled:
    found = compile_for(kind, capability)
    assert not re.search(r"\b(atom|red)\.", found.ptx), "another run may add in another order"
    assert found.shared <= (LARGE_GPU if capability == 90 else SMALL_GPU)
    if kind.dtype != torch.float32:
        assert re.search(r"wgmma\.mma_async|mma\.sync", found.ptx), "no tensor cores"
    return found


def compile_materialised_for(
    name: str, side: int, head: int, dtype: torch.dtype, capability: int, sinks: int | None = None
) -> Compiled:
    """A kernel of `materialised_kernels.py` or `isotropic_kernels.py`, as a launch would compile it for 9 heads."""
    from tcnn.layers.triton import isotropic_kernels, launches, materialised_kernels
    from tcnn.layers.triton.materialised_inputs import Sizes

    padded = (side + 2, side + 2)
    sizes = Sizes(
        9, (side, side), (side, side), padded, (1, 1), (1, 1), (1, 1), 4 * side + 4 if sinks is None else sinks, 1.0
    )
    own = hasattr(isotropic_kernels, name)
    kernel = getattr(isotropic_kernels if own else materialised_kernels, name)
    if own:
        constants: dict[str, Any] = {**launches._blocks(sizes), "num_warps": 4, "IMAGES": 16}
    else:
        tiles = launches.choose(name, sizes, head, dtype.itemsize)
        constants = {**tiles.constants(sizes.scale, head, dtype.itemsize), "WHOLE": tiles.whole}
    options: dict[str, object] = {key: constants.pop(key) for key in ("num_warps", "num_stages") if key in constants}
    short = {torch.bfloat16: "*bf16", torch.float16: "*fp16"}[dtype]
    row = 18 * head
    numbers = {
        "pitch": sizes.pitch, "heads": 9, "taps": 9, "queries_here": side**2, "keys_here": side**2, "images": 256,
        "query_rows": sizes.pitch, "query_pixel": row, "key_pixel": row, "first_key": 9 * head,
        "sinks": sizes.sinks,
    }  # fmt: skip
    signature, known, multiples = {}, {}, {}
    for place, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument], known[argument] = "constexpr", constants[argument]
        elif numbers.get(argument) == 1:
            signature[argument], known[argument] = "constexpr", 1
        elif argument in ("table", "out"):
            signature[argument], multiples[place,] = "*fp16", [["tt.divisibility", 16]]
        elif argument in ("lse", "expected", "sums", "parts"):
            signature[argument], multiples[place,] = "*fp32", [["tt.divisibility", 16]]
        elif argument in _MATRICES:
            signature[argument], multiples[place,] = short, [["tt.divisibility", 16]]
        else:
            number = numbers.get(argument, sizes.pitch * row if "image" in argument or "pixel" in argument else side)
            signature[argument] = "i32"
            if number % 16 == 0:
                multiples[place,] = [["tt.divisibility", 16]]
    return _compiled(compiler.ASTSource(kernel, signature, constexprs=known, attrs=multiples), options, capability)


_MATRICES = (
    "query", "key", "maps", "grad_maps", "grads", "gating", "temperature", "gate_temperature", "raws",
    "centres", "grad_gating", "grad_raws", "grad_centres",
)  # fmt: skip
