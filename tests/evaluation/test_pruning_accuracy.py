"""Accuracy before and after pruning: the model's outputs and the data set's classes are matched by their names."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_runs import colours
from torch import nn

from tcnn.errors import RequestError
from tcnn.evaluation.pruning import measure_on


@pytest.fixture
def model(lively: Callable[..., nn.Module]) -> nn.Module:
    """Says red to everything, its first class, which is the last of a folder's."""
    made = lively(num_classes=3)
    with torch.no_grad():
        made.fc.weight.zero_()  # type: ignore[operator, union-attr]
        made.fc.bias.copy_(torch.tensor([1.0, 0.0, 0.0]))  # type: ignore[operator, union-attr]
    made.pretrained_cfg = {**made.pretrained_cfg, "label_names": ["red", "green", "blue"]}  # type: ignore[dict-item]
    return made


def unequal(root: Path, *classes: str) -> str:
    """Five red images, three green ones, two of every other colour."""
    for name in classes:
        colours(root, {"red": 5, "green": 3}.get(name, 2), (name,))
    return str(root)


def test_classes_are_matched_by_name(model: nn.Module, tmp_path: Path) -> None:
    """A folder's first class was taken for the model's first."""
    found = measure_on("x.safetensors", unequal(tmp_path / "all", "red", "green", "blue"), 32)(model, model)
    assert (found.images, found.before, found.after) == (10, 0.5, 0.5)
    found = measure_on("x.safetensors", unequal(tmp_path / "two", "red", "blue"), 32)(model, model)
    assert (found.images, round(found.before, 6)) == (7, round(5 / 7, 6))


def test_other_classes_are_refused(model: nn.Module, tmp_path: Path) -> None:
    """As many others were measured as if they were the model's."""
    measure = measure_on("x.safetensors", unequal(tmp_path / "other", "red", "green", "teal"), 32)
    with pytest.raises(RequestError, match=r"different classes: teal only in the data set, blue only in the model"):
        measure(model, model)
