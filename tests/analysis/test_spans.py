"""Attention spans of every kind of positions: of τ = 1 whatever τ is, as the wide positional attention there is."""

import math

import pytest
import torch
from torch import Tensor, nn

import tcnn
from tcnn.analysis.records import Layer
from tcnn.config import PositionKind
from tcnn.layers.terms.kinds import NAMES
from tcnn.training.runs.recorder import layer_state

KINDS: tuple[PositionKind, ...] = tuple(NAMES)


def fresh(kind: PositionKind, temperature: float) -> tuple[nn.Module, tcnn.GPSA2d, Layer]:
    """A model of one layer as a conversion leaves it, the layer, and what an inspection on 13×13 says of it."""
    torch.manual_seed(0)
    layer = tcnn.GPSA2d(3, 4, 3, padding=1, position=kind, temperature=temperature)
    model = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    (found,) = tcnn.inspect(model, torch.randn(1, 3, 13, 13)).layers
    return model, layer, found


def spread(layer: tcnn.GPSA2d) -> Tensor:
    """Σ_j A_ij ‖δ_ij − mean‖² of every head, of the pixel in the middle of a map of 31×31."""
    maps = layer.positional_factors((31, 31), torch.zeros(1, 3, 29, 29))
    rows, columns = maps
    middle = 14  # the query of an unpadded map of 29
    if columns is None:
        whole = (rows[0] if rows.dim() == 6 else rows)[:, middle, middle]
    else:
        whole = rows[:, middle, :, None] * columns[:, middle, None]
    shift = torch.arange(31.0) - 15
    total = torch.zeros(len(whole))
    for axis in (1, 2):
        along = whole.sum(3 - axis)
        mean = along @ shift
        total = total + (along * (shift - mean[:, None]).square()).sum(1)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_a_span_is_that_of_the_attention_at_temperature_one(kind: PositionKind) -> None:
    """At τ = 1/46 embeddings that are one-hot give all weight to one pixel, and say nothing of how wide they are."""
    hard, _, found = fresh(kind, 1 / 46)
    soft, layer, at_one = fresh(kind, 1.0)
    spans = [head.span for head in found.heads]
    assert spans == [head.span for head in at_one.heads]
    assert spans == layer_state(hard)["spans"]["0"] == layer_state(soft)["spans"]["0"]
    near = 0.05 if kind in ("isotropic", "quadratic") else 1e-5  # a Gaussian of a pixel's width on a grid of pixels
    assert spans == pytest.approx(spread(layer).tolist(), rel=near)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1 / 46, 0.3])
def test_centres_and_circles_are_of_the_models_temperature(kind: PositionKind, temperature: float) -> None:
    _, layer, found = fresh(kind, temperature)
    for head, strength, centre in zip(found.heads, layer.strength.tolist(), layer.head_centres.tolist(), strict=True):
        assert head.centre == pytest.approx(centre)
        assert head.centre == pytest.approx(head.tap_offset, abs=0.1)
        assert head.radius_50 == pytest.approx(math.sqrt(math.log(2) / strength))
        assert head.radius_90 == pytest.approx(math.sqrt(math.log(10) / strength))
    if kind.startswith("relative"):
        assert (1 / layer.strength).tolist() == pytest.approx(spread(layer).tolist(), rel=1e-4, abs=1e-9)
