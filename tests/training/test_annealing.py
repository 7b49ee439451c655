"""The course of τ over a run: a function of the number of updates, and what a user is told of it."""

from typing import Any

import pytest
import timm
from tiny_runs import TwoConvs, seeded, tiny
from torch import nn

from tcnn import convert
from tcnn.training.annealing import Annealing, annealing_of, remarks


def source() -> nn.Module:
    return timm.create_model("test_resnet", num_classes=3)


def course(
    model: nn.Module | None = None, steps: int = 10, converted_at: int | None = None, **options: Any
) -> Annealing:
    return annealing_of(convert(source()).model if model is None else model, tiny(**options), steps, converted_at)


@pytest.mark.parametrize(
    ("options", "begin", "length"),
    [
        ({}, 0, 10),
        ({"warmup_epochs": 0.5}, 0, 5),
        ({"anneal_epochs": 1.5}, 0, 15),
        ({"anneal": "none"}, 0, 0),
    ],
)
def test_lengths(options: dict[str, Any], begin: int, length: int) -> None:
    found = course(**options)
    assert (found.begin, found.length, found.ends) == (begin, length, begin + length)


def test_a_model_that_is_there_already_is_not_annealed() -> None:
    model = convert(source(), temperature=1).model
    assert course(model) == Annealing()
    assert course(model).over(0)


def test_a_cnn_has_no_course() -> None:
    assert course(seeded(TwoConvs), convert=False) == Annealing()
    assert course(seeded(TwoConvs), convert=False).over(0)


@pytest.mark.parametrize(("anneal", "over"), [("warmup", 40), ("none", 31)])
def test_late_conversion(anneal: str, over: int) -> None:
    """It is known from the beginning; the CNN is never annealed, even if the T-CNN is at once."""
    before = course(seeded(TwoConvs), epochs=5, convert_at=3, anneal=anneal)
    after = course(epochs=5, convert_at=3, anneal=anneal, converted_at=30)
    assert (before.begin, before.length) == (after.begin, after.length)
    assert before.start == pytest.approx(after.start)
    assert [updates for updates in range(50) if before.over(updates)] == list(range(over, 50))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 2}, []),
        ({"epochs": 3, "anneal_epochs": 1.1}, ["from epoch 2 on"]),
        ({"epochs": 3, "anneal_epochs": 2.5}, ["from epoch 3 on"]),
        ({"epochs": 3, "anneal_epochs": 4}, ["400 of 300 updates, so the best epoch is the last"]),
        ({"epochs": 3, "anneal": "none"}, []),
        ({"epochs": 3, "anneal_epochs": 1, "convert_at": 1}, ["from epoch 2 on"]),
        ({"epochs": 3, "anneal": "none", "convert_at": 1}, ["from epoch 2 on"]),
        ({"epochs": 3, "convert": False}, []),
    ],
)
def test_which_epochs_are_compared_is_said(options: dict[str, Any], said: list[str]) -> None:
    model = seeded(TwoConvs) if {"convert", "convert_at"} & options.keys() else None
    lines = remarks(course(model, 100, **options), tiny(**options), 100)
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert words in line
        assert line.startswith("anneal_epochs: ")
