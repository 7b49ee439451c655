"""Non-locality and entropy against the formulas written out in loops; the circles against a sum over a fine grid;
spans of every kind of positions: of τ = 1 whatever τ is, as the wide positional attention there is.
"""

import math

import pytest
import torch
from torch import Tensor, nn

import tcnn
from tcnn.analysis import measures
from tcnn.analysis.attention import encode
from tcnn.analysis.recorded import RecordedLayer
from tcnn.analysis.records import Layer
from tcnn.config import PositionKind
from tcnn.layers import GPSA2d
from tcnn.layers.terms import positions
from tcnn.layers.terms.kinds import NAMES
from tcnn.training.runs.recorder import layer_state

CASES = [
    ({"kernel_size": 3, "padding": 1}, (7, 7)),
    ({"kernel_size": 3, "padding": 1, "stride": 2}, (8, 5)),
    ({"kernel_size": (2, 4), "padding": (1, 2), "stride": (2, 1)}, (6, 9)),
    ({"kernel_size": 3, "dilation": 2}, (9, 6)),
]


def trained(geometry: dict[str, object]) -> GPSA2d:
    torch.manual_seed(1)
    layer = GPSA2d(4, 4, dtype=torch.float64, **geometry)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.set_temperature(1)
        layer.gating_param.normal_()
        layer.locality_raw.uniform_(0.05, 1.5)
        layer.query.mul_(60)
        layer.key.mul_(60)
    return layer


def kept(layer: GPSA2d, size: tuple[int, int], images: int = 2) -> RecordedLayer:
    batch = torch.randn(images, 4, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return encode(nn.Sequential(layer), batch).layers["0"]


def written_out(layer: GPSA2d, size: tuple[int, int], part: str) -> tuple[list[float], list[float]]:
    """Eq. 8 and the entropy, head by head, query by query, key by key, from the layer's own maps."""
    batch = torch.randn(2, 4, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    maps = layer.attention(batch)
    weights = maps.total if part == "total" else getattr(maps, part)
    weights = (weights if weights.dim() == 4 else weights[None]).tolist()
    height, width = positions.pad(batch, layer.geometry).shape[-2:]
    rows, columns = positions.output_size((height, width), layer.geometry)
    (top, left), (down, right) = layer.geometry.centre, layer.geometry.stride
    far, wide = [], []
    for head in range(layer.heads):
        distance = surprise = 0.0
        for image in weights:
            for i in range(rows):
                for j in range(columns):
                    for key, weight in enumerate(image[head][i * columns + j]):
                        y, x = key // width, key % width
                        distance += weight * math.hypot(y - top - i * down, x - left - j * right)
                        surprise -= weight * math.log(weight) if weight > 0 else 0.0
        queries = len(weights) * rows * columns
        far.append(distance / queries)
        wide.append(surprise / queries)
    return far, wide


@pytest.mark.parametrize(("geometry", "size"), CASES)
@pytest.mark.parametrize("part", ["total", "content", "positional"])
def test_against_the_formula(geometry: dict[str, object], size: tuple[int, int], part: str) -> None:
    layer = trained(geometry)
    found = measures.measure(kept(layer, size))
    far, wide = written_out(layer, size, part)
    assert getattr(found.non_locality, part).tolist() == pytest.approx(far, rel=1e-12)
    assert getattr(found.entropy, part).tolist() == pytest.approx(wide, rel=1e-12)
    assert found.prefix.tolist() == [0.0] * layer.heads


def test_however_few_queries_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = kept(trained({"kernel_size": 3, "padding": 1}), (6, 7))
    whole = measures.measure(layer)
    monkeypatch.setattr(measures, "CHUNK_ELEMENTS", 1)
    single = measures.measure(layer)
    for one, other in zip(whole.non_locality + whole.entropy, single.non_locality + single.entropy, strict=True):
        assert torch.allclose(one, other, rtol=1e-13)


def test_a_converted_layer_is_as_far_as_its_taps() -> None:
    """‖Δ‖: 0 for the centre, 1 for its four neighbours, √2 for the corners; and no entropy at all."""
    layer = GPSA2d(4, 4, 3, padding=1, dtype=torch.float64)
    found = measures.measure(kept(layer, (6, 6)))
    root = math.sqrt(2)
    assert found.non_locality.total.tolist() == pytest.approx([root, 1, root, 1, 0, 1, root, 1, root], abs=1e-12)
    assert found.entropy.total.abs().max() < 1e-12


def test_even_attention_has_the_entropy_of_all_keys() -> None:
    layer = trained({"kernel_size": 3, "padding": 1})
    with torch.no_grad():
        layer.query.zero_()
    found = measures.measure(kept(layer, (4, 5)))
    assert found.entropy.content.tolist() == pytest.approx([math.log(6 * 7)] * 9)


@pytest.mark.parametrize(("strength", "temperature"), [(1.0, 1.0), (0.3, 1.0), (2.0, 0.2)])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_circles_hold_their_share(strength: float, temperature: float, share: float) -> None:
    radius = measures.circle(strength / temperature, share)
    axis = torch.linspace(-8, 8, 1601, dtype=torch.float64)
    square = axis[:, None] ** 2 + axis[None] ** 2
    weights = torch.exp(-strength / temperature * square)
    assert (weights[square <= radius**2].sum() / weights.sum()).item() == pytest.approx(share, abs=2e-3)


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
