"""Terms of attention by themselves: margins and peaks of Gaussians, traces of weights, what counts as eager."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tcnn.layers.terms.eager import fake_as_real, runs_eagerly
from tcnn.layers.terms.positions import without_traces
from tcnn.layers.terms.quadratic import Quadratic


def gaussians(count: int) -> Quadratic:
    draw = torch.Generator().manual_seed(0)
    raw = 0.5 * torch.randn(count, 3, generator=draw, dtype=torch.float64) + torch.tensor([2.0, 2.0, 0.0])
    return Quadratic(raw, 2 * torch.randn(count, 2, generator=draw, dtype=torch.float64))


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
