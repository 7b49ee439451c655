"""Fourier features of positions against the formula, at odd and even, square and oblong grids."""

import math

import pytest
import torch

from tcnn.vit.positions import coordinates, draw_offsets, fourier_features, indices, neighbours

GRIDS = [(2, 2), (5, 5), (8, 12), (14, 14), (16, 3)]


@pytest.mark.parametrize("grid", GRIDS)
def test_products_are_the_dirichlet_kernel(grid: tuple[int, int]) -> None:
    points = coordinates(grid)
    features = fourier_features(points, grid, 2 * sum(grid))
    found = features @ features.T
    for first, second in torch.randint(len(points), (200, 2), generator=torch.Generator().manual_seed(0)).tolist():
        expected = 0.0
        for axis, side in enumerate(grid):
            distance = (points[first, axis] - points[second, axis]).item()
            terms = (math.cos(2 * math.pi * m * distance / (2 * side + 1)) for m in range(1, side + 1))
            expected += 2 / (2 * side + 1) * sum(terms)
        assert found[first, second].item() == pytest.approx(expected, abs=1e-13)
    kernel = [2 * side / (2 * side + 1) for side in grid]
    assert found.diagonal().allclose(torch.tensor(sum(kernel)).double())
    others = found.masked_fill(torch.eye(len(points)).bool(), -9)
    assert others.max() < sum(kernel) - 0.99


@pytest.mark.parametrize(
    ("grid", "width"), [((14, 14), 64), ((28, 28), 64), ((28, 28), 32), ((9, 40), 48), ((3, 3), 4)]
)
def test_the_product_is_largest_at_the_same_place(grid: tuple[int, int], width: int) -> None:
    """Also where the features do not fit, and in no more room than was asked for."""
    points = coordinates(grid)
    features = fourier_features(points, grid, width)
    assert features.shape == (len(points), width)
    assert torch.equal((features @ features.T).argmax(1), torch.arange(len(points)))


def test_where_heads_look() -> None:
    grid = (3, 4)
    assert indices(neighbours(grid, (1, -1)), grid).tolist() == [4, 4, 5, 6, 8, 8, 9, 10, 8, 8, 9, 10]
    assert indices(neighbours(grid, (0, 0)), grid).tolist() == list(range(12))


def test_offsets_fill_the_window_before_one_comes_twice() -> None:
    drawn = draw_offsets(12, 3, torch.Generator().manual_seed(0))
    assert sorted(drawn[:9]) == [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    assert len(set(drawn[9:])) == 3
    assert draw_offsets(12, 3, torch.Generator().manual_seed(0)) == drawn
    assert draw_offsets(12, 3, torch.Generator().manual_seed(1)) != drawn
    assert {abs(part) for offset in draw_offsets(25, 5, torch.Generator()) for part in offset} == {0, 1, 2}
