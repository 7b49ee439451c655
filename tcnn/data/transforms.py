"""From a decoded image to the tensor that a model takes: timm's transforms, which here normalise as well."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from timm.data import auto_augment, create_transform
from torch import Tensor

from tcnn.errors import RequestError, one_line

Transform = Callable[[Image.Image], Tensor]


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
    hflip: float = 0.5,
    vflip: float = 0.0,
    in_chans: int = 3,
) -> Transform:
    """Random crops, flips and colours, then normalised, (in_chans, H, W), float32: timm's names and meanings.

    `size` is (H, W). `aa` is a policy such as `rand-m9-mstd0.5-inc1` (Touvron et al. 2021, Table 9); with one, timm
    leaves the colour jitter out.
    """
    return _made(
        input_size=(in_chans, *size),
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


def evaluation_transform(
    *,
    size: tuple[int, int],
    crop_pct: float,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    crop_mode: str = "center",
) -> Transform:
    """Resized and cropped as timm evaluates, then normalised, (C, H, W), float32. `size` is (H, W)."""
    transform = _made(
        input_size=(3, *size),
        is_training=False,
        mean=tuple(mean),
        std=tuple(std),
        interpolation=interpolation,
        crop_pct=crop_pct,
        crop_mode=crop_mode,
    )
    transform.transforms.insert(0, middle_of_strip)
    return transform


def middle_of_strip(image: Image.Image, ratio: int = 20) -> Image.Image:
    """The middle of an image that is more than `ratio` times longer than wide; any other as it is.

    timm scales the *short* side to the model's size and crops then: one row of 5,000 pixels would become a gigabyte.
    """
    width, height = image.size
    left = max(0, width - ratio * height) // 2
    top = max(0, height - ratio * width) // 2
    return image.crop((left, top, width - left, height - top)) if left or top else image


def _made(**options: Any) -> Any:
    """timm's transforms; raises `RequestError` for a name that it does not know."""
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
    """timm's operation, which at the highest magnitudes keeps no bit: black. Pillow refuses that since release 13."""
    return auto_augment.posterize(image, bits, **options) if bits else Image.new(image.mode, image.size)
