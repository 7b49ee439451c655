"""Detectors: outputs of another length for every image, or of none, are compared image by image."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints.checkpoint import read
from tcnn.errors import RequestError
from tcnn.models.difference import output_errors, top1_agreement
from tcnn.models.outputs import is_empty, joined, other_shapes, separate
from tcnn.verification.report import EMPTY


class Detector(nn.Module):
    """What scores above a threshold, for each image: a dict, as torchvision's detectors return, or a tensor."""

    def __init__(self, least: float = 0.0, dicts: bool = True) -> None:
        super().__init__()
        self.least, self.dicts = least, dicts
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]] | list[Tensor]:
        rows = self.head(self.last(self.stem(x).relu()).relu()).flatten(2).transpose(1, 2)
        kept = [row[row[:, 0] > self.least] for row in rows]
        return [{"boxes": row[:, 1:], "scores": row[:, 0]} for row in kept] if self.dicts else kept


Make = Callable[..., tuple[nn.Module, nn.Module]]


@pytest.fixture
def made() -> Make:
    def make(least: float = 0.0, dicts: bool = True) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(0)
        source = Detector(least, dicts).eval()
        return source, tcnn.convert(source, input_size=16).model

    return make


@pytest.mark.parametrize("dicts", [True, False])
def test_every_number_of_every_image_is_compared(made: Make, dicts: bool) -> None:
    source, model = made(dicts=dicts)
    report = tcnn.verify(source, model, batch_size=3)
    assert report.passed, report.failure()
    assert 0 < report.passes[1].logits.worst < 1e-12 and report.passes[1].top1_agreement == 1
    with torch.no_grad():
        model.head.bias[1] += 1e-3  # of boxes, not of scores: as many are found
    report = tcnn.verify(source, model, batch_size=3)
    assert not report.passed
    assert report.passes[1].logits.max_abs == pytest.approx(1e-3, rel=1e-3)


def test_where_one_finds_more_it_is_told_for_which_image(made: Make, tmp_path: Path) -> None:
    source, model = made()
    with torch.no_grad():
        model.head.bias[0] += 0.2
    report = tcnn.verify(source, model)
    said = "shapes differ: the outputs (boxes) of image 1, 120 numbers in the source and "
    assert not report.passed and str(report.failure()).count(said) == 1
    assert f"drift at τ = 1: {said}" in str(report) and "inf%" not in str(report)
    tcnn.save(model, tmp_path / "m.safetensors", report)
    again = read(tmp_path / "m.safetensors").verification
    assert again is not None and again.drift.logits.relative == math.inf
    with pytest.raises(
        RequestError, match=r"explain: expected outputs of one shape, found those \(boxes\) of image 1, \d+ num"
    ):
        tcnn.explain(source, model, torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("size", [1, 2])
def test_what_finds_nothing_is_compared_layer_by_layer_and_says_so(made: Make, size: int) -> None:
    source, model = made(least=1e9)
    report = tcnn.verify(source, model, batch_size=size)
    assert report.passed and report.blind == EMPTY
    assert str(report).count(EMPTY) == 2 and "drift at τ = 1: the outputs hold no number" in str(report)
    assert tcnn.explain(source, model, torch.randn(size, 3, 16, 16)).equal
    with torch.no_grad():
        model.last.proj[0, 0] += 1
    assert not tcnn.verify(source, model, batch_size=size).passed


def test_folds_and_is_explained(made: Make) -> None:
    source, model = made()
    assert tcnn.fold(model, source=source).report.complete
    assert tcnn.explain(source, model, torch.randn(3, 3, 16, 16)).equal


def test_rows_are_those_of_the_images() -> None:
    few, many, none = torch.ones(1, 2), torch.arange(6.0).view(3, 2), torch.empty(0, 2)
    ragged = separate([few, many, none], 3)
    assert [row.tolist() for row in ragged[0].rows] == [[1, 1], [0, 1, 2, 3, 4, 5], []]
    boxes, scores = separate([{"boxes": few, "scores": few[0]}, {"boxes": 2 * few}], 2)
    assert isinstance(boxes.rows, Tensor) and [len(row) for row in scores.rows] == [2, 0]
    maps = dict(separate([torch.ones(2, 3), torch.zeros(2, 1)], 2))  # two maps of two images
    assert maps["0"].tolist() == [[1, 1, 1]] * 2 and maps["1"].tolist() == [[0], [0]]
    assert other_shapes(ragged, ragged) is None and output_errors(ragged, ragged).worst == 0
    fewer = separate([few, many[:1], many[1:]], 3)  # as many numbers in all
    assert other_shapes(ragged, fewer) == " of image 2, 6 numbers in the source and 2 in the converted model"
    assert output_errors(ragged, fewer).worst == math.inf and top1_agreement(ragged, fewer) == pytest.approx(1 / 3)
    assert top1_agreement(ragged, ragged) == 1 and not is_empty(ragged) and is_empty(separate([none], 1))
    (whole,) = joined([separate(few, 1), separate(few, 1)])
    assert isinstance(whole.rows, Tensor) and whole.rows.shape == (2, 2)


class SharedHead(nn.Module):
    """One head on maps of two resolutions, of which the second is the stage's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.lowest = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> list[Tensor]:
        first = self.down(self.stem(x).relu()).relu()
        second = self.lowest(first).relu()
        return [self.head(one).flatten(1) for one in (first, second)]


def test_a_shared_head_is_not_converted_and_left_alone_at_once() -> None:
    _, report = tcnn.convert(SharedHead(), input_size=32)
    names = {layer.name for layer in report.layers}
    assert "head" in names and names.isdisjoint(left.name for left in report.skipped)
