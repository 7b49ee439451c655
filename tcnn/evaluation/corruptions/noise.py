"""Noise corruptions: Gaussian, shot (Poisson) and impulse (salt and pepper)."""

import numpy as np

from tcnn.evaluation.corruptions.levels import Levels, Pixels

GAUSSIAN = Levels(large=(0.08, 0.12, 0.18, 0.26, 0.38), small=(0.04, 0.06, 0.08, 0.09, 0.10))
"""Standard deviation, where the range of a pixel is 1."""
SHOT = Levels(large=(60, 25, 12, 5, 3), small=(500, 250, 100, 75, 50))
"""Photons of a white pixel."""
IMPULSE = Levels(large=(0.03, 0.06, 0.09, 0.17, 0.27), small=(0.01, 0.02, 0.03, 0.05, 0.07))
"""Share of values that are replaced, half of them by 0 and half by 1."""


def gaussian(pixels: Pixels, deviation: float, random: np.random.Generator) -> Pixels:
    """Gaussian noise: x + N(0, σ²)."""
    return pixels + np.float32(deviation) * random.standard_normal(pixels.shape, np.float32)


def shot(pixels: Pixels, photons: float, random: np.random.Generator) -> Pixels:
    """Shot noise: Poisson(x·n) / n."""
    return (random.poisson(pixels * photons) / photons).astype(np.float32)


def impulse(pixels: Pixels, share: float, random: np.random.Generator) -> Pixels:
    """Impulse (salt and pepper) noise: a share of all values, per channel, becomes 0 or 1."""
    draw = random.random(pixels.shape, np.float32)
    return np.where(draw < share / 2, 0, np.where(draw < share, 1, pixels)).astype(np.float32)
