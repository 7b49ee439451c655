"""Attention in Triton on the maps it was made for: in the interpreter, and through the compiler for every width."""

import re
from collections.abc import Iterator

import pytest
import torch
from forked import Interpreter
from triton_cases import BESIDE_PLAIN, FLOAT32, HALF, NAMES, Case, errors, make
from triton_compiled import LARGE_GPU, SMALL_GPU, Kind, check, compile_materialised_for

from tcnn.layers.triton import attention as triton_attention
from tcnn.layers.triton import tiles as triton_tiles


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    interpreter = Interpreter()
    yield interpreter
    interpreter.end()


@pytest.mark.parametrize(
    "case",
    [
        Case((14, 14), (14, 14), 56, 200, 60, heads=1), Case((10, 20), (10, 20), 24, 40, 64, heads=1),
        Case((7, 7), (14, 14), 56, 512, 60, heads=1), Case((17, 3), (32, 32), 64, 64, 132, heads=1),
        Case((5, 5), (64, 64), 8, 16, None, heads=1), Case((8, 17), (16, 33), 256, 24, 102, heads=1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_equals_the_formula(case: Case, dtype: torch.dtype, interpreter: Interpreter) -> None:
    found, plain = interpreter(errors, case._replace(dtype=dtype))
    for name, ours, theirs in zip(NAMES, found, plain, strict=True):
        if dtype == torch.float32:
            assert ours < FLOAT32, name
        else:
            assert ours < HALF[dtype] and ours < BESIDE_PLAIN[dtype] * theirs, name


def checked_by_torch() -> set[str]:
    inputs, upstream = make(Case((3, 4), (4, 5), images=2))
    arguments = *inputs, 7, 0.3
    results = torch.library.opcheck(triton_attention.gated_attention, arguments)
    _, lse = triton_attention.gated_attention(*arguments)
    backward = upstream, *(tensor.detach() for tensor in (*inputs, lse)), 0.3
    results |= torch.library.opcheck(triton_attention.gated_attention_backward, backward)
    return set(results.values())


def test_it_is_a_good_operator(interpreter: Interpreter) -> None:
    assert interpreter(checked_by_torch) == {"SUCCESS"}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("width", "dtype"),
    [*((width, torch.bfloat16) for width in (8, 56, 128, 256)), (56, torch.float32), (256, torch.float32)],
    ids=str,
)
@pytest.mark.parametrize("size", [(7, 7), (14, 14), (32, 32)], ids=str)
def test_every_tile_fits(size: tuple[int, int], width: int, dtype: torch.dtype, capability: int) -> None:
    whole = triton_tiles.choose("backward_keys", size, size, width, 512, dtype.itemsize).whole
    kernels: list[triton_tiles.Kernel] = ["forward", "backward_keys", "backward_values"]
    for kernel in kernels + ([] if whole else ["backward_queries"]):
        check(Kind(kernel, size, width, dtype), capability)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("width", [8, 56, 128, 256])
@pytest.mark.parametrize("side", [1, 7, 14, 20, 32])
def test_every_tile_of_materialised_maps_fits(side: int, width: int, capability: int) -> None:
    for name in ("forward", "backward_queries", "backward_keys", "table", "gradients_of_queries", "gradients"):
        found = compile_materialised_for(name, side, width, torch.bfloat16, capability)
        assert not re.search(r"\b(atom|red)\.", found.ptx), f"{name}: another run may add in another order"
        assert found.shared <= (LARGE_GPU if capability == 90 else SMALL_GPU), name
