"""Weather corruptions: snow, frost and fog."""

import numpy as np
from numpy.typing import NDArray

from tcnn.evaluation.corruptions.blur import magnify, trail
from tcnn.evaluation.corruptions.levels import Levels, Pixels

SNOW = Levels(
    large=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    small=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
)
"""Mean and deviation of the flakes, their magnification, the threshold below which there is none, radius and σ of
their motion blur in pixels, and the share of the image that is not whitened.
"""
FROST = Levels(
    large=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    small=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
)
"""Weights of the image and of the ice."""
FOG = Levels(
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
"""Thickness, and the square root of the factor by which roughness falls from one scale to the next finer one."""

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in luma (ITU-R BT.601)."""
ICE = np.array([0.8, 0.93, 1.0], np.float32)
"""Colour of ice: a bluish white."""


def snow(pixels: Pixels, level: tuple[float, ...], random: np.random.Generator) -> Pixels:
    """Snow: a whitened image under motion-blurred flakes, and the same flakes rotated by 180°."""
    mean, deviation, size, threshold, radius, sigma, share = level
    flakes = magnify(random.normal(mean, deviation, (*pixels.shape[:2], 1)).astype(np.float32), size)
    flakes = np.clip(np.where(flakes < threshold, 0, flakes), 0, 1)
    flakes = trail(flakes, radius, sigma, random.uniform(-135, -45))
    whitened = np.maximum(pixels, 1.5 * _grey(pixels) + 0.5)
    return share * pixels + np.float32(1 - share) * whitened + flakes + flakes[::-1, ::-1]


def frost(pixels: Pixels, level: tuple[float, float], random: np.random.Generator) -> Pixels:
    """Frost: the image behind a window with ice on it, a·image + b·ice.

    The benchmark overlays photographs. Here ice is drawn (`ice`).
    """
    clear, icy = level
    layer = ice(pixels.shape[0], pixels.shape[1], random)[..., None]
    return np.float32(clear) * pixels + np.float32(icy) * layer * (ICE if pixels.shape[2] == 3 else ICE @ LUMA)


def ice(height: int, width: int, random: np.random.Generator) -> NDArray[np.float32]:
    """Whiteness of the ice on a window, (H, W) between 0 and 1.

    Feathers in three directions, 60° apart, each in its own part of the window, on a film of uneven thickness. Mean,
    deviation, coarse deviation and fine structure are close to those of the benchmark's five photographs.
    """
    shape = height, width
    length = max(2.0, min(shape) / 16)
    turn = random.uniform(0, 60)
    feathers, parts = [], []
    for angle in (0, 60, 120):
        grain = random.random((*shape, 1), np.float32) ** 4
        streaks = trail(trail(grain, 1, 1.2, turn + angle + 90), length, length, turn + angle)
        feathers.append(streaks[..., 0])
        parts.append(np.exp(8 * plasma(max(shape), 1.6, random)[:height, :width]))
    feather = _standard(np.sum(np.multiply(feathers, parts), 0) / np.sum(parts, 0))
    film = _standard(plasma(max(shape), 1.4, random)[:height, :width])
    white: NDArray[np.float32] = np.clip(random.uniform(0.3, 0.94) + 0.06 * film + 0.09 * feather, 0, 1)
    return white.astype(np.float32)


def _standard(field: NDArray[np.float32]) -> NDArray[np.float32]:
    """Standardised: shifted and scaled to mean 0 and deviation 1."""
    standard: NDArray[np.float32] = (field - field.mean()) / max(float(field.std()), 1e-6)
    return standard


def fog(pixels: Pixels, level: tuple[float, float], random: np.random.Generator) -> Pixels:
    """Fog: a plasma fractal is added, and the range restored to the image's own."""
    thickness, decay = level
    brightest = float(pixels.max())
    mist = plasma(max(pixels.shape[:2]), decay, random)[: pixels.shape[0], : pixels.shape[1], None]
    return (pixels + np.float32(thickness) * mist) * np.float32(brightest / (brightest + thickness))


def plasma(side: int, decay: float, random: np.random.Generator) -> NDArray[np.float32]:
    """Plasma fractal between 0 and 1, at least side × side: diamond-square on a torus.

    Each level halves the mesh; its random part is uniform and decay² times smaller than the level's before.
    """
    heights = np.zeros((1, 1))
    amplitude = 1.0
    while len(heights) < side:
        n = len(heights)
        finer = np.zeros((2 * n, 2 * n))
        finer[::2, ::2] = heights
        middle = (heights + np.roll(heights, -1, 0) + np.roll(heights, -1, 1) + np.roll(heights, (-1, -1), (0, 1))) / 4
        finer[1::2, 1::2] = middle + random.uniform(-amplitude, amplitude, (n, n))
        across = finer + np.roll(finer, 1, 0) + np.roll(finer, -1, 0) + np.roll(finer, 1, 1) + np.roll(finer, -1, 1)
        for edges in (np.s_[::2, 1::2], np.s_[1::2, ::2]):  # still 0 themselves, so `across` holds their neighbours
            finer[edges] = across[edges] / 4 + random.uniform(-amplitude, amplitude, (n, n))
        heights = finer
        amplitude /= decay**2
    heights -= heights.min()
    return (heights / max(float(heights.max()), 1e-12)).astype(np.float32)


def _grey(pixels: Pixels) -> Pixels:
    return pixels if pixels.shape[2] == 1 else (pixels @ LUMA)[..., None]
