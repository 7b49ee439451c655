"""Fourier features of the positions of a grid, whose products are 1 at one offset and 0 at every other.

With the harmonics ω = 2π·m/(2·n + 1), m = 1…n, of an axis of n pixels, 2/(2·n + 1)·Σ cos ω·δ is 2n/(2n + 1) at δ = 0
and −1/(2n + 1) at every other whole distance up to 2·n (the Dirichlet kernel without its constant, which a softmax does
not see). A query that holds the features of where it looks, and keys that hold those of where they lie, therefore
attend to one pixel. All of them take 2·(H + W) numbers; fewer take the lowest harmonics, and the peak becomes wider.

Shapes: H, W the grid, N = H·W positions in row-major order, (y, x).
"""

import math

import torch
from torch import Tensor

from tcnn.layers.terms.positions import Pair


def coordinates(grid: Pair) -> Tensor:
    """(N, 2) float64: y and x of every position of the grid."""
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return torch.stack([y.flatten(), x.flatten()], 1).double()


def fourier_features(points: Tensor, grid: Pair, width: int) -> Tensor:
    """Features of points (…, 2) on a grid, (…, width) float64, of squared norm close to 2; the rest of `width` is 0.

    An axis gets as many harmonics as its share of H + W, at most all of them.
    """
    across = min(grid[1], max(1, width // 2 - min(grid[0], max(1, round(width / 2 * grid[0] / sum(grid))))))
    found = []
    for axis, count in enumerate((min(grid[0], width // 2 - across), across)):
        harmonics = torch.arange(1, count + 1, dtype=torch.float64)
        angles = points[..., axis, None] * harmonics * (2 * math.pi / (2 * grid[axis] + 1))
        amplitude = (1 / count if count < grid[axis] else 2 / (2 * grid[axis] + 1)) ** 0.5
        found += [angles.cos() * amplitude, angles.sin() * amplitude]
    features = torch.cat(found, -1)
    return torch.nn.functional.pad(features, (0, width - features.shape[-1]))


def neighbours(grid: Pair, offset: Pair) -> Tensor:
    """(N, 2) float64: where every position looks at an offset (y, x); at the border it looks at the border."""
    moved = coordinates(grid) + torch.tensor(offset)
    return torch.minimum(moved.clamp(min=0), torch.tensor(grid) - 1.0)


def indices(points: Tensor, grid: Pair) -> Tensor:
    """(N,) which position of the grid each of the points (N, 2) is."""
    return (points[:, 0] * grid[1] + points[:, 1]).long()


def draw_offsets(heads: int, window: int, generator: torch.Generator) -> list[Pair]:
    """Random offsets (y, x) of the heads in a window around the pixel: all of it before one comes twice."""
    reach = window // 2
    drawn: list[int] = []
    while len(drawn) < heads:
        drawn += torch.randperm(window**2, generator=generator).tolist()
    return [(one // window - reach, one % window - reach) for one in drawn[:heads]]
