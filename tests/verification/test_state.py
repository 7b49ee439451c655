"""Models that keep something from one forward pass to the next are compared from the same state, and left in it."""

import copy
from typing import Any

import pytest
import torch
from nets import image, same_state, snapshot
from torch import Tensor, nn

import tcnn
from tcnn.analysis.attention import attention_at


class Keeping(nn.Module):
    """Subtracts what it keeps of its images, and keeps more with every pass, in the way that is told."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8, 4)
        self.way, self.calls = way, 0
        self.register_buffer("mean", torch.full((1, 3, 1, 1), 5.0))
        self.register_buffer("table", None)
        self.apart = torch.zeros(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        seen = x.mean((0, 2, 3), keepdim=True)
        shift: Any = self.mean
        if self.way == "a buffer in place":
            self.mean.mul_(0.9).add_(0.1 * seen)
        elif self.way == "a buffer anew":
            self.mean = 0.9 * self.mean + 0.1 * seen
        elif self.way == "an attribute in place":
            shift = self.apart.to(x).add(self.calls)
            self.apart += 1
        elif self.way == "a number":
            shift = self.calls
        elif self.way == "a table when it is needed":
            self.table = seen if self.table is None else self.table
            shift = self.table
        return self.head(self.conv(self.stem(x - shift)).mean((2, 3)))


WAYS = ["a buffer in place", "a buffer anew", "an attribute in place", "a number", "a table when it is needed"]


def pair(way: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    source = Keeping(way).eval()
    return source, tcnn.convert(source, input_size=16).model


@pytest.mark.parametrize("randomise", [False, True])
@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_equal_models_are_equal_and_stay_so(way: str, randomise: bool) -> None:
    source, model = pair(way)
    before, kept = copy.deepcopy(source), [snapshot(source), snapshot(model)]
    report = tcnn.verify(source, model, randomise=randomise)
    assert report.passed, report.failure()
    assert same_state(source, kept[0]) and same_state(model, kept[1])
    assert all(one.calls == 0 and one.table is None and not one.apart.any() for one in (source, model))
    x = image((16, 16))
    assert torch.allclose(before(x), model(x), atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_explaining_folding_pruning_and_looking_leave_them_as_they_were(way: str) -> None:
    source, model = pair(way)
    x = image((16, 16))
    assert tcnn.explain(source, model, x).equal
    assert tcnn.fold(model, source=source).report.complete
    attention_at(model, x)
    with pytest.raises(tcnn.TcnnError, match=r"no head"):
        tcnn.prune(model, source=source)
    assert all(one.calls == 0 and one.table is None and not one.apart.any() for one in (source, model))
    assert (source.mean == 5).all() and (model.mean == 5).all()


@torch.no_grad()
def test_a_difference_is_still_seen() -> None:
    source, model = pair("a buffer in place")
    model.mean.add_(0.01)
    assert not tcnn.verify(source, model, float64=False).passed
    assert (model.mean == 5.01).all()


def test_statistics_of_normalisation_are_random_meanwhile_and_restored() -> None:
    torch.manual_seed(0)
    source = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)).eval()
    model = tcnn.convert(source, input_size=16).model
    report = tcnn.verify(source, model, randomise=True)
    assert report.passed and report.statistics_randomised
    assert not source[1].running_mean.any() and (source[1].running_var == 1).all()
