"""Attention in Triton on a GPU against its formula in float64, and the choice between two ways by measurement there."""

import pytest
import torch
from torch import Tensor
from triton_cases import FLOAT32, HALF, NAMES, Case, errors, twice

from tcnn.layers.backends import autotune
from tcnn.layers.backends.autotune import fastest

pytestmark = pytest.mark.gpu(only="the kernels run in Triton's interpreter there, in tests/layers")

BESIDE_PLAIN = 1.2
"""In 16 bits, at most so many times the error of plain operations."""


IN_BFLOAT16 = [
    case._replace(dtype=torch.bfloat16) for case in (
        Case((14, 14), (14, 14), 56, 512), Case((7, 7), (7, 7), 56, 512), Case((7, 7), (14, 14), 24, 200),
        Case((9, 20), (9, 20), 64, 72), Case((32, 32), (32, 32), 64, 256), Case((8, 33), (16, 66), 128, 320),
        Case((12, 12), (12, 12), 256, 64), Case((5, 9), (9, 12), 8, 40, strange=True),
        Case((8, 8), (8, 8), 8, 64), Case((16, 16), (16, 16), 8, 64), Case((14, 14), (14, 14), 24, 64),
    )
]  # fmt: skip
IN_OTHERS = [
    case._replace(dtype=dtype) for dtype in (torch.float16, torch.float32)
    for case in (IN_BFLOAT16[0], IN_BFLOAT16[3], IN_BFLOAT16[7])
]  # fmt: skip
"""Compiling the kernels of a case takes five seconds."""


@pytest.fixture
def can_run_them(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("the kernels need compute capability 8.0")


@pytest.mark.usefixtures("can_run_them")
@pytest.mark.parametrize("case", [*IN_BFLOAT16, *IN_OTHERS], ids=str)
def test_equals_the_formula_in_every_run(case: Case, device: torch.device) -> None:
    dtype = case.dtype
    case = case._replace(sinks=60, images=3, heads=9)
    found, plain = errors(case, device.type)
    bound = {torch.float32: FLOAT32} | HALF
    for name, ours, theirs in zip(NAMES, found, plain, strict=True):
        assert ours < bound[dtype] and (dtype == torch.float32 or ours < BESIDE_PLAIN * theirs), name
    assert twice(case, device.type)


def test_the_faster_way_is_chosen(device: torch.device) -> None:
    x, weight = torch.ones(2048, 2048, device=device), torch.ones(2048, 2048, device=device)

    def slow(x: Tensor, weight: Tensor) -> Tensor:
        return sum(x @ weight for _ in range(20)) / 20  # type: ignore[return-value]

    ways = {"slow": slow, "fast": torch.mm}
    autotune.clear_cache()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert fastest(ways, (x, weight)) == "slow", "not while a graph is captured"
    assert fastest(ways, (x, weight)) == "fast"
