"""Image transforms for training and evaluation: timm's, with normalisation included; `load_image` by one."""

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
from PIL import Image
from timm.data import auto_augment, create_transform
from timm.data.transforms import MaybeToTensor, ResizeKeepRatio
from torch import Tensor

from tcnn.data.decode import Mode, UnreadableImage, decode, open_at_once, reason
from tcnn.errors import RequestError, one_line

Transform = Callable[[Image.Image], Tensor]

MAX_ASPECT = 20
"""Largest ratio of an image's sides of which all is seen."""


def training_transform(
    *,
    size: tuple[int, int],
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str = "random",
    aa: str | None = None,
    color_jitter: float = 0.0,
    reprob: float = 0.0,
    remode: str = "pixel",
    recount: int = 1,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    crop_padding: int | None = None,
    hflip: float = 0.5,
    vflip: float = 0.0,
) -> Transform:
    """Training transform: random crop, flip, colour augmentation, then normalised, (C, H, W), float32.

    Names and meanings of the arguments are timm's. `size` is (H, W). `aa` is a policy such as `rand-m9-mstd0.5-inc1`
    (Touvron et al. 2021, Table 9); with one, timm leaves the colour jitter out. `crop_padding`: instead of timm's
    resized crops the whole image, its short side at `size`, with so many pixels of black on each side, of which a crop
    of `size` is taken (He et al. 2016, §4.2).
    """
    transform = _create(
        input_size=tuple(size),
        is_training=True,
        mean=tuple(mean),
        std=tuple(std),
        interpolation=interpolation,
        auto_augment=aa or None,
        color_jitter=color_jitter or None,
        re_prob=reprob,
        re_mode=remode,
        re_count=recount,
        scale=tuple(scale),
        ratio=tuple(ratio),
        hflip=hflip,
        vflip=vflip,
    )
    if crop_padding is not None:
        # timm has none of this kind: its other modes scale the image at random before they pad it.
        transform.transforms[:1] = [ResizeKeepRatio(size, interpolation="bicubic"), PaddedCrop(size, crop_padding)]
    steps = transform.transforms
    first = next(place for place, step in enumerate(steps) if isinstance(step, MaybeToTensor))
    steps[first : first + 2] = [NormalisedTensor(mean, std)]
    return transform


def evaluation_transform(settings: Mapping[str, Any]) -> Any:
    """timm's evaluation transform: resize, crop, to a tensor, normalise; of a very long strip only the middle.

    `settings`: timm's `input_size`, `mean`, `std`, `interpolation`, `crop_pct` and `crop_mode`.
    """
    transform = create_transform(**settings, is_training=False)
    transform.transforms.insert(0, middle_of_strip)
    return transform


def load_image(file: str | Path | BinaryIO | Image.Image, transform: Transform, mode: Mode) -> Tensor:
    """Decode an image, a file's or PIL's, and transform it: (C, H, W).

    Raises `UnreadableImage`; `EnvironmentFailure` as `reason`.
    """
    try:
        if isinstance(file, Image.Image):
            return transform(decode(file, mode))
        with open(file, "rb", opener=open_at_once) if isinstance(file, str | Path) else file as opened:
            return transform(decode(opened, mode))
    except Exception as error:  # PIL's decoders raise almost anything on broken files
        raise UnreadableImage(str(file), reason(error)) from error


class PaddedCrop:
    """Random crop of `size`, (H, W), of an image padded by `padding` black pixels on each side."""

    def __init__(self, size: tuple[int, int], padding: int) -> None:
        self.size, self.padding = size, padding

    def __call__(self, image: Image.Image) -> Image.Image:
        height, width = self.size
        left = random.randint(-self.padding, image.width + self.padding - width)  # noqa: S311 - no secret
        top = random.randint(-self.padding, image.height + self.padding - height)  # noqa: S311
        return image.crop((left, top, left + width, top + height))  # what lies outside is black


class NormalisedTensor:
    """(pixel / 255 − mean) / std, (C, H, W), float32: as torchvision's two steps, bit for bit, three times as fast."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, image: Image.Image) -> Tensor:
        pixels = numpy.array(image).reshape(image.height, image.width, -1).transpose(2, 0, 1)
        return torch.from_numpy(pixels.astype(numpy.float32, order="C")).div_(255).sub_(self.mean).div_(self.std)


def middle_of_strip(image: Image.Image) -> Image.Image:
    """Crop the middle of an image that is more than `MAX_ASPECT` times longer than wide; any other is unchanged.

    timm scales the *short* side to the model's size and crops then: one row of 5,000 pixels would become a gigabyte.
    """
    width, height = image.size
    left = max(0, width - MAX_ASPECT * height) // 2
    top = max(0, height - MAX_ASPECT * width) // 2
    return image.crop((left, top, width - left, height - top)) if left or top else image


def _create(**options: Any) -> Any:
    """Create timm's transforms; raises `RequestError` for a name that it does not know."""
    try:
        transform = create_transform(use_prefetcher=False, **options)
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        told = {name: options[name] for name in ("auto_augment", "interpolation", "re_mode") if options.get(name)}
        raise RequestError(f"timm cannot make the transforms {told} ({one_line(error)})") from error
    for step in transform.transforms:
        # RandAugment and AugMix have operations, AutoAugment has pairs of them.
        ops = [*getattr(step, "ops", []), *(op for pair in getattr(step, "policy", []) for op in pair)]
        for op in ops:
            if getattr(op, "aug_fn", None) is auto_augment.posterize:
                op.aug_fn = posterize
    return transform


def posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """timm's posterize operation for zero bits (black), which Pillow refuses since release 13."""
    return auto_augment.posterize(image, bits, **options) if bits else Image.new(image.mode, image.size)
