"""The Triton kernels compiled for the GPU that is there, and the choice among what is measured on it."""

import pytest
import torch
from torch import Tensor
from triton_cases import FLOAT32, HALF, NAMES, Case, errors, twice

from tcnn.layers.backend_choice import chosen

pytestmark = pytest.mark.gpu(only="Triton compiles for a GPU; tests/layers interprets the same kernels")


@pytest.fixture(autouse=True)
def can_run_them(device: torch.device) -> None:
    if torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("the kernels need compute capability 8.0")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("asking", "seen", "width", "channels"),
    [
        ((14, 14), (14, 14), 56, 512), ((7, 7), (7, 7), 56, 512), ((7, 7), (14, 14), 24, 200),
        ((9, 20), (9, 20), 64, 72), ((32, 32), (32, 32), 64, 256), ((8, 33), (16, 66), 128, 320),
        ((12, 12), (12, 12), 256, 64),
    ],
    ids=str,
)  # fmt: skip
def test_equals_the_formula(
    asking: tuple[int, int], seen: tuple[int, int], width: int, channels: int, dtype: torch.dtype
) -> None:
    case = Case(asking, seen, width, channels, 60, images=3, heads=9, dtype=dtype)
    found, plain = errors(case, "cuda")
    bound = {torch.float32: FLOAT32} | HALF
    for name, ours, theirs in zip(NAMES, found, plain, strict=True):
        assert ours < bound[dtype] and (dtype == torch.float32 or ours < 1.2 * theirs), name
    assert twice(case, "cuda")


def test_the_fastest_is_chosen_but_not_while_a_graph_is_captured(device: torch.device) -> None:
    x, weight = torch.ones(2048, 2048, device=device), torch.ones(2048, 2048, device=device)

    def slow(x: Tensor, weight: Tensor) -> Tensor:
        return sum(x @ weight for _ in range(20))  # type: ignore[return-value]

    ways = {"slow": slow, "fast": torch.mm}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert chosen(ways, (x, weight)) == "slow"
        x.add_(1)  # a graph of nothing is none
    assert chosen(ways, (x, weight)) == "fast"
