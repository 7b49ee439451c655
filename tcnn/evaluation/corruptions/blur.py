"""Blur corruptions: defocus, frosted glass, motion and zoom. scipy is an extra, so it is imported where it is used."""

import math

import numpy as np
from numpy.typing import NDArray

from tcnn.evaluation.corruptions.levels import Levels, Pixels

DEFOCUS = Levels(
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
"""Radius of the disc and σ of the Gaussian that smooths its edge, in pixels."""
GLASS = Levels(
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    small=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
"""σ of the blur in pixels, largest displacement of a pixel, and number of repetitions."""
MOTION = Levels(
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)), small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))
)
"""Radius and σ of the motion kernel in pixels."""
ZOOM = Levels(
    large=tuple(
        np.arange(1, stop, step)
        for stop, step in ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))
    ),
    small=tuple(np.arange(1, stop, 0.01) for stop in (1.06, 1.11, 1.16, 1.21, 1.26)),
)
"""The magnifications that are averaged."""


def defocus(pixels: Pixels, level: tuple[float, float], random: np.random.Generator) -> Pixels:
    """Defocus blur: every point becomes a disc; the image is mirrored at its edge."""
    from scipy import ndimage, signal

    radius, softness = level
    reach = math.ceil(radius) + 2
    row, column = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (row**2 + column**2 <= radius**2).astype(np.float32)
    disc = ndimage.gaussian_filter(disc / disc.sum(), softness, radius=1 if radius <= 8 else 2)
    around = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), "reflect")
    return signal.fftconvolve(around, disc[..., None], "valid", axes=(0, 1)).astype(np.float32)


def glass(pixels: Pixels, level: tuple[float, int, int], random: np.random.Generator) -> Pixels:
    """Frosted glass blur: blurred, every pixel replaced by one nearby, blurred again.

    The published images are made by a loop over pixels that is meant to swap two of them, but copies: the second is
    read after the first was written. The same is done here: rows and columns from the end, each pixel takes the current
    value of its neighbour.
    """
    sigma, reach, rounds = level
    height, width, channels = pixels.shape
    smooth = _gaussian(pixels, sigma).reshape(-1, channels)
    rows, columns = np.arange(height - reach, reach, -1), np.arange(width - reach, reach, -1)
    target = (rows[:, None] * width + columns).ravel()
    origin = list(range(height * width))
    for _ in range(rounds):
        shift = random.integers(-reach, reach, (2, len(target)))
        for here, there in zip(target.tolist(), (target + shift[0] * width + shift[1]).tolist(), strict=True):
            origin[here] = origin[there]
    return _gaussian(smooth[origin].reshape(pixels.shape), sigma)


def motion(pixels: Pixels, level: tuple[float, float], random: np.random.Generator) -> Pixels:
    """Motion blur: the camera moves, within 45° of the horizontal."""
    return trail(pixels, *level, random.uniform(-45, 45))


def trail(pixels: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Blur along a line: 2·radius + 1 points from the pixel on, with the weights of half a Gaussian.

    This is ImageMagick's motion blur, which the published images use; the edge pixel is repeated outwards.

    Args:
        radius, sigma: in pixels.
        angle: in degrees; 0 is along the row.
    """
    steps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    reach = len(steps)
    down = np.ceil(steps * math.sin(math.radians(angle)) - 0.5).astype(int) + reach
    right = np.ceil(steps * math.cos(math.radians(angle)) - 0.5).astype(int) + reach
    around = np.pad(pixels, ((reach, reach), (reach, reach), (0, 0)), "edge")
    height, width = pixels.shape[:2]
    out = np.zeros_like(pixels)
    for weight, top, left in zip(weights.astype(np.float32), down, right, strict=True):
        out += weight * around[top : top + height, left : left + width]
    return out


def zoom(pixels: Pixels, factors: NDArray[np.float64], random: np.random.Generator) -> Pixels:
    """Zoom blur: the mean of the image and all its magnifications (of which 1 is one)."""
    return (pixels + sum(magnify(pixels, factor) for factor in factors)) / np.float32(len(factors) + 1)


def magnify(pixels: Pixels, factor: float) -> Pixels:
    """The middle of the image, magnified bilinearly to the image's size."""
    for axis in (0, 1):
        length = pixels.shape[axis]
        part = math.ceil(length / factor)
        whole = max(round(part * factor), length)
        start = (length - part) // 2
        place = start + (np.arange(length) + (whole - length) // 2) * ((part - 1) / max(whole - 1, 1))
        low = np.minimum(place.astype(int), length - 1)
        share = (place - low).astype(np.float32).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
        high = np.minimum(low + 1, length - 1)
        pixels = pixels.take(low, axis) * (1 - share) + pixels.take(high, axis) * share
    return pixels


def _gaussian(pixels: Pixels, sigma: float) -> Pixels:
    from scipy import ndimage

    return ndimage.gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest")
