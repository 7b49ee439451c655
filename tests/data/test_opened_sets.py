"""Data sets that the caller has opened: Hugging Face's, torchvision's, parts of them, and one's own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_runs import TwoConvs, colours, run
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder

from tcnn.data.image_set import ImageSet, open_dataset, split_off
from tcnn.errors import RequestError
from tcnn.evaluation.evaluate import evaluate
from tcnn.training.preparing.inputs import data_sets, open_data_sets

datasets = pytest.importorskip("datasets")
CLASSES = ("blue", "green", "red")


class Greys(Dataset[Any]):
    """One of one's own: twenty greys in two classes."""

    classes = ("dark", "light")
    targets = torch.tensor([0] * 10 + [1] * 10)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.new("L", (32, 32), 10 * index), int(self.targets[index])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def rows(folder: Path) -> Any:
    files = sorted(folder.glob("*/*.png"))
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    labels = [CLASSES.index(file.parent.name) for file in files]
    return datasets.Dataset.from_dict({"image": [str(file) for file in files], "label": labels}, features=kinds)


def pixels(data: ImageSet) -> list[tuple[bytes, int]]:
    return [(image.tobytes(), target) for image, target in map(data.load, range(len(data)))]


def test_images_are_those_of_the_folder(folder: Path, rows: Any) -> None:
    expected = pixels(open_dataset(str(folder)))
    for given in (ImageFolder(str(folder)), rows, Subset(ImageFolder(str(folder)), range(30))):
        opened = open_dataset(given)
        assert opened.class_names == CLASSES
        assert opened.split is None
        assert sorted(pixels(opened)) == sorted(expected)
    assert open_dataset(ImageFolder(str(folder))).filename(3) == str(folder / "blue" / "3.png")


def test_parts_keep_their_order_and_classes(folder: Path) -> None:
    whole = open_dataset(ImageFolder(str(folder)))
    part = open_dataset(Subset(Subset(ImageFolder(str(folder)), range(5, 30)), [20, 0, 7]))
    assert pixels(part) == [pixels(whole)[place] for place in (25, 5, 12)]
    assert part.filename(0) == whole.filename(25)
    assert part.stamp(0) == whole.stamp(25)


def test_splits_are_found_and_shares_are_held_out(rows: Any) -> None:
    splits = datasets.DatasetDict({"train": rows, "validation": rows.select(range(6))})
    train, val = data_sets(splits)
    assert isinstance(train, ImageSet)
    assert isinstance(val, ImageSet)
    assert (len(train), len(val), train.split, val.split) == (30, 6, "train", "validation")
    assert data_sets(splits, val_split=0.2)[1] is None
    with pytest.raises(RequestError, match=r"has no split 'validation'; it has test, train; give one of them as val"):
        data_sets(datasets.DatasetDict({"train": rows, "test": rows}))


def test_a_run_learns_from_them(rows: Any, folder: Path, tmp_path: Path) -> None:
    found = run(TwoConvs(), rows, tmp_path / "run", epochs=1, quiet=True)
    assert (found.train_images, found.val_images, found.classes) == (24, 6, 3)
    again = run(TwoConvs(), rows, tmp_path / "run", epochs=1, resume=True, quiet=True)
    assert again.updates == found.updates
    part = Subset(ImageFolder(str(folder)), range(0, 30, 5))
    assert evaluate(TwoConvs(), part, size=32).images == 6


def test_ones_own_is_opened_as_the_model_sees() -> None:
    opened = open_dataset(Greys())
    assert (opened.class_names, opened.mode, opened.stamp(0)) == (("dark", "light"), "RGB", None)
    from tiny_runs import tiny

    train, val, _ = open_data_sets(opened, None, tiny(), in_chans=1)
    assert (train.mode, val.mode, train.load(1)[0].mode) == ("L", "L", "L")
    held_out = split_off(opened, 0.2, 0)[1].of_channels(1)
    assert held_out.whole.mode == "L"
    assert held_out.of_channels(1) is held_out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda folder, rows: None, "data: expected the name of a data set, .* found None"),
        (lambda folder, rows: TensorDataset(torch.zeros(2, 3, 8, 8)), "expected the name .*TensorDataset"),
        (lambda folder, rows: ImageFolder(str(folder), lambda image: image), "its transform would have no effect"),
        (lambda folder, rows: rows.with_transform(lambda row: row), "its with_transform would have no effect"),
        (lambda folder, rows: rows.to_iterable_dataset(), "is a stream"),
        (lambda folder, rows: rows.remove_columns("label"), "expected an image column and a column `label`"),
        (lambda folder, rows: datasets.DatasetDict(), "has no split at all"),
    ],
)
def test_what_is_refused(given: Any, said: str, folder: Path, rows: Any) -> None:
    with pytest.raises(RequestError, match=said):
        open_dataset(given(folder, rows))
