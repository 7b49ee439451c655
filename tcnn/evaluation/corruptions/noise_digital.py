"""Noise (Gaussian, shot, impulse) and digital corruptions (brightness, contrast, elastic, pixelation, JPEG)."""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tcnn.data.decode import open_image
from tcnn.evaluation.corruptions.levels import Levels, Pixels

GAUSSIAN = Levels(large=(0.08, 0.12, 0.18, 0.26, 0.38), small=(0.04, 0.06, 0.08, 0.09, 0.10))
"""Standard deviation, where the range of a pixel is 1."""
SHOT = Levels(large=(60, 25, 12, 5, 3), small=(500, 250, 100, 75, 50))
"""Photons of a white pixel."""
IMPULSE = Levels(large=(0.03, 0.06, 0.09, 0.17, 0.27), small=(0.01, 0.02, 0.03, 0.05, 0.07))
"""Share of values that are replaced, half of them by 0 and half by 1."""
BRIGHTNESS = Levels(large=(0.1, 0.2, 0.3, 0.4, 0.5), small=(0.05, 0.1, 0.15, 0.2, 0.3))
"""Added to the value channel of HSV."""
CONTRAST = Levels(large=(0.4, 0.3, 0.2, 0.1, 0.05), small=(0.75, 0.5, 0.4, 0.3, 0.15))
"""Factor of the contrast."""
_OF_244 = 244 / 224  # the authors' own constant: 244 where the side is 224
ELASTIC = Levels(
    large=tuple(
        tuple(_OF_244 * share for share in shares)
        for shares in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    ),
    small=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
)
"""Amplitude and smoothness of the displacements, and how far the corners of the affine map move, as shares of the
shorter side.
"""
PIXELATE = Levels(large=(0.6, 0.5, 0.4, 0.3, 0.25), small=(0.95, 0.9, 0.85, 0.75, 0.65))
"""Side of the downscaled image, as a share."""
JPEG = Levels(large=(25, 18, 15, 10, 7), small=(80, 65, 58, 50, 40))
"""JPEG quality, as libjpeg counts it."""


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


def brightness(pixels: Pixels, added: float, random: np.random.Generator) -> Pixels:
    """Brightness: the value V = max(R, G, B) grows by a constant; hue and saturation stay, so R : G : B does."""
    value = pixels.max(2, keepdims=True)
    brighter = np.minimum(value + np.float32(added), 1)
    return np.where(value > 0, pixels * (brighter / np.maximum(value, 1e-6)), brighter)


def contrast(pixels: Pixels, left: float, random: np.random.Generator) -> Pixels:
    """Contrast: every channel is scaled towards its own mean."""
    mean = pixels.mean((0, 1), keepdims=True)
    return mean + np.float32(left) * (pixels - mean)


def elastic(pixels: Pixels, level: tuple[float, float, float], random: np.random.Generator) -> Pixels:
    """Elastic deformation: an affine map that moves three points at random, then smooth random displacements."""
    side = min(pixels.shape[:2])
    amplitude, smoothness, corners = (side * share for share in level)
    grid = np.indices(pixels.shape[:2]).astype(np.float64)
    moved = _sample(pixels, _affine(grid, pixels.shape[:2], corners, random), "mirror")
    if amplitude == 0:
        return moved
    shift = [amplitude * _smooth(random.uniform(-1, 1, pixels.shape[:2]), smoothness) for _ in range(2)]
    return _sample(moved, grid + shift, "reflect")


def pixelate(pixels: Pixels, share: float, random: np.random.Generator) -> Pixels:
    """Pixelation: downscaled and upscaled again by box filters."""
    image = _to_image(pixels)
    coarse = max(int(image.width * share), 1), max(int(image.height * share), 1)
    box = Image.Resampling.BOX
    return _to_pixels(image.resize(coarse, box).resize(image.size, box))


def jpeg(pixels: Pixels, quality: int, random: np.random.Generator) -> Pixels:
    """JPEG compression: encoded and decoded again."""
    file = io.BytesIO()
    _to_image(pixels).save(file, "JPEG", quality=quality)
    with open_image(file) as image:
        return _to_pixels(image)


def _affine(
    grid: NDArray[np.float64], shape: tuple[int, ...], reach: float, random: np.random.Generator
) -> NDArray[np.float64]:
    """Source position of each pixel of the deformed image, (2, H, W).

    The inverse of the map that moves three corners of a square, two thirds of the shorter side wide, by up to `reach`
    each way.
    """
    middle, half = np.array(shape) // 2, min(shape) // 3
    corners = middle + np.array([[half, half], [half, -half], [-half, -half]])
    moved = corners + random.uniform(-reach, reach, (3, 2))
    with_one = np.column_stack([moved, np.ones(3)])
    if half == 0 or abs(np.linalg.det(with_one)) < 1e-6:  # a few pixels in all: there is no triangle to move
        return grid
    back = np.linalg.solve(with_one, corners)  # (3, 2): rows for row, column, 1
    source: NDArray[np.float64] = np.tensordot(back[:2].T, grid, 1) + back[2][:, None, None]
    return source


def _smooth(field: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Gaussian filter, cut off at 3σ, mirrored at the edge.

    The cosine transform has this mirror built in, so the filter is a product there, however wide it is (σ = 171 pixels
    at severity 1).
    """
    from scipy.fft import dctn, idctn

    if sigma == 0:
        return field
    steps = np.arange(1, int(3 * sigma + 0.5) + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    spectrum = dctn(field, norm="ortho")
    for axis, length in enumerate(field.shape):
        waves = np.cos(np.pi / length * np.outer(np.arange(length), steps))
        gain = (1 + 2 * waves @ weights) / (1 + 2 * weights.sum())
        spectrum *= gain[:, None] if axis == 0 else gain
    smooth: NDArray[np.float64] = idctn(spectrum, norm="ortho")
    return smooth


def _sample(pixels: Pixels, places: NDArray[np.float64], beyond: str) -> Pixels:
    """Bilinear interpolation at (row, column) positions, (2, H, W)."""
    from scipy import ndimage

    channels = [ndimage.map_coordinates(pixels[..., c], places, order=1, mode=beyond) for c in range(pixels.shape[2])]
    return np.stack(channels, 2).astype(np.float32)


def _to_image(pixels: Pixels) -> Image.Image:
    values = np.rint(pixels * 255).astype(np.uint8)
    return Image.fromarray(values[..., 0] if pixels.shape[2] == 1 else values)


def _to_pixels(image: Image.Image) -> Pixels:
    values: Pixels = np.asarray(image, np.float32) / np.float32(255)
    return values.reshape(*values.shape[:2], -1)
