"""Data sets of torchvision and of the Hugging Face libraries, from files: nothing is downloaded."""

import pickle
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
import torch
from data_pictures import draw_classes, picture
from PIL import Image

from tcnn.data.image_set import UnreadableImage, open_dataset
from tcnn.errors import EnvironmentFailure, RequestError


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """Twenty and ten random digits in MNIST's own format."""
    for part, count in (("train", 20), ("t10k", 10)):
        pixels = numpy.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=numpy.uint8)
        folder = tmp_path / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels.tobytes())
        labels = bytes(number % 10 for number in range(count))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
    return tmp_path


def test_torch(mnist: Path) -> None:
    train = open_dataset(f"torch/mnist:{mnist}", in_chans=1)
    assert len(train) == 20
    assert train.split == "train"
    assert train.class_names[:2] == ("0 - zero", "1 - one")
    assert train.targets.tolist() == list(range(10)) * 2
    image, target = train.load(13)
    assert (image.mode, image.size, target) == ("L", (28, 28), 3)
    assert train.filename(13) == f"torch/mnist:{mnist}/13"
    for name in ("val", "validation", "test"):
        val = open_dataset(f"torch/MNIST:{mnist}", name, train.class_names)
        assert len(val) == 10
    assert val.load(0)[0].mode == "RGB"


def test_torch_errors(tmp_path: Path) -> None:
    for spec, message in (
        ("torch/cifar01:x", r"no data set named 'cifar01'; did you mean torch/cifar10\d?\?"),
        ("torch/zzz:x", "there are cifar10, cifar100, imagenet"),
        ("torch/cifar10", "torch/cifar10: say in which folder it lies: torch/cifar10:FOLDER"),
        (f"torch/cifar10:{tmp_path}/nowhere", "no such folder: .*nowhere"),
        (f"torch/cifar10:{tmp_path}", "not found in .*, or not whole"),
        (f"torch/mnist:{tmp_path}", "not found in .*, or not whole"),
        (f"torch/imagenet:{tmp_path}", "not found in .*, or not whole"),
        (f"torch/qmnist:{tmp_path}", "not found in .*, or not whole"),
        (f"torch/places365:{tmp_path}", "not found in .*, or not whole"),
        (f"torch/inaturalist:{tmp_path}", "not found in .*, or not whole"),
    ):
        with pytest.raises(RequestError, match=message) as raised:
            open_dataset(spec)
        assert "\n" not in str(raised.value)
    with pytest.raises(RequestError, match="has no split 'mini'; it has train, val"):
        open_dataset(f"torch/cifar10:{tmp_path}", "mini")


def write_idx(root: Path, part: str, magic: int, shape: tuple[int, ...], content: bytes) -> None:
    """One of MNIST's files, in place of the one that is there."""
    kind = {2049: "labels", 2051: "images", 1: "images"}[magic]
    head = struct.pack(f">I{len(shape)}I", magic, *shape)
    (root / "MNIST" / "raw" / f"{part}-{kind}-idx{len(shape)}-ubyte").write_bytes(head + content)


def test_torch_files_that_do_not_fit_together(mnist: Path) -> None:
    """Of fewer labels than images the rest of the images were left out, and a label of no class ended the training."""
    write_idx(mnist, "train", 2049, (5,), bytes(5))
    with pytest.raises(RequestError, match="not whole: 20 images, but 5 labels"):
        open_dataset(f"torch/mnist:{mnist}")
    write_idx(mnist, "train", 2049, (20,), bytes([3, 200] * 10))
    for names in (None, [str(number) for number in range(300)]):
        with pytest.raises(RequestError, match="an image has the label 200, and there are 10 classes"):
            open_dataset(f"torch/mnist:{mnist}", class_names=names)


def test_torch_damaged_files(mnist: Path) -> None:
    """torchvision and torch raise AssertionError, UnpicklingError, KeyError and TypeError for them."""
    write_idx(mnist, "train", 1, (20, 28, 28), bytes(20 * 28 * 28))
    torch.save(3, mnist / "meta.bin")
    for damage in (None, b"hello", pickle.dumps(Path("/"))):
        if damage:
            (mnist / "MNIST" / "processed").mkdir(exist_ok=True)
            for name in ("training.pt", "test.pt"):
                (mnist / "MNIST" / "processed" / name).write_bytes(damage)
            (mnist / "meta.bin").write_bytes(damage)
        (mnist / "train" / "n01").mkdir(parents=True, exist_ok=True)
        picture().save(mnist / "train" / "n01" / "1.JPEG")
        for name in ("mnist", "imagenet"):
            with pytest.raises(RequestError, match=f"^torch/{name}:.*, or not whole") as raised:
                open_dataset(f"torch/{name}:{mnist}")
            assert "\n" not in str(raised.value)
            assert len(str(raised.value)) < 200 + 2 * len(str(mnist))


def test_torch_needs_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ImageNet's development kit is read by SciPy, which an installation need not have."""
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(EnvironmentFailure, match=r"needs scipy.* to be read: pip install scipy$"):
        open_dataset(f"torch/imagenet:{tmp_path}")


def test_torch_order_is_not_that_of_the_file_system(tmp_path: Path) -> None:
    """Of one data set at two places the same images are held out: torchvision takes what the folder lists first."""
    classes = [f"{number:05d}_Animalia_Chordata_Aves_A_B_C_{name}" for number, name in enumerate("de")]
    draw_classes(tmp_path / "2021_train", classes, 12)
    (tmp_path / "2021_train" / classes[0] / ".DS_Store").write_bytes(b"no image")
    data = open_dataset(f"torch/inaturalist:{tmp_path}")
    assert (len(data), data.class_names) == (24, tuple(classes))
    files = sorted((tmp_path / "2021_train").rglob("*.jpg"))
    for index in (0, 1, 13, 23):
        with Image.open(files[index]) as image:
            assert numpy.array_equal(numpy.asarray(data.load(index)[0]), numpy.asarray(image.convert("RGB")))


if TYPE_CHECKING:  # loaded for these tests alone: it takes a second
    import datasets


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def rows(count: int, **columns: list[object]) -> "datasets.Dataset":
    import datasets

    pictures = {"img": [picture(seed) for seed in range(count)]}
    features = {"img": datasets.Image()}
    if "label" not in columns:
        pictures["fine_label"] = [number % 3 for number in range(count)]
        features["fine_label"] = datasets.ClassLabel(names=["cat", "dog", "fox"])
    table = datasets.Dataset.from_dict(pictures, features=datasets.Features(features))
    for name, values in columns.items():
        table = table.add_column(name, values)
    return table


def test_hub_from_class_folders(tmp_path: Path) -> None:
    for split, images in (("train", 3), ("test", 1)):
        draw_classes(tmp_path / "data" / split, ["dog", "cat"], images)
    train = open_dataset(f"hfds/{tmp_path}/data")
    assert train.class_names == ("cat", "dog")
    assert sorted(train.targets.tolist()) == [0, 0, 0, 1, 1, 1]
    assert train.split == "train"
    assert train.load(0)[0].size == (12, 10)
    assert train.filename(0) == f"hfds/{tmp_path}/data/0/cat/0.jpg"
    with pytest.raises(RequestError, match="has no split 'val'; it has test, train"):
        open_dataset(f"hfds/{tmp_path}/data", "val")
    assert len(open_dataset(f"hfds/{tmp_path}/data", "test", train.class_names)) == 2


def test_hub_from_parquet(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows(7).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    data = open_dataset(f"hfds/{tmp_path}/data")
    assert data.class_names == ("cat", "dog", "fox")
    assert data.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert numpy.array_equal(numpy.asarray(data.load(5)[0]), numpy.asarray(picture(5)))


@pytest.mark.parametrize("divided", [False, True])
def test_hub_saved_to_disk(tmp_path: Path, divided: bool) -> None:
    import datasets

    table = rows(7)
    (datasets.DatasetDict(train=table, validation=table.select([1])) if divided else table).save_to_disk(tmp_path / "x")
    data = open_dataset(f"hfds/{tmp_path}/x")
    assert (len(data), data.split) == (7, "train" if divided else None)
    assert len(open_dataset(f"hfds/{tmp_path}/x", "val", data.class_names)) == (1 if divided else 7)
    assert numpy.array_equal(numpy.asarray(data.load(5)[0]), numpy.asarray(picture(5)))


def test_hub_names_of_images_tell_them_apart(tmp_path: Path) -> None:
    """Where a table holds the bytes, the paths in it are `0.jpg` of every class."""
    import datasets

    draw_classes(tmp_path / "data", ["dog", "cat"], 2)
    datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "data"), split="train").save_to_disk(tmp_path / "x")
    data = open_dataset(f"hfds/{tmp_path}/x")
    names = [data.filename(index) for index in range(4)]
    assert names == [f"hfds/{tmp_path}/x/{index}/{index % 2}.jpg" for index in range(4)]


def test_hub_labels(tmp_path: Path) -> None:
    for number, (labels, names, targets) in enumerate(
        (
            ([2, 0, 1], ("0", "1", "2"), [2, 0, 1]),
            (["b", "a10", "a9"], ("a9", "a10", "b"), [2, 1, 0]),
        )
    ):
        rows(3, label=labels).save_to_disk(tmp_path / str(number))
        data = open_dataset(f"hfds/{tmp_path}/{number}")
        assert data.class_names == names
        assert data.targets.tolist() == targets
    for number, (labels, message) in enumerate(
        (
            ([1, -1, -1], r"2 of 3 rows have no class in `label`; choose another split"),
            ([1, None, 0], r"1 of 3 rows have no class"),
            ([1, 5, 10**9], r"label 1000000000 is no class index"),
        ),
        start=10,
    ):
        rows(3, label=labels).save_to_disk(tmp_path / str(number))
        with pytest.raises(RequestError, match=message):
            open_dataset(f"hfds/{tmp_path}/{number}")


def test_hub_rows_without_an_image(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    broken = {"bytes": b"no image", "path": None}
    content = {"image": [None, broken, picture()], "label": [0, 1, 1]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(tmp_path / "x")
    data = open_dataset(f"hfds/{tmp_path}/x")
    for index, why in enumerate(["no image in this row", "not an image"]):
        with pytest.raises(UnreadableImage, match=why):
            data.load(index)
    assert isinstance(data.load(2)[0], Image.Image)


def test_hub_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    datasets.Dataset.from_dict({"text": ["a"], "label": [0]}).save_to_disk(tmp_path / "text")
    rows(2).rename_column("fine_label", "kind").cast_column("kind", datasets.Value("int64")).save_to_disk(
        tmp_path / "n"
    )
    (tmp_path / "empty").mkdir()
    for spec, message in (
        (f"{tmp_path}/text", "expected an image column and a column `label`; its columns are text, label"),
        (f"{tmp_path}/n", "expected an image column and a column `label`; its columns are img, kind"),
        (f"{tmp_path}/empty", "hfds/.*empty: cannot be read|no such data set"),
    ):
        with pytest.raises(RequestError, match=message) as raised:
            open_dataset(f"hfds/{spec}")
        assert "\n" not in str(raised.value)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises((RequestError, EnvironmentFailure), match=r"^hfds/tcnn-invalid/none: ") as raised:
        open_dataset("hfds/tcnn-invalid/none")
    assert "\n" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentFailure, match=r"needs the datasets library: pip install 'tcnn\[data\]'$"):
        open_dataset("hfds/cifar10")
