"""Opening by name, holding images out, use_backend a share."""

from pathlib import Path

import numpy
import pytest
import torch
from data_pictures import ARCHIVE, draw_classes, plain_transform, some_of_cifar10
from PIL import Image
from torchvision.transforms import Normalize
from torchvision.transforms.functional import to_tensor

from tcnn.data.image_set import (
    ImageSet,
    class_balanced,
    open_dataset,
    split_off,
    training_transform,
)
from tcnn.data.sources.source import other_classes
from tcnn.data.transforms import NormalisedTensor
from tcnn.data.worker import seed_everything
from tcnn.errors import RequestError

COUNTS = {"a": 1, "b": 2, "c": 9, "d": 40}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    """Classes of 1, 2, 9 and 40 images, and one without."""
    root = tmp_path_factory.mktemp("data")
    for name, images in COUNTS.items():
        draw_classes(root, [name], images)
    return open_dataset(str(root), class_names=["a", "b", "none", "c", "d"])


@pytest.fixture(scope="module")
def noise() -> Image.Image:
    """6×6 pixels, no two alike, none black."""
    return Image.fromarray(numpy.random.default_rng(0).integers(1, 256, (6, 6, 3), numpy.uint8))


def names(data: ImageSet) -> list[str]:
    return [data.filename(index) for index in range(len(data))]


def counts(data: ImageSet) -> list[int]:
    return data.targets.bincount(minlength=5).tolist()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", r"^: no such data set; expected a folder, a \.tar, hfds/…, torch/… or wds/…"),
        ("nowhere", r"^nowhere: no such data set; expected a folder"),
        ("no/where", "expected a folder"),
        ("hfd/cifar10", r"did you mean hfds/cifar10\?"),
        ("wsd/x/y", r"did you mean wds/x/y\?"),
        ("tfds/cifar10", "is a stream, which cannot be resumed at a step; use hfds/ or wds/"),
        ("hfids/cifar10", "is a stream"),
        ("x" * 5000, "cannot be looked into"),
        ("nul\0", "cannot be looked into"),
    ],
)
def test_no_such_data_set(spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        open_dataset(spec)
    assert "\n" not in str(raised.value)


def test_a_folder_called_like_a_prefix_is_reached_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_classes(tmp_path / "wds" / "pets", ["cat"], 1)
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset("./wds/pets")) == 1


def test_subset(data: ImageSet) -> None:
    some = data.subset([5, 0, 5]).subset(torch.tensor([1, 2]))
    assert names(some) == [data.filename(0), data.filename(5)]
    assert some.targets.tolist() == [data.targets[0], data.targets[5]]
    assert some.class_names == data.class_names
    assert some.load(1)[1] == data.load(5)[1] == 3
    assert some.load(1)[0].tobytes() == data.load(5)[0].tobytes()
    assert len(data.subset([])) == 0
    assert repr(some) == "ImageSet(2 images of 5 classes)"


def test_a_mask_chooses_where_it_is_true(data: ImageSet) -> None:
    """Its values were taken for the places 0 and 1."""
    mask = data.targets == 1
    expected = [data.filename(place) for place in (1, 2)]
    for given in (mask, mask.numpy(), mask.tolist(), mask.nonzero()[:, 0].to(torch.int32)):
        assert names(data.subset(given)) == expected
    assert len(data.subset(~mask)) == len(data) - 2
    assert names(data.subset([-1])) == [data.filename(len(data) - 1)]
    for wrong, found in ((mask[:5], r"bool of \(5,\)"), ([0.5, 1.0], "float64"), (mask[None], "bool"), (["1"], "<U1")):
        with pytest.raises(RequestError, match=f"expected whole numbers in one row, or a mask of 52 images, .*{found}"):
            data.subset(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.25, 0.5, 0.99])
def test_split_off(data: ImageSet, fraction: float) -> None:
    train, val = split_off(data, fraction, seed=3)
    assert sorted(names(train) + names(val)) == sorted(names(data))
    assert not set(names(train)) & set(names(val))
    assert names(train) == [name for name in names(data) if name in names(train)], "the order stays"
    for whole, left, held in zip(counts(data), counts(train), counts(val), strict=True):
        assert left >= min(whole, 1)
        assert held >= (whole > 1)
        assert abs(held - fraction * whole) <= 1
    assert train.class_names == val.class_names == data.class_names
    assert names(split_off(data, fraction, seed=3)[1]) == names(val)


def test_split_off_depends_on_the_seed(data: ImageSet) -> None:
    assert len({tuple(names(split_off(data, 0.2, seed)[1])) for seed in range(5)}) == 5


def test_class_balanced(data: ImageSet) -> None:
    assert class_balanced(data, 1, seed=0) is data
    previous: set[str] = set()
    for fraction in (0.01, 0.1, 0.3, 0.5, 0.9):
        some = class_balanced(data, fraction, seed=0)
        for whole, kept in zip(counts(data), counts(some), strict=True):
            assert kept == (max(1, round(whole * fraction)) if whole else 0)
        assert names(some) == [name for name in names(data) if name in set(names(some))]
        assert previous <= set(names(some)), "a larger share holds a smaller one"
        previous = set(names(some))
    assert names(class_balanced(data, 0.3, 0)) != names(class_balanced(data, 0.3, 1))


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5, float("nan")])
def test_fractions(data: ImageSet, fraction: float) -> None:
    for function in (split_off, class_balanced):
        with pytest.raises(RequestError, match="must lie between 0 and 1"):
            function(data, fraction, 0)
    with pytest.raises(RequestError, match="between 0 and 1"):
        split_off(data, 1.0, 0)


def test_nothing_to_hold_out(data: ImageSet) -> None:
    with pytest.raises(RequestError, match="no class has two images"):
        split_off(data.subset([0]), 0.5, 0)


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (33, 20), (224, 224)])
def test_transforms_fit_small_and_odd_sizes(data: ImageSet, size: tuple[int, int]) -> None:
    image, _ = data.load(0)
    train = training_transform(
        size=size, mean=(0.5,) * 3, std=(0.2,) * 3, aa="rand-m9-mstd0.5-inc1", reprob=1.0, recount=3, remode="rand"
    )
    plain = plain_transform(size=size, crop_pct=0.875, mean=(0.5,) * 3, std=(0.2,) * 3, interpolation="bicubic")
    for transform in (train, plain):
        tensor = transform(image)
        assert tensor.shape == (3, *size)
        assert tensor.dtype == torch.float32


def test_a_padded_crop_is_a_part_of_the_image_in_black(noise: Image.Image) -> None:
    """Every one of the (2·2 + 1)² places is drawn, and what it holds is what padding and cutting by hand gives."""
    crop = training_transform(size=(6, 6), mean=(0.0,) * 3, std=(1.0,) * 3, crop_padding=2, hflip=0.0)
    pixels = numpy.asarray(noise, numpy.float32).transpose(2, 0, 1) / numpy.float32(255)
    padded = torch.from_numpy(numpy.pad(pixels, ((0, 0), (2, 2), (2, 2))))
    places = {(top, left): padded[:, top : top + 6, left : left + 6] for top in range(5) for left in range(5)}
    drawn = set()
    for seed in range(300):
        seed_everything(seed)
        found = crop(noise)
        drawn.add(next(place for place, expected in places.items() if torch.equal(found, expected)))
    assert drawn == set(places)


def test_a_padded_crop_keeps_the_shape_of_what_it_shows(noise: Image.Image) -> None:
    """A wide image is cut, not squeezed: 6×12 pixels at 6×6 are its own pixels."""
    crop = training_transform(size=(6, 6), mean=(0.0,) * 3, std=(1.0,) * 3, crop_padding=1, hflip=0.0)
    wide = Image.new("RGB", (12, 6))
    wide.paste(noise, (0, 0))
    wide.paste(noise, (6, 0))
    pixels = torch.from_numpy(numpy.asarray(wide).transpose(2, 0, 1) / numpy.float32(255)).float()
    padded = torch.nn.functional.pad(pixels, (1, 1, 1, 1))
    places = [padded[:, top : top + 6, left : left + 6] for top in range(3) for left in range(9)]
    for seed in range(40):
        seed_everything(seed)
        found = crop(wide)
        assert any(torch.equal(found, place) for place in places)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_tensors_are_torchvisions_to_the_bit(noise: Image.Image, mode: str) -> None:
    image, statistics = noise.convert(mode), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    mean, std = (values[: len(image.getbands())] for values in statistics)
    theirs = Normalize(mean, std)(to_tensor(image))
    assert torch.equal(NormalisedTensor(mean, std)(image), theirs)


@pytest.mark.parametrize("aa", ["rand-m10-inc1", "rand-m9-mstd0.5-inc1", "original", "v0", "augmix-m5-w4-d2", "3a", ""])
def test_every_policy_survives_every_draw(data: ImageSet, aa: str) -> None:
    """Pillow 13 refuses timm's strongest posterisation."""
    transform = training_transform(size=(16, 16), mean=(0.5,) * 3, std=(0.2,) * 3, aa=aa)
    image, _ = data.load(3)
    torch.manual_seed(0)
    for _ in range(150):
        assert transform(image).isfinite().all()


@pytest.mark.parametrize(
    "options", [{"aa": "rand-x9"}, {"aa": "none"}, {"aa": "v7"}, {"interpolation": "cubist"}, {"remode": "cosnt"}]
)
def test_a_transform_that_timm_does_not_know(options: dict[str, str]) -> None:
    value = next(iter(options.values()))
    with pytest.raises(RequestError, match=f"timm cannot make the transforms .*'{value}'") as raised:
        training_transform(**{"size": (16, 16), "mean": (0.5,) * 3, "std": (0.2,) * 3, "reprob": 0.5, **options})
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(not ARCHIVE.is_file(), reason=f"NOT TESTED ON REAL IMAGES: {ARCHIVE} is absent; set TCNN_TEST_DATA")
def test_real_images(tmp_path: Path) -> None:
    data = open_dataset(str(some_of_cifar10(tmp_path, 2, 5)))
    assert data.class_names == ("airplane", "automobile")
    assert data.targets.tolist() == [0] * 5 + [1] * 5
    assert all(data.load(index)[0].size == (32, 32) for index in range(10))


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ((), None),
        (("cat", "dog", "eel"), None),
        (("cat", "dog", "fox"), "other classes (cat, …)"),
        (("cat", "dog"), "other classes (cat, …)"),
        (("cat", "eel", "dog"), "these classes in another order (its class 1 is eel, the data set's dog)"),
        ((1, 2), "other classes (1, …)"),
    ],
    ids=str,
)
def test_classes_that_a_model_knows(known: tuple[object, ...], told: str | None) -> None:
    assert other_classes(known, ["cat", "dog", "eel"]) == told
