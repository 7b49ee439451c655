"""The course of τ over a run: a function of the number of updates, and what a user is told of it."""

import re
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import timm
from tiny_runs import TwoConvs, seeded, tiny
from torch import nn

from tcnn import convert
from tcnn.config import finetune_config
from tcnn.conversion.annealing import temperature
from tcnn.errors import RequestError
from tcnn.training.recipe.annealing import Annealing, annealing_notes, annealing_schedule


@cache
def source() -> nn.Module:
    """A CNN that is only read, as its conversions are."""
    return timm.create_model("test_resnet", num_classes=3)


@cache
def converted(**options: Any) -> nn.Module:
    return convert(source(), **options).model


def course(
    model: nn.Module | None = None, steps: int = 10, converted_at: int | None = None, **options: Any
) -> Annealing:
    return annealing_schedule(converted() if model is None else model, tiny(**options), steps, converted_at)


@pytest.mark.parametrize(
    ("options", "begin", "length"),
    [
        ({}, 0, 10),
        ({"warmup_epochs": 0.5}, 0, 5),
        ({"anneal_epochs": 1.5}, 0, 15),
        ({"anneal": "none"}, 0, 0),
        ({"anneal": "hold"}, 0, 0),
    ],
)
def test_lengths(options: dict[str, Any], begin: int, length: int) -> None:
    found = course(**options)
    assert (found.begin, found.length, found.ends) == (begin, length, begin + length)


def test_a_model_that_is_there_already_is_not_annealed() -> None:
    model = converted(temperature=1)
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


def test_log_tau_rises_evenly_and_the_first_update_is_a_step() -> None:
    """As it did when there was one τ."""
    found = course(steps=23)
    for update in range(30):
        expected = temperature(update, 1 / 46, 23)
        assert found.temperatures(update) == pytest.approx((expected, expected), rel=1e-6)
    assert found.temperatures(22) == (1, 1)


@pytest.mark.parametrize("path", ["log", "drift"])
def test_two_ends(path: str) -> None:
    found = course(steps=8, gate_temperature=0.7, position_temperature=0.2, anneal_path=path)
    taus = [found.temperatures(update) for update in range(12)]
    assert taus[7:] == [(0.7, 0.2)] * 5
    assert all(a.gate < b.gate and a.position < b.position for a, b in pairwise(taus[:8]))
    late = course(steps=8, converted_at=24, epochs=9, convert_at=3, anneal_path=path)
    assert [late.temperatures(24 + update) for update in range(9)] == [
        course(steps=8, anneal_path=path).temperatures(update) for update in range(9)
    ]


def test_at_once() -> None:
    found = course(anneal="none", gate_temperature=0.5)
    assert found.temperatures(0) == (0.5, 1)
    assert found.over(0)


def test_a_convolution_for_good() -> None:
    """Nothing is on its way, so every epoch counts; λ, α and Δ never learn."""
    found = course(anneal="hold", gate_temperature=0.5)
    assert found.over(0)
    for update in (0, 100):
        assert found.temperatures(update) == pytest.approx((1 / 46, 1 / 46))
        assert found.frozen(update) == ("gating_param", "locality_raw", "attention_centers")


@pytest.mark.parametrize(
    ("hold", "names"),
    [
        ("none", ()),
        ("gates", ("gating_param",)),
        ("all", ("gating_param", "locality_raw", "attention_centers")),
    ],
)
def test_who_waits(hold: str, names: tuple[str, ...]) -> None:
    found = course(hold=hold, converted_at=30, epochs=5, convert_at=3)
    assert [found.frozen(update) for update in (30, 39, 40, 1000)] == [names, names, (), ()]


@pytest.mark.parametrize("path", ["log", "drift"])
def test_the_steepest_update(path: str) -> None:
    """Of 7 updates each loses a seventh; a course in log τ loses most near its end."""
    found = course(steps=7, anneal_path=path)
    lost = found.steepest_change()
    assert lost > 1 / 7 * (1 - 0.2327) - 1e-3
    assert (lost < 0.16) == (path == "drift")
    assert course(anneal="none").steepest_change() == 0


@pytest.mark.parametrize(
    ("options", "steps", "words"),
    [
        # The paper's recipe on 5,000 images, in batches of 1,024.
        (
            {"epochs": 50, "warmup_epochs": 5},
            4,
            "20 updates are too few .* takes about 118: use --anneal hold",
        ),
        ({"epochs": 50, "warmup_epochs": 5}, 20, "100 updates"),
        ({"epochs": 50, "warmup_epochs": 5}, 24, None),
        ({"epochs": 50, "warmup_epochs": 5, "anneal_path": "drift"}, 5, "25 updates"),
        ({"epochs": 50, "warmup_epochs": 5, "anneal_path": "drift"}, 10, None),
        ({"epochs": 50, "warmup_epochs": 5, "gate_temperature": 0.1, "position_temperature": 0.1}, 2, None),
        ({"epochs": 50, "warmup_epochs": 5, "anneal": "none"}, 4, None),
        ({"epochs": 50, "warmup_epochs": 5, "anneal": "hold"}, 4, None),
    ],
)
def test_too_few_updates_are_said(options: dict[str, Any], steps: int, words: str | None) -> None:
    lines = [line for line in annealing_notes(converted(), tiny(**options), steps) if "too few" in line]
    assert len(lines) == (words is not None)
    if words is not None:
        assert re.match(f"anneal_epochs: {words}", lines[0])


def test_a_shortened_warm_up_is_said() -> None:
    def said(**options: Any) -> list[str]:
        config = finetune_config(options=options)
        return [line for line in annealing_notes(converted(), config, 1000) if line.startswith("warmup_epochs")]

    assert said(epochs=4) == ["warmup_epochs: 0.4, a tenth of the 4 epochs, as none was given"]
    assert said(epochs=4, fraction=0.5) == said(epochs=4)
    assert said(epochs=4, warmup_epochs=2) == said(epochs=50) == said(epochs=100) == []


def test_what_has_no_meaning_for_a_model() -> None:
    with pytest.raises(RequestError, match="matching: there is no annealing, as τ is at its end already"):
        annealing_notes(converted(temperature=1), tiny(matching=1), 10)
    lines = annealing_notes(convert(seeded(TwoConvs)).model, tiny(bn_reestimate=3), 1000)
    assert lines == ["bn_reestimate: TwoConvs has no batch normalisation, so nothing is taken anew"]
    assert annealing_notes(converted(), tiny(bn_reestimate=3), 1000) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 2}, []),
        ({"epochs": 3, "anneal_epochs": 1.1}, ["from epoch 2 on"]),
        ({"epochs": 3, "anneal_epochs": 2.5}, ["from epoch 3 on"]),
        ({"epochs": 3, "anneal_epochs": 4}, ["after 800 updates, the run after 600: its best epoch is the last"]),
        ({"epochs": 3, "anneal": "none"}, []),
        ({"epochs": 3, "anneal_epochs": 1, "convert_at": 1}, ["from epoch 2 on"]),
        (
            {"epochs": 3, "anneal": "none", "convert_at": 1},
            ["convert_at: the best epoch is one from epoch 2 on"],
        ),
        ({"epochs": 3, "convert": False}, []),
    ],
)
def test_which_epochs_are_compared_is_said(options: dict[str, Any], said: list[str]) -> None:
    model = seeded(TwoConvs) if {"convert", "convert_at"} & options.keys() else None
    lines = annealing_notes(converted() if model is None else model, tiny(**options), 200)
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert words in line
        assert words.startswith("convert_at: ") or line.startswith("anneal_epochs: ")


def test_a_held_convolution_without_content_heads_is_named() -> None:
    """Its attention would never learn anything, and nothing else would say so."""

    def said(model: nn.Module, **options: Any) -> list[str]:
        return [
            line for line in annealing_notes(model, tiny(anneal="hold", **options), 200) if line.startswith("anneal:")
        ]

    assert len(said(converted())) == 1
    assert said(converted(content_heads=2)) == []
    assert len(said(source(), epochs=4, convert_at=2)) == 1
    assert said(source(), epochs=4, convert_at=2, conversion={"content_heads": 1}) == []
    assert said(source(), convert=False) == []
