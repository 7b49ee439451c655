"""ImageNet's variants: timm's lists, which output means which class, folder layouts, and mean corruption error."""

import pkgutil
from pathlib import Path

import pytest

from tcnn.errors import RequestError
from tcnn.evaluation.corruptions import CORRUPTIONS
from tcnn.evaluation.imagenet_variants import (
    ALEXNET_ERRORS,
    Layout,
    corruption_errors,
    corruption_folders,
    detect,
    map_classes,
    synsets,
)

PETS = ("cat", "dog", "eel")


@pytest.mark.parametrize("layout", ["imagenet-a", "imagenet-r"])
def test_the_lists_are_timms(layout: Layout) -> None:
    """timm has the same classes as indices too, which nothing here reads."""
    listed = pkgutil.get_data("timm.data", f"_info/{layout.replace('-', '_')}_indices.txt")
    assert listed
    indices = [int(index) for index in listed.split()]
    outputs = map_classes("m", "d", layout, synsets(layout), 1000, None).outputs
    assert list(outputs or ()) == indices
    assert len(set(indices)) == 200
    assert [synsets()[index] for index in indices] == list(synsets(layout))


def test_imagenet_is_in_order() -> None:
    assert len(synsets()) == 1000
    assert list(synsets()) == sorted(synsets())
    assert (synsets()[0], synsets()[-1]) == ("n01440764", "n15075141")


def test_variants_are_known_by_their_classes() -> None:
    for layout in ("imagenet-a", "imagenet-r"):
        assert detect(synsets(layout)[::-1], 1000) == layout
        assert detect(synsets(layout), 200) == "plain"
        assert detect(synsets(layout)[:-1], 1000) == "plain"
    assert detect(synsets(), 1000) == "plain"
    assert detect(PETS, 3) == "plain"


@pytest.mark.parametrize(
    ("layout", "class_names", "outputs", "labels", "expected"),
    [
        ("plain", PETS, 3, None, (None, None)),
        ("plain", PETS, 3, PETS, (None, None)),
        ("plain", PETS, 3, ("dog", "eel", "cat"), (("dog", "eel", "cat"), None)),
        ("plain", PETS[:2], 3, PETS, (PETS, None)),  # a class without images is still a possible answer
        ("plain", PETS, 3, ("dog", "cat"), (None, None)),  # names for another head: not of use
        ("plain", synsets(), 1000, None, (None, None)),
        ("imagenet-c", synsets(), 1000, None, (None, None)),
        ("plain", synsets()[5:8], 1000, None, (None, (5, 6, 7))),
        ("plain", synsets()[5:8], 1000, synsets()[::-1], (None, (994, 993, 992))),
        ("plain", synsets()[5:8], 1000, tuple(f"word {i}" for i in range(1000)), (None, (5, 6, 7))),
        ("plain", synsets(), 1000, tuple(f"word {i}" for i in range(1000)), (None, None)),
        ("plain", tuple(f"word {i}" for i in range(1000)), 1000, None, (None, None)),
        ("imagenet-a", synsets("imagenet-a")[:9], 1000, None, (synsets("imagenet-a"), 200)),
    ],
)
def test_outputs_and_classes_meet(
    layout: Layout,
    class_names: tuple[str, ...],
    outputs: int,
    labels: tuple[str, ...] | None,
    expected: tuple[object, object],
) -> None:
    names, chosen = map_classes("model", "data", layout, class_names, outputs, labels)
    assert names == expected[0]
    assert (len(chosen) if chosen and isinstance(expected[1], int) else chosen) == expected[1]


@pytest.mark.parametrize(
    ("layout", "class_names", "outputs", "labels", "message"),
    [
        ("plain", PETS, 9, None, "model tells 9 classes apart, data has 3 (cat, dog, eel); fine-tune"),
        ("plain", ("a", "b", "c", "d", "e"), 4, None, "model tells 4 classes apart, data has 5 (a, b, c and 2 more)"),
        ("plain", synsets()[:5], 10, None, "model tells 10 classes apart, data has 5"),
        (
            "plain", ("cat", "dig", "eel"), 3, PETS,
            "model and data have different classes: dig only in the data set, dog only in the model",
        ),
        ("plain", (*PETS, "fox"), 3, PETS, "model and data have different classes: fox only in the data set"),
        ("imagenet-r", PETS, 3, PETS, "model: imagenet-r needs a model of ImageNet's 1,000 classes; this one tells 3"),
        ("imagenet-a", PETS, 200, None, "model: imagenet-a needs"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    layout: Layout, class_names: tuple[str, ...], outputs: int, labels: tuple[str, ...] | None, message: str
) -> None:
    with pytest.raises(RequestError) as raised:
        map_classes("model", "data", layout, class_names, outputs, labels)
    assert str(raised.value).startswith(message)


def make(root: Path, *folders: str) -> str:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return str(root)


def test_imagenet_c_with_and_without_categories(tmp_path: Path) -> None:
    flat = make(tmp_path / "flat", "fog/1/n1", "fog/5/n1", "snow/2/n1", "saturate/1/n1", "fog/extra")
    nested = make(tmp_path / "nested", "weather/fog/1/n1", "weather/fog/5/n1", "weather/snow/2/n1", "noise")
    for root, place in ((flat, Path(flat)), (nested, Path(nested) / "weather")):
        assert corruption_folders(root) == {
            "snow": {2: place / "snow" / "2"},
            "fog": {1: place / "fog" / "1", 5: place / "fog" / "5"},
        }
    assert list(corruption_folders(flat)) == ["snow", "fog"]  # the paper's order


def test_what_is_no_imagenet_c(tmp_path: Path) -> None:
    assert corruption_folders(make(tmp_path / "classes", "cat", "fog", "dog")) == {}
    assert corruption_folders(str(tmp_path / "nowhere")) == {}
    assert corruption_folders("hfds/name") == {}


def test_mean_corruption_error() -> None:
    relative, mean = corruption_errors({"fog": 0.4, "snow": 0.9}, {"fog": 0.5, "snow": 0.6, "frost": 0.1})
    assert relative == pytest.approx({"fog": 0.8, "snow": 1.5})
    assert mean == pytest.approx(1.15)
    assert corruption_errors({"fog": 0.4, "snow": 0.9}, {"fog": 0.5, "snow": 0.0}) == ({"fog": 0.8}, None)
    assert corruption_errors({}, {}) == ({}, None)


def test_alexnet_is_100_percent() -> None:
    assert set(ALEXNET_ERRORS) == set(CORRUPTIONS)
    assert corruption_errors(ALEXNET_ERRORS, ALEXNET_ERRORS)[1] == pytest.approx(1)
    assert sum(ALEXNET_ERRORS.values()) / 15 == pytest.approx(0.7894, abs=5e-4)
