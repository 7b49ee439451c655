"""The fifteen corruptions of ImageNet-C at five severities, applied to any image on the fly.

After Hendrycks & Dietterich 2019, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
with the severity constants that the authors published: those of ImageNet-C (made for 224×224) for images whose shorter
side is above 64 pixels, those of CIFAR-10-C (made for 32×32) for smaller ones. Lengths are in pixels and are not scaled
with the image, except those of `elastic_transform`, which are published as shares of it.

What differs from the published images:

- They are stored as JPEG at quality 85, which adds a second compression; here nothing is stored. Values are rounded to
  8 bits, not cut off.
- `frost` lays one of five photographs over the image; here ice is drawn (`weather.frost`).
- `motion_blur` and `snow` used ImageMagick; the same one-sided Gaussian trail is computed here, to rounding.
- Random numbers are our own, so one image differs while the distribution is the same.
"""

import difflib
import importlib.util
import zlib
from typing import Any

import numpy as np
from PIL import Image

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.evaluation.corruptions import blur, noise_digital, weather
from tcnn.evaluation.corruptions.levels import SMALL_SIDE, Effect, Levels, Pixels

EFFECTS: dict[str, tuple[Effect, Levels]] = {
    "gaussian_noise": (noise_digital.gaussian, noise_digital.GAUSSIAN),
    "shot_noise": (noise_digital.shot, noise_digital.SHOT),
    "impulse_noise": (noise_digital.impulse, noise_digital.IMPULSE),
    "defocus_blur": (blur.defocus, blur.DEFOCUS),
    "glass_blur": (blur.glass, blur.GLASS),
    "motion_blur": (blur.motion, blur.MOTION),
    "zoom_blur": (blur.zoom, blur.ZOOM),
    "snow": (weather.snow, weather.SNOW),
    "frost": (weather.frost, weather.FROST),
    "fog": (weather.fog, weather.FOG),
    "brightness": (noise_digital.brightness, noise_digital.BRIGHTNESS),
    "contrast": (noise_digital.contrast, noise_digital.CONTRAST),
    "elastic_transform": (noise_digital.elastic, noise_digital.ELASTIC),
    "pixelate": (noise_digital.pixelate, noise_digital.PIXELATE),
    "jpeg_compression": (noise_digital.jpeg, noise_digital.JPEG),
}
CORRUPTIONS = tuple(EFFECTS)
"""Names of the corruptions in the paper's order: noise, blur, weather, digital."""
SEVERITIES = (1, 2, 3, 4, 5)


def corrupt(image: Image.Image, name: str, severity: int, seed: int) -> Image.Image:
    """Apply one corruption to an image; returns one of the same size and mode.

    Args:
        image: any mode; grey (`L`) stays grey, transparency is kept, other modes go through RGB.
        name: one of `CORRUPTIONS`.
        severity: 1 (weak) to 5 (strong).
        seed: of everything random in it, at least 0.

    Raises: `RequestError` for a name or severity that does not exist, `EnvironmentFailure` without scipy.
    """
    check(name, severity)
    if image.mode not in ("RGB", "L"):
        return _through_rgb(image, name, severity, seed)
    pixels: Pixels = np.asarray(image, np.float32) / np.float32(255)
    effect, levels = EFFECTS[name]
    level = (levels.small if min(image.size) <= SMALL_SIDE else levels.large)[severity - 1]
    changed = effect(pixels.reshape(*pixels.shape[:2], -1), level, np.random.default_rng(seed))
    values = np.rint(np.clip(changed, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(values[..., 0] if image.mode == "L" else values)


def check(name: str, severity: int | None = None) -> None:
    """Raise `RequestError` for an unknown corruption or severity; `EnvironmentFailure` without scipy."""
    if name not in EFFECTS:
        near = difflib.get_close_matches(name, CORRUPTIONS, 1, 0.4)
        hint = f"did you mean {near[0]}?" if near else "choose from " + ", ".join(CORRUPTIONS)
        raise RequestError(f"{name!r} is no ImageNet-C corruption; {hint}")
    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentFailure("corruptions need scipy: pip install 'tcnn[evaluate]'")
    if severity is not None and severity not in SEVERITIES:
        raise RequestError(f"severity: expected 1 to 5, found {severity}")


class Corruption:
    """`corrupt` as one step of a transform.

    The noise of an image is a function of the seed and its pixels only: neither order, batches, workers nor a subset of
    the data change it.
    """

    def __init__(self, name: str, severity: int, seed: int = 0) -> None:
        check(name, severity)
        self.name, self.severity, self.seed = name, severity, seed

    def __call__(self, image: Image.Image) -> Image.Image:
        entropy = [self.seed, CORRUPTIONS.index(self.name), self.severity, zlib.crc32(image.tobytes())]
        return corrupt(image, self.name, self.severity, int(np.random.SeedSequence(entropy).generate_state(1)[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.severity}, seed={self.seed})"


class MixedCorruption:
    """A corruption and a severity that are drawn for each image: one pass estimates the mean over all of them.

    What is drawn is a function of the seed and the pixels only, so that all models see the same.
    """

    def __init__(self, seed: int = 0) -> None:
        check(CORRUPTIONS[0])
        self.seed = seed

    def __call__(self, image: Image.Image) -> Image.Image:
        drawn = np.random.default_rng([self.seed, zlib.crc32(image.tobytes())])
        name, severity = CORRUPTIONS[drawn.integers(len(CORRUPTIONS))], SEVERITIES[drawn.integers(len(SEVERITIES))]
        return Corruption(name, severity, self.seed)(image)


def _through_rgb(image: Image.Image, *how: Any) -> Image.Image:
    """Corrupt the colours of an image of another mode."""
    colours = image.convert("RGBA") if image.has_transparency_data else image.convert("RGB")
    changed = corrupt(colours.convert("RGB"), *how)
    if colours.mode == "RGBA":
        changed.putalpha(colours.getchannel("A"))
    return changed.convert(image.mode)
