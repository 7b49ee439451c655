"""The course of τ over a run: a function of the number of updates, and what a user is told of it; what a tap loses,
against the layer's own attention in float64, and paths with equal steps.
"""

import math
import re
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import timm
import torch
from tiny_runs import TwoConvs, seeded, tiny
from torch import nn

import tcnn
from tcnn import convert
from tcnn.config import finetune_config
from tcnn.conversion.annealing import temperature
from tcnn.errors import RequestError
from tcnn.layers.terms import positions
from tcnn.training.recipe.annealing import (
    Annealing,
    Path,
    Temperatures,
    annealing_notes,
    annealing_schedule,
    content_share,
    interpolate,
    neighbour_share,
    tap_weight,
)


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


def test_what_drift_takes_from_a_tap_in_every_update() -> None:
    """As docs/finetune.md says."""
    found = course(steps=100, anneal_path="drift")
    weights = [1, *(tap_weight(found.temperatures(update)) for update in range(100))]
    lost = [before - after for before, after in pairwise(weights)]
    even = (1 - weights[-1]) / 100
    assert lost == sorted(lost, reverse=True)
    assert (lost[0] / even, lost[-1] / even) == pytest.approx((1.24, 0.76), abs=0.01)


@pytest.mark.parametrize("path", ["log", "drift"])
def test_the_steepest_update(path: str) -> None:
    """By drift an update loses not much more than another; a course in log τ loses most near its end."""
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


TAUS = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
HARD = Temperatures(1 / 46, 1 / 46)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (2, 4)])
def test_shares_are_those_of_a_layer(tau: float, kernel: tuple[int, int]) -> None:
    """In the middle of a map so large that its edges are out of sight."""
    geometry = positions.Geometry(kernel)
    one = torch.ones(geometry.heads, dtype=torch.float64)
    rows, columns = positions.positional_attention(one / tau, positions.tap_offsets(geometry), (61, 73), geometry)
    row, column = (count // 2 for count in positions.output_size((61, 73), geometry))
    for head, (down, right) in enumerate(positions.tap_coordinates(geometry)):
        y, x = row + geometry.centre[0] + int(down), column + geometry.centre[1] + int(right)
        own = rows[head, row, y] * columns[head, column, x]
        assert 1 - neighbour_share(tau) == pytest.approx(float(own), rel=1e-12)
    layer = tcnn.GPSA2d(4, 4, kernel, temperature=tau, dtype=torch.float64)
    assert 1 - content_share(tau) == pytest.approx(layer.gate[0].item(), rel=1e-12)


@pytest.mark.parametrize(("tau", "weight"), [(0.2, 0.9671), (0.3, 0.8412), (0.5, 0.5449), (1, 0.2327)])
def test_weights_are_those_of_math_md(tau: float, weight: float) -> None:
    assert tap_weight(Temperatures(tau, tau)) == pytest.approx(weight, abs=5e-5)


def test_what_is_tiny_is_exact() -> None:
    """1 − (1 − x) would be 0 here."""
    assert content_share(1 / 46) == pytest.approx(math.exp(-46), rel=1e-12)
    assert neighbour_share(1 / 46) == pytest.approx(4 * math.exp(-46), rel=1e-12)


@pytest.mark.parametrize("path", ["log", "drift"])
@pytest.mark.parametrize("end", [(1, 1), (1, 0.2), (0.2, 1), (1 / 46, 0.5), (2, 3)])
def test_paths_begin_and_end_where_they_should_and_never_turn(path: Path, end: tuple[float, float]) -> None:
    there = Temperatures(*end)
    shares = [number / 20 for number in range(21)]
    for begin, finish in ((HARD, there), (there, HARD)):
        taus = [interpolate(path, begin, finish, share) for share in shares]
        assert taus[0] == pytest.approx(begin, rel=1e-9)
        assert taus[-1] == finish
        for dial in (0, 1):
            values = [tau[dial] for tau in taus]
            assert values in (sorted(values), sorted(values, reverse=True))


def test_a_path_in_log_tau() -> None:
    values = [interpolate("log", HARD, Temperatures(1, 0.2), share / 8) for share in range(9)]
    for dial, end in ((0, 1), (1, 0.2)):
        steps = [math.log(b[dial] / a[dial]) for a, b in pairwise(values)]
        assert steps == pytest.approx([math.log(46 * end) / 8] * 8, rel=1e-9)


@pytest.mark.parametrize("end", [(1, 1), (1, 0.2), (0.3, 0.5)])
def test_a_drift_uniform_path_loses_equally_much_at_every_step(end: tuple[float, float]) -> None:
    values = [interpolate("drift", HARD, Temperatures(*end), share / 50) for share in range(51)]
    for dial, lost in ((0, content_share), (1, neighbour_share)):
        steps = [lost(b[dial]) - lost(a[dial]) for a, b in pairwise(values)]
        assert steps == pytest.approx([lost(end[dial]) / 50] * 50, rel=1e-8)
    assert values[1].gate > 0.1, "it wastes no update on a τ at which nothing is lost"
