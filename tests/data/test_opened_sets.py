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


class Turned(Subset[Any]):
    """Images of another, lying on their side."""

    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image.rotate(90, expand=True), target

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


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


def with_transform(data: Any) -> Any:
    data.transform = Image.Image.copy
    return data


def with_targets(data: Any, target: Any) -> Any:
    data.targets = [target] * len(data)
    return data


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


def test_images_that_were_thrown_out(folder: Path) -> None:
    """Of an ImageFolder whose lists were filtered, the images were other ones than the classes."""
    data = ImageFolder(str(folder))
    kept = [place for place, (_, target) in enumerate(data.samples) if target or place < 3]
    data.samples, whole = [data.samples[place] for place in kept], pixels(open_dataset(data))
    with pytest.raises(RequestError, match=r"expected a class for each of 23 images, found targets of \(30,\)"):
        open_dataset(data)
    data.targets = [data.targets[place] for place in kept]
    assert pixels(open_dataset(data)) == [whole[place] for place in kept]
    assert pixels(open_dataset(Subset(data, [5, 0]))) == [whole[kept[5]], whole[0]]
    data.targets[4] = 0
    with pytest.raises(RequestError, match=r"image 4 has the class 1, and targets\[4\] is 0; where images or classes"):
        open_dataset(data)


def test_files_elsewhere(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those under its root, an ImageFolder was given the files of another, by relative paths."""
    monkeypatch.chdir(colours(tmp_path / "more").parent)
    data, more = ImageFolder(str(folder)), ImageFolder("more")
    expected = pixels(open_dataset(data)) + pixels(open_dataset(more))
    data.samples, data.targets = data.samples + more.samples, data.targets + more.targets
    assert pixels(open_dataset(data)) == expected


def test_how_a_set_opens_its_images(folder: Path, rows: Any) -> None:
    """A loader and methods of one's own were passed over."""

    def loader(path: Any) -> Image.Image:
        return Image.open(path).resize((20, 10))

    def sizes(data: Any) -> set[tuple[int, int]]:
        opened = open_dataset(data)
        assert opened.targets.tolist() == [int(data[place][1]) for place in range(len(data))]
        return {opened.load(place)[0].size for place in range(len(opened))}

    data = ImageFolder(str(folder), loader=loader)
    assert sizes(data) == sizes(Subset(data, [3, 1])) == {(20, 10)}
    assert sizes(Turned(data, [29, 1])) == sizes(Subset(Turned(data, range(9)), [4])) == {(10, 20)}
    grey = open_dataset(rows.cast_column("image", datasets.Image(mode="L"))).load(0)[0]
    assert grey.tobytes() == open_dataset(rows).load(0)[0].convert("L").convert("RGB").tobytes()


def test_a_class_that_is_not_the_listed_one() -> None:
    data = Greys()
    data.targets = data.targets.clone()
    opened = open_dataset(data)
    data.targets[7] = 1
    with pytest.raises(RequestError, match=r"^data: image 7 has the class 1, and targets\[7\] is 0; "):
        [opened.load(place) for place in range(20)]


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
        (lambda folder, rows: with_transform(Subset(rows, [0])), "its transform would have no effect"),
        (lambda folder, rows: Subset(ImageFolder(str(folder)), [True] * 30), "as the indices of a Subset, found bool"),
        (lambda folder, rows: Subset(ImageFolder(str(folder)), [0.5]), "whole numbers as the indices .* float64"),
        (lambda folder, rows: with_targets(ImageFolder(str(folder)), 0.5), "whole numbers as targets, found float64"),
        (lambda folder, rows: with_targets(ImageFolder(str(folder)), "red"), "whole numbers as targets, found <U3"),
        (lambda folder, rows: rows.cast_column("image", datasets.Image(mode="HSV")), "mode RGB or L, found HSV"),
        (lambda folder, rows: rows.to_iterable_dataset(), "is a stream"),
        (lambda folder, rows: rows.remove_columns("label"), "expected an image column and a column `label`"),
        (lambda folder, rows: datasets.DatasetDict(), "has no split at all"),
    ],
)
def test_what_is_refused(given: Any, said: str, folder: Path, rows: Any) -> None:
    with pytest.raises(RequestError, match=said):
        open_dataset(given(folder, rows))
