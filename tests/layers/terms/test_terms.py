"""Terms of attention by themselves: margins, peaks and summaries of positions, traces of weights, what is eager; and
how W_qry and W_key are drawn.
"""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tcnn.layers import GPSA2d
from tcnn.layers.initialise import mimetic
from tcnn.layers.terms.execution import fake_as_real, runs_eagerly
from tcnn.layers.terms.isotropic import Isotropic
from tcnn.layers.terms.positions import without_traces
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.relative import Relative


def gaussians(count: int) -> Quadratic:
    draw = torch.Generator().manual_seed(0)
    raw = 0.5 * torch.randn(count, 3, generator=draw, dtype=torch.float64) + torch.tensor([2.0, 2.0, 0.0])
    return Quadratic(raw, 2 * torch.randn(count, 2, generator=draw, dtype=torch.float64))


def embeddings(count: int, reach: int = 4, width: int = 5) -> Relative:
    draw = torch.Generator().manual_seed(1)
    shapes = (2 * reach + 1, width), (2 * reach + 1, width), (count, 2, width)
    return Relative(*(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes))


def test_a_margin_is_the_smaller_eigenvalue() -> None:
    term = gaussians(7)
    torch.testing.assert_close(term.margin(), torch.linalg.eigvalsh(term.precision)[:, 0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_peaks_are_those_of_a_large_map(temperature: float) -> None:
    """The softmax of −(δ − Δ)ᵀ M (δ − Δ)/τ over all δ of at most 40 pixels, written out head by head."""
    term = gaussians(7)
    places, weights = term.peaks(torch.tensor(temperature))
    axis = torch.arange(-40, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    for head in range(7):
        away = grid - term.attention_centers[head]
        expected = torch.softmax(-(away @ term.precision[head] * away).sum(1) / temperature, 0)
        assert places[head].tolist() == grid[expected.argmax()].tolist()
        assert weights[head].item() == pytest.approx(expected.max().item(), rel=1e-6)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_peaks_of_circles_are_those_of_a_large_map(temperature: float) -> None:
    """The same with −α‖δ − Δ‖²/τ: centres lie between pixels, so that the nearest has less than at its own place."""
    draw = torch.Generator().manual_seed(2)
    raw, centres = torch.rand(5, generator=draw), 2 * torch.randn(5, 2, generator=draw)
    term = Isotropic(raw.double(), centres.double())
    places, weights = term.peaks(torch.tensor(temperature))
    axis = torch.arange(-40, 41, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    for head in range(5):
        away = grid - term.attention_centers[head]
        expected = torch.softmax(-term.strength[head] * away.square().sum(1) / temperature, 0)
        assert places[head].tolist() == grid[expected.argmax()].tolist()
        assert weights[head].item() == pytest.approx(expected.max().item(), rel=1e-6)


def test_a_gaussian_is_summed_up_by_the_circle_of_its_area() -> None:
    term = gaussians(7)
    strength, centres = term.summary(torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(strength, torch.linalg.det(term.precision).sqrt() / 0.5, rtol=1e-12, atol=0.0)
    assert torch.equal(centres, term.attention_centers)


def test_embeddings_are_summed_up_by_mean_and_spread_of_their_weights() -> None:
    """On a map as large as the table, pixel by pixel; a Gaussian's α/τ is one over its variance along both axes."""
    term, temperature = embeddings(3), 0.5
    strength, centres = term.summary(torch.tensor(temperature, dtype=torch.float64))
    shifts = [(row, column) for row in range(-4, 5) for column in range(-4, 5)]
    for head, (rows, columns) in enumerate(zip(*term.logits, strict=True)):
        logits = torch.stack([rows[row + 4] + columns[column + 4] for row, column in shifts])
        weights = torch.softmax(logits / temperature, 0)
        pixels = torch.tensor(shifts, dtype=torch.float64)
        mean = weights @ pixels
        torch.testing.assert_close(centres[head], mean, rtol=1e-12, atol=1e-12)
        variance = weights @ (pixels - mean).square().sum(1)
        assert strength[head].item() == pytest.approx(1 / variance.item(), rel=1e-12)


def test_the_margin_of_embeddings_leaves_room_for_many_keys() -> None:
    """Where the margin over τ is 40, as in the hard limit, 22,000 other keys in a row take less than exp(−40) of it."""
    term = embeddings(3)
    for head, margin in enumerate(term.margin().tolist()):
        gaps = [own[head].sort(descending=True).values for own in term.logits]
        least = min((gap[0] - gap[1]).item() for gap in gaps)
        assert least / (margin / 40) == pytest.approx(40 + 10, rel=1e-12)  # exp(10) keys


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_below_two_roots_of_tiny_are_no_traces(dtype: torch.dtype) -> None:
    root = torch.finfo(dtype).tiny ** 0.5
    weights = torch.tensor([0.0, 1.9 * root, 2.1 * root, 1.0], dtype=dtype)
    assert without_traces(weights).tolist() == [0.0, 0.0, weights[2].item(), 1.0]


def test_fake_tensors_count_as_real_ones_where_memory_is_looked_at() -> None:
    with FakeTensorMode():
        fake = torch.ones(2)
    assert not runs_eagerly(fake)
    with fake_as_real():
        assert runs_eagerly(fake, None)
    assert not runs_eagerly(fake)


def test_mimetic_weights_are_the_nearest_of_their_rank() -> None:
    """W_qryᵀ W_key has the largest singular values of 0.7·Z + 0.7·I, and no others (Eckart and Young)."""
    query, key = mimetic(12, 5, torch.Generator().manual_seed(3))
    noise = torch.randn(12, 12, generator=torch.Generator().manual_seed(3)) * 5**-0.5
    wanted = 0.7 * noise + 0.7 * torch.eye(12)
    found = (query.T @ key).double()
    assert torch.linalg.matrix_rank(query.double()) == torch.linalg.matrix_rank(key.double()) == 5
    rest = torch.linalg.svdvals(wanted.double())[5:].norm()
    assert (found - wanted.double()).norm() == pytest.approx(rest.item(), rel=1e-5)


def test_wide_heads_give_the_product_itself() -> None:
    query, key = mimetic(4, 6, torch.Generator().manual_seed(1))
    noise = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)) * 6**-0.5
    assert query.shape == key.shape == (6, 4)
    torch.testing.assert_close(query.T @ key, 0.7 * noise + 0.7 * torch.eye(4), atol=1e-5, rtol=0)


def test_pixels_look_for_their_like() -> None:
    """A query's own pixel gets more content attention than others, by far more than with small normal weights."""

    def share(kind: str) -> float:
        torch.manual_seed(0)
        layer = GPSA2d.from_conv2d(
            nn.Conv2d(32, 8, 3), head_dim=32, content_heads=4, query_key=kind,  # type: ignore[arg-type]
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        content = layer.attention(torch.randn(2, 32, 5, 5)).content
        own = torch.tensor([6, 7, 8, 11, 12, 13, 16, 17, 18])  # the nine queries' own pixels of the unpadded map
        return content[:, :, torch.arange(9), own].mean().item()

    assert share("normal") == pytest.approx(1 / 25, rel=0.05)
    assert share("mimetic") > 0.5


@pytest.mark.parametrize("kind", ["normal", "mimetic"])
def test_a_seed_means_the_same_weights(kind: str) -> None:
    def layer() -> GPSA2d:
        generator = torch.Generator().manual_seed(7)
        return GPSA2d.from_conv2d(nn.Conv2d(8, 8, 3), content_heads=2, query_key=kind, generator=generator)  # type: ignore[arg-type]

    conv = nn.Conv2d(8, 8, 3, padding=1)
    first, second = layer(), layer()
    assert torch.equal(first.query, second.query) and torch.equal(first.key, second.key)
    x = torch.randn(2, 8, 5, 4)
    assert torch.equal(GPSA2d.from_conv2d(conv, content_heads=2, query_key=kind)(x), conv(x))  # type: ignore[arg-type]
