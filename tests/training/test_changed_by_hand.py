"""Modules of timm that were changed by hand before they are trained: their classifier counts, their files say so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import COLOURS, colours, run, tiny
from torch import nn

import tcnn
from tcnn.errors import CheckpointError, RequestError
from tcnn.training.preparing.prepare import Start, prepare

Lively = Callable[..., nn.Module]


def begin(source: nn.Module) -> Start:
    return prepare(source, tiny(), COLOURS, pretrained=False)


@pytest.mark.parametrize("built_with", [1000, 0])
def test_a_classifier_of_the_right_width_is_kept(built_with: int, lively: Lively) -> None:
    """It was replaced by random weights, since timm's `num_classes` had another width."""
    source: Any = lively("test_resnet", num_classes=built_with)
    source.fc = nn.Linear(source.num_features, len(COLOURS))
    start = begin(source)
    model: Any = start.model
    assert start.notes == ()
    assert not start.new_classifier
    assert torch.equal(model.fc.weight, source.fc.weight)
    assert model.num_classes == len(COLOURS)
    assert source.num_classes == built_with


@pytest.mark.parametrize(
    ("built_with", "width", "said"),
    [(len(COLOURS), 7, "7 → 3 classes"), (1000, None, "1000 → 3 classes"), (0, None, "0 → 3 classes")],
)
def test_another_width_is_replaced(built_with: int, width: int | None, said: str, lively: Lively) -> None:
    source: Any = lively("test_resnet", num_classes=built_with)
    if width is not None:
        source.fc = nn.Linear(source.num_features, width)
    start = begin(source)
    assert start.notes == (f"classifier replaced: {said}",)
    assert start.new_classifier
    assert start.model(torch.zeros(2, 3, 32, 32)).shape == (2, len(COLOURS))


def test_features_of_that_number_are_no_classes(lively: Lively) -> None:
    source: Any = lively("test_resnet", num_classes=0)
    names = [str(number) for number in range(source.num_features)]
    assert prepare(source, tiny(), names, pretrained=False).new_classifier


def test_a_module_that_states_a_wrong_number_is_told(lively: Lively) -> None:
    source: Any = lively("test_resnet", num_classes=5)
    source.reset_classifier = lambda classes: None
    with pytest.raises(RequestError, match=r"expected an output of \(1, 3\).* found \(1, 5\)"):
        begin(source)


@pytest.mark.filterwarnings("error:the model is not as")
def test_the_files_of_its_run_load_with_it(lively: Lively, tmp_path: Path) -> None:
    """They loaded as timm's network, which computes something else; now the run says it before it begins."""
    source: Any = lively("test_resnet", num_classes=5)
    source.act1 = nn.GELU()
    said: list[str] = []
    result = run(source, colours(tmp_path / "colours"), tmp_path / "run", compare=True, say=said.append)
    assert said[0] == "classifier replaced: 5 → 3 classes"
    assert "act1: gelu" in said[1]
    assert "tcnn.load(FILE, source=MODEL)" in said[1]
    assert result.before_after is not None
    assert all(row.missing is None for row in result.before_after.rows)
    with pytest.raises(CheckpointError, match="act1: gelu"):
        tcnn.load(result.best)
    loaded: Any = tcnn.load(result.best, source=source)
    assert isinstance(loaded.act1, nn.GELU)
    assert loaded.fc.out_features == len(COLOURS)
    assert source.fc.out_features == 5
