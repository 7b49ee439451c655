"""What decides over a head: against plain sums over a large grid, and by what each of its kinds would cost."""

import math

import pytest
import torch

from tcnn.folding.foldable import Head, heads_of, largest_within, tolerances
from tcnn.layers import GPSA2d
from tcnn.layers.terms.isotropic import positional_peak


def layer(**options: object) -> GPSA2d:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPSA2d(**{"in_channels": 4, "out_channels": 6, "kernel_size": 3, "padding": 1, **options})  # type: ignore[arg-type]


@torch.no_grad()
def moved(**parameters: dict[int, object]) -> tuple[Head, ...]:
    """The heads of a converted layer some of whose parameters were changed: name = {head: value}."""
    made = layer()
    for name, values in parameters.items():
        for head, value in values.items():
            getattr(made, name)[head] = torch.tensor(value)
    return heads_of(made)


@pytest.mark.parametrize("strength", [0.05, 0.5, 1.0, 7.0, 46.0])
@pytest.mark.parametrize("offset", [(0.0, 0.0), (0.3, -0.45), (0.5, 0.0)])
def test_peak_is_that_of_an_unbounded_map(strength: float, offset: tuple[float, float]) -> None:
    reach = range(-60, 61)
    here = math.exp(-strength * (offset[0] ** 2 + offset[1] ** 2))
    total = sum(math.exp(-strength * ((i - offset[0]) ** 2 + (j - offset[1]) ** 2)) for i in reach for j in reach)
    found = positional_peak(*(torch.tensor([x], dtype=torch.float64) for x in (strength, offset)))
    assert found.item() == pytest.approx(here / total, rel=1e-12)


def test_no_map_gives_the_pixel_less() -> None:
    made = layer(temperature=0.7)
    with torch.no_grad():
        made.attention_centers.add_(torch.rand(9, 2, generator=torch.Generator().manual_seed(0)) - 0.5)
    heads = heads_of(made)
    positional = made.attention(torch.zeros(1, 4, 6, 5)).positional  # (K, M, N)
    for number, head in enumerate(heads):
        peak = (1 - head.outside) / head.gate
        assert head.tap is not None
        row, column = divmod(head.tap, 3)
        for i, j in ((0, 0), (2, 3), (5, 4)):
            assert positional[number, i * 5 + j, (i + row) * 7 + j + column].item() >= peak * (1 - 1e-6)


def test_a_converted_layer_is_all_taps_exactly() -> None:
    for options in ({}, {"dilation": 2}, {"kernel_size": (2, 4)}, {"stride": 2}, {"dtype": torch.float64}):
        heads = heads_of(layer(**options))
        assert [head.tap for head in heads] == list(range(len(heads)))
        assert all(head.outside == 0 and head.kind(0) == "convolution" for head in heads)
        assert sum(head.weight**2 for head in heads) == pytest.approx(1)


def test_at_temperature_1_nothing_is_a_tap() -> None:
    assert {head.kind(0) for head in heads_of(layer(temperature=1))} == {"attention"}


def test_a_head_may_move_to_another_tap() -> None:
    heads = moved(attention_centers={0: (1.0, 1.0), 4: (0.0, -1.05)})
    assert [heads[0].tap, heads[4].tap] == [8, 3]
    assert [heads[0].kind(0), heads[4].kind(0)] == ["convolution", "convolution"]


def test_a_head_that_left_the_kernel_stays_attention() -> None:
    heads = moved(attention_centers={0: (-2.0, 0.0), 1: (0.0, 1.6)})
    assert [heads[0].tap, heads[1].tap] == [None, None]
    assert [heads[0].kind(0), heads[1].kind(0)] == ["attention", "attention"]


def test_a_pixel_between_dilated_taps_is_none() -> None:
    made = layer(dilation=2, padding=2)
    with torch.no_grad():
        made.attention_centers[0] = torch.tensor((-1.0, 0.0))
    assert heads_of(made)[0].tap is None


def test_gate_decides_between_tap_and_content() -> None:
    heads = moved(gating_param={0: -1.0, 1: 0.0, 2: 0.3})
    assert [head.kind(0) for head in heads[:3]] == ["content", "attention", "attention"]
    assert heads[1].gate == 0.5
    assert heads[1].outside == 0.5


def test_dead_heads_go_but_a_tap_keeps_its_zeros() -> None:
    made = layer()
    with torch.no_grad():
        made.proj[:, :8] = 0
        made.gating_param[1] = 0.0
    heads = heads_of(made)
    assert [head.kind(0) for head in heads[:3]] == ["convolution", "dropped", "convolution"]


def test_a_head_is_dead_when_w_val_takes_all_it_reads() -> None:
    made = layer()
    with torch.no_grad():
        made.value[0] = 0
        made.proj.unflatten(1, (9, 4))[:, 2, 1:] = 0
        made.gating_param[2] = 0.0
    assert heads_of(made)[2].kind(0) == "dropped"


def test_a_layer_without_any_weight() -> None:
    made = layer(temperature=1)
    with torch.no_grad():
        made.proj.zero_()
    assert {head.kind(0) for head in heads_of(made)} == {"dropped"}


def test_heads_without_a_place_are_content() -> None:
    made = layer(content_heads=2)
    with torch.no_grad():
        made.proj.unflatten(1, (11, 4))[:, 9:] = 0.5
    assert [(head.tap, head.gate, head.kind(0)) for head in heads_of(made)[9:]] == [(None, 0, "content")] * 2


def test_weights_are_shares_however_small_they_are() -> None:
    made = layer()
    shares = [head.weight for head in heads_of(made)]
    with torch.no_grad():
        made.proj.mul_(1e-6)
    assert [head.weight for head in heads_of(made)] == pytest.approx(shares)


def test_costs_decide() -> None:
    head = Head(tap=0, outside=0.1, gate=0.9, weight=0.5)
    assert head.costs == {"convolution": 0.05, "dropped": 0.5, "content": 0.45}
    assert [head.kind(t) for t in (0, 0.049, 0.05, 0.4, 1)] == ["attention"] * 2 + ["convolution"] * 3
    nowhere = head._replace(tap=None)
    assert [nowhere.kind(t) for t in (0, 0.44, 0.45, 0.5)] == ["attention"] * 2 + ["content", "dropped"]
    assert tolerances([head, nowhere]) == [0.0, 0.05, 0.45, 0.5]


def test_a_number_that_is_none_folds_nothing() -> None:
    assert Head(0, math.nan, math.nan, math.nan).kind(math.inf) == "attention"


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_bisection_finds_the_last_within(count: int) -> None:
    asked: list[int] = []

    def error(choice: int) -> float:
        asked.append(choice)
        return float(choice)

    for last in (-1, 0, count // 2, count - 1, count + 3):
        asked.clear()
        assert largest_within(count, error, last) == (None if last < 0 else min(last, count - 1))
        assert len(asked) == len(set(asked)) <= math.ceil(math.log2(count + 1))
