"""What a tap loses, against the layer's own attention in float64, and paths with equal steps."""

import math
from itertools import pairwise

import pytest
import torch

import tcnn
from tcnn.layers.terms import positions
from tcnn.training.recipe.annealing import (
    Path,
    Temperatures,
    content_share,
    interpolate,
    neighbour_share,
    tap_weight,
)

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
