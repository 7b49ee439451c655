"""Images as timm prepares them for evaluation, for any settings and without a model."""

from collections.abc import Sequence

from timm.data import create_transform

from tcnn.data.transforms import Transform, middle_of_strip


def plain_transform(
    *,
    size: tuple[int, int],
    crop_pct: float,
    mean: Sequence[float],
    std: Sequence[float],
    interpolation: str,
    crop_mode: str = "center",
) -> Transform:
    """Resized, cropped and normalised, (3, H, W), float32; `size` is (H, W)."""
    transform = create_transform(
        (3, *size), mean=tuple(mean), std=tuple(std), interpolation=interpolation, crop_pct=crop_pct,
        crop_mode=crop_mode, use_prefetcher=False,
    )  # fmt: skip
    transform.transforms.insert(0, middle_of_strip)
    return transform
