"""The kernels compiled for GPUs that are not there; all widths and maps are in tests/slow/test_triton_kernels.py."""

import pytest
import torch
from triton_compiled import Kind, check


@pytest.mark.parametrize(
    "kind",
    [
        Kind("forward", (7, 7), 56), Kind("forward", (1, 20), 8, torch.float32, 40, heads=1),
        Kind("backward_queries", (20, 20), 24, torch.float16), Kind("backward_keys", (7, 7), 56),
        Kind("backward_values", (7, 7), 56, torch.float16, 200),
    ],
    ids=str,
)  # fmt: skip
def test_compiles_for_ampere(kind: Kind) -> None:
    check(kind, 80)


def test_compiles_for_hopper() -> None:
    assert "wgmma.mma_async" in check(Kind("forward", (14, 14), 56), 90).ptx, "its own tensor cores"
