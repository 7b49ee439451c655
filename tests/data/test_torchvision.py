"""Data sets of torchvision, from files in its own formats: nothing is downloaded."""

import pickle
import struct
import sys
from pathlib import Path

import numpy
import pytest
import torch
from data_pictures import draw_classes, picture
from PIL import Image

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import open_dataset
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError


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


def test_torch_download_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of MNIST's mirrors torchvision raises RuntimeError, and it was a data set that is not whole."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nothing listens
    for name in ("mnist", "qmnist", "cifar10"):
        with pytest.raises(DownloadError, match=rf"^torch/{name}:.*cannot be fetched .*Connection refused") as raised:
            open_dataset(f"torch/{name}:{tmp_path}", download=True)
        assert "\n" not in str(raised.value)
        with pytest.raises(RequestError, match=r"or not whole .*; in Python, open_dataset\(…, download=True\) fetches"):
            open_dataset(f"torch/{name}:{tmp_path}")
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path, tmp_path / "made" / "here"):
        with pytest.raises(DownloadError):
            open_dataset(f"torch/mnist:{folder}", download=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "what was made for files that did not come is gone"
    with pytest.raises(RequestError, match="no such folder"):  # torchvision cannot fetch it
        open_dataset(f"torch/imagenet:{tmp_path}/none", download=True)


def imagenet(root: Path) -> Path:
    """Two classes of two images as torchvision's ImageNet has them; one of 16 bits, which are half of white."""
    for split in ("train", "val"):
        draw_classes(root / split, ["n01", "n02"], 2)
    Image.fromarray(numpy.full((10, 12), 128 * 256, numpy.uint16)).save(root / "train" / "n02" / "2.png")
    torch.save(({"n01": ("tench",), "n02": ("goldfish",)}, ["n01"]), root / "meta.bin")
    return root


def test_torch_files_are_read_as_those_of_folders(tmp_path: Path) -> None:
    """torchvision's own loader makes 16-bit greys white, and what it warns of is not silenced."""
    data = open_dataset(f"torch/imagenet:{imagenet(tmp_path)}")
    folder = open_dataset(str(tmp_path))
    assert (data.class_names, data.targets.tolist()) == (("n01", "n02"), [0, 0, 1, 1, 1])
    for index in range(5):
        assert numpy.array_equal(numpy.asarray(data.load(index)[0]), numpy.asarray(folder.load(index)[0]))
        assert data.filename(index) == folder.filename(index)
        assert data.stamp(index) == folder.stamp(index)
    assert numpy.asarray(data.load(4)[0]).max() == 128


def test_torch_val_is_not_taken_for_test(tmp_path: Path, mnist: Path) -> None:
    """ImageNet's test images have no labels; those of its val were measured in their place."""
    imagenet(tmp_path)
    assert open_dataset(f"torch/imagenet:{tmp_path}", "valid").split == "val"
    with pytest.raises(RequestError, match="has no split 'test'; it has train, val"):
        open_dataset(f"torch/imagenet:{tmp_path}", "test")
    assert len(open_dataset(f"torch/mnist:{mnist}", "testing")) == 10


def test_torch_decoded_images_of_another_split(tmp_path: Path, mnist: Path) -> None:
    """By name they are the same images."""
    spec = f"torch/mnist:{mnist}"
    train, val, again = (open_dataset(spec, split).subset(range(10)) for split in ("train", "val", "train"))
    assert [again.stamp(index) for index in range(10)] == [train.stamp(index) for index in range(10)]
    for data in (train, val):
        kept = in_memory(data, tmp_path / "pixels")
        assert all(kept.load(index)[0].tobytes() == data.load(index)[0].tobytes() for index in range(10))


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
