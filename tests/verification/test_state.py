"""Models that keep something from pass to pass, or draw random numbers: passes that are compared begin alike."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import image, same_state, snapshot
from torch import Tensor, nn
from torch.nn import functional as F

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
        elif self.way == "a buffer whose values decide":  # so it does not run without values
            self.mean.mul_(0.9 if self.mean.sum().item() > 0 else 0.5)
        elif self.way == "a table when it is needed":
            self.table = seen if self.table is None else self.table
            shift = self.table
        return self.head(self.conv(self.stem(x - shift)).mean((2, 3)))


WAYS = [
    "a buffer in place", "a buffer anew", "a buffer whose values decide", "an attribute in place", "a number",
    "a table when it is needed",
]  # fmt: skip


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


class Drawing(nn.Module):
    """Adds noise that it draws in the way that is told."""

    def __init__(self, draw: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.conv(x + self.draw(x))


OWN = np.random.default_rng(0)
DRAWS: dict[str, Callable[[Tensor], Any]] = {
    "PyTorch": torch.randn_like, "dropout that stays on": F.dropout, "NumPy": lambda x: np.random.rand(),
    "Python": lambda x: random.random(),
}  # fmt: skip


@pytest.mark.parametrize("way", DRAWS)
def test_equal_models_that_draw_random_numbers_are_equal(way: str) -> None:
    source = Drawing(DRAWS[way]).eval()
    model = tcnn.convert(source, input_size=16).model
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    report = tcnn.verify(source, model)
    assert report.passed, report.failure()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]
    assert tcnn.fold(model, source=Drawing(DRAWS[way])).report.complete
    assert tcnn.explain(source, model, image((16, 16))).equal
    with torch.no_grad():
        model.stem.weight.mul_(0.999)
    failure = tcnn.verify(source, model).failure()
    assert failure is not None and "itself" not in failure


def test_a_source_that_differs_from_itself_is_said_to() -> None:
    source = Drawing(lambda x: OWN.random()).eval()
    failure = tcnn.verify(source, tcnn.convert(source, input_size=16).model, float64=False).failure()
    with pytest.raises(tcnn.TcnnError, match=r"; nothing was folded, Drawing differs by .* from itself when"):
        tcnn.fold(tcnn.convert(source, input_size=16).model, source=source)
    assert "; Drawing differs by " in str(failure) and "from itself when it runs again: it draws ran" in str(failure)


def test_noise_before_the_stage_is_no_reason_not_to_dilate_it() -> None:
    source = Drawing(torch.randn_like).eval()
    model = tcnn.convert(source, stride="dilate", input_size=16).model
    assert tcnn.verify(tcnn.without_stride(source, stride="dilate", input_size=16), model).passed


class Counting(Drawing):
    """Keeps what it has seen in a list."""

    def __init__(self) -> None:
        super().__init__(len)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return super().forward(x) * len(self.seen)


def test_what_lists_keep_is_not_put_back_and_said_to_be() -> None:
    source = Counting().eval()
    failure = tcnn.verify(source, tcnn.convert(source, input_size=16).model, float64=False).failure()
    assert "Counting differs by " in str(failure) and "keeps what it has seen elsewhere than in buffers" in str(failure)
