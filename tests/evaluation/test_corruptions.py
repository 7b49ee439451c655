"""The fifteen corruptions on two photographs: stronger with severity, the same for the same seed, any size and mode."""

import pickle
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from data_pictures import photograph
from PIL import Image
from sampled import crossed, sampled

from tcnn.errors import RequestError
from tcnn.evaluation import corruptions
from tcnn.evaluation.corruptions import CORRUPTIONS, SEVERITIES, Corruption, MixedCorruption, corrupt

PHOTOGRAPHS = [photograph(name) for name in ("china.jpg", "flower.jpg")]
WITHOUT_CHANCE = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}

NOT_FURTHER = {
    (224, "glass_blur"): {2, 4},  # less displacement, and fewer rounds, by the published constants
    (224, "frost"): {4},  # as much ice over a darker image
    (224, "elastic_transform"): {3},  # severities 1 and 2 move the whole image, the others ripple it
    (32, "glass_blur"): {2, 3, 5},
    (32, "motion_blur"): {4},  # a longer trail with the same σ
    (32, "frost"): {4},
    (32, "elastic_transform"): {2, 3, 4, 5},
}
"""Severities that are no further from the original than the one before."""

GOLDEN = {
    "gaussian_noise": (30.75, 15.17),
    "shot_noise": (29.81, 11.42),
    "impulse_noise": (11.55, 3.95),
    "defocus_blur": (12.48, 5.16),
    "glass_blur": (14.06, 11.15),
    "motion_blur": (14.84, 12.65),
    "zoom_blur": (18.58, 12.31),
    "snow": (60.92, 24.18),
    "frost": (72.54, 53.12),
    "fog": (58.1, 32.63),
    "brightness": (42.14, 24.82),
    "contrast": (51.94, 37.06),
    "elastic_transform": (16.36, 18.37),
    "pixelate": (7.44, 3.81),
    "jpeg_compression": (8.68, 9.11),
}
"""Mean absolute distance from the original, in grey levels, at severity 3: 224 pixels, 32 pixels."""

QUICK = ("gaussian_noise", "brightness", "contrast", "pixelate", "jpeg_compression")
"""Of large images too in every run of the tests."""


@cache
def crops(side: int) -> list[Image.Image]:
    """Three squares of each photograph; they are only read."""
    boxes = [(60 * k, 10 * k, 60 * k + 400, 10 * k + 400) for k in range(3)]
    return [photo.crop(box).resize((side, side), Image.Resampling.BICUBIC) for photo in PHOTOGRAPHS for box in boxes]


def values(image: Image.Image) -> np.ndarray:
    return np.asarray(image, np.float64)


def distance(name: str, severity: int, images: list[Image.Image], power: int = 2) -> float:
    changed = [corrupt(image, name, severity, seed) for seed, image in enumerate(images)]
    return float(np.mean([np.abs(values(a) - values(b)) ** power for a, b in zip(changed, images, strict=True)]))


of_two_sizes = pytest.mark.parametrize(
    ("name", "side"),
    sampled(
        [(name, side) for name in CORRUPTIONS for side in (224, 32)],
        [*((name, 32) for name in CORRUPTIONS), *((name, 224) for name in QUICK)],
    ),
)


@of_two_sizes
def test_grows_with_severity(name: str, side: int) -> None:
    images = crops(side)
    far = [distance(name, severity, images) for severity in SEVERITIES]
    assert min(far) > 1
    assert {s for s in SEVERITIES[1:] if far[s - 1] <= far[s - 2]} == NOT_FURTHER.get((side, name), set()), far


@of_two_sizes
def test_is_what_it_was(name: str, side: int) -> None:
    expected = dict(zip((224, 32), GOLDEN[name], strict=True))[side]
    assert distance(name, 3, crops(side), power=1) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_decides(name: str) -> None:
    image = crops(64)[0]
    first, again, other = (corrupt(image, name, 4, seed).tobytes() for seed in (1, 1, 2))
    assert first == again
    assert (first == other) == (name in WITHOUT_CHANCE)
    assert first != image.tobytes()


@pytest.mark.parametrize(
    ("name", "size"), crossed(list(CORRUPTIONS), [(8, 8), (65, 300), (9, 17), (64, 70), (301, 200)], 2), ids=str
)
def test_any_size(name: str, size: tuple[int, int]) -> None:
    image = PHOTOGRAPHS[1].resize(size)
    for severity in SEVERITIES:
        changed = corrupt(image, name, severity, 0)
        assert (changed.size, changed.mode) == (size, "RGB")


@pytest.mark.parametrize("name", sampled(CORRUPTIONS, ["contrast", "fog", "motion_blur"]))
def test_large_images(name: str) -> None:
    image = PHOTOGRAPHS[0].resize((1024, 768))
    assert corrupt(image, name, 5, 0).size == (1024, 768)


@pytest.mark.parametrize(("name", "mode"), crossed(list(CORRUPTIONS), ["L", "RGBA", "LA", "P", "1", "CMYK"], 3))
def test_mode_is_kept(name: str, mode: str) -> None:
    image = crops(40)[0].convert(mode)
    if "A" in mode:
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    changed = corrupt(image, name, 2, 0)
    assert (changed.size, changed.mode) == (image.size, mode)
    if "A" in mode:
        assert changed.getchannel("A").tobytes() == image.getchannel("A").tobytes()


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"gaussian_noise", "shot_noise", "impulse_noise"}))
def test_grey_means_the_same_as_equal_colours(name: str) -> None:
    """Only noise is drawn for every channel alone; JPEG and ice treat colour in their own way."""
    grey = crops(100)[1].convert("L")
    colours = corrupt(grey.convert("RGB"), name, 3, 5)
    tolerance = {"jpeg_compression": 4, "frost": 20}.get(name, 1)
    assert np.abs(values(colours.convert("L")) - values(corrupt(grey, name, 3, 5))).max() <= tolerance


@pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform"])
@pytest.mark.parametrize("side", [pytest.param(224, marks=pytest.mark.slow), 32])
def test_nothing_to_blur_in_one_colour(name: str, side: int) -> None:
    image = Image.new("RGB", (side, side), (200, 30, 90))
    for severity in SEVERITIES:
        assert np.abs(values(corrupt(image, name, severity, 0)) - values(image)).max() <= 1


def test_the_constants_change_above_64_pixels() -> None:
    photo = PHOTOGRAPHS[0]
    small, large = photo.resize((64, 200)), photo.resize((65, 200))
    assert distance("gaussian_noise", 5, [large]) > 5 * distance("gaussian_noise", 5, [small])


def test_a_transform_depends_on_the_image_alone() -> None:
    first, second = crops(48)[:2]
    step = Corruption("snow", 3, seed=7)
    alone = step(second).tobytes()
    assert step(first).tobytes() != alone
    assert step(second).tobytes() == pickle.loads(pickle.dumps(step))(second).tobytes() == alone
    assert Corruption("snow", 3, seed=8)(second).tobytes() != alone


def test_a_mixed_corruption_is_drawn_for_each_image() -> None:
    """All fifteen and all five severities come, the same ones for the same image whatever came before it."""
    random = np.random.default_rng(0)
    images = [Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(3)]
    mixed, again = MixedCorruption(), MixedCorruption()
    first = [mixed(image).tobytes() for image in images]
    assert [again(image).tobytes() for image in reversed(images)] == first[::-1]
    assert first != [image.tobytes() for image in images]
    drawn: set[tuple[str, int]] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corruptions, "corrupt", lambda image, name, severity, seed: drawn.add((name, severity)) or image)
        for number in range(600):
            mixed(Image.new("RGB", (2, 2), (number % 256, number // 256, 0)))
    assert {name for name, _ in drawn} == set(CORRUPTIONS)
    assert {severity for _, severity in drawn} == set(SEVERITIES)
    assert len(drawn) == len(CORRUPTIONS) * len(SEVERITIES)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda image: corrupt(image, "fogg", 1, 0), "'fogg' is no ImageNet-C corruption; did you mean fog?"),
        (lambda image: corrupt(image, "x", 1, 0), "'x' is no ImageNet-C corruption; choose from gaussian_noise, "),
        (lambda image: corrupt(image, "fog", 0, 0), "severity: expected 1 to 5, found 0"),
        (lambda image: Corruption("fog", 6), "severity: expected 1 to 5, found 6"),
    ],
)
def test_wrong_requests(make: Callable[[Image.Image], object], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        make(crops(32)[0])
    assert str(raised.value).startswith(message)
