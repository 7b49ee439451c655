"""The kernels compiled for GPUs that are not there."""

import re

import pytest
import torch
from triton_compiled import LARGE_GPU, SMALL_GPU, Kind, check, compile_maps_for, compile_materialised_for

from tcnn.layers.triton import tiles as triton_tiles


@pytest.mark.parametrize(
    "kind",
    [
        Kind("forward", (1, 20), 8, torch.float32, 40, heads=1),
        Kind("backward_queries", (1, 20), 8, torch.float16, 40, heads=1),
        Kind("backward_keys", (1, 20), 8, torch.float32, 40, heads=1),
        Kind("backward_values", (4, 4), 16, torch.float16, 16),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in (
                Kind("forward", (7, 7), 56), Kind("backward_queries", (20, 20), 24, torch.float16),
                Kind("backward_keys", (7, 7), 56), Kind("backward_values", (7, 7), 56, torch.float16, 200),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_compiles_for_ampere(kind: Kind) -> None:
    check(kind, 80)


@pytest.mark.parametrize(
    "kind",
    [
        Kind("forward", (7, 7), 16, torch.float16, 16),
        pytest.param(Kind("forward", (14, 14), 56), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_compiles_for_hopper(kind: Kind) -> None:
    assert "wgmma.mma_async" in check(kind, 90).ptx, "its own tensor cores"


@pytest.mark.parametrize("keys", [1032, *(pytest.param(keys, marks=pytest.mark.slow) for keys in (8, 200, 8192))])
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_what_is_between_logits_and_maps_compiles(name: str, keys: int) -> None:
    found = compile_maps_for(name, keys, torch.bfloat16, 90)
    assert " atom." not in found.ptx and " red." not in found.ptx
    assert ".local" not in found.ptx, "a row of numbers does not fit into the registers"


@pytest.mark.parametrize("side", [7, pytest.param(14, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["forward", "backward_keys"])
def test_eight_numbers_at_a_time(name: str, side: int) -> None:
    """Of materialised maps: a mask or a size that the compiler knows too little of would make it one at a time."""
    found = compile_materialised_for(name, side, 56, torch.bfloat16, 90)
    assert re.search(r"ld\.global(\.\w+)*\.v4|cp\.async", found.ptx) and re.search(r"st\.global(\.\w+)*\.v4", found.ptx)
    assert not re.search(r"\b(atom|red)\.", found.ptx)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("width", [8, 56, 128, 256])
@pytest.mark.parametrize("side", [1, 7, 14, 20, 32])
def test_every_tile_of_materialised_maps_fits(side: int, width: int, capability: int) -> None:
    for name in ("forward", "backward_queries", "backward_keys", "table", "gradients_of_queries", "gradients"):
        found = compile_materialised_for(name, side, width, torch.bfloat16, capability)
        assert not re.search(r"\b(atom|red)\.", found.ptx), f"{name}: another run may add in another order"
        assert found.shared <= (LARGE_GPU if capability == 90 else SMALL_GPU), name


@pytest.mark.parametrize("sinks", [0, 1, 60])
def test_any_number_of_sinks_compiles(sinks: int) -> None:
    """Where it is 1 the compiler is told so; logits are computed in float32, whatever numbers come from Python."""
    found = compile_materialised_for("forward", 14, 56, torch.bfloat16, 90, sinks)
    assert not re.search(r"\.f64\b", found.ptx)
