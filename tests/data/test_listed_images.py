"""What tells an image from the others of a data set, and the parts that are drawn by it, in every kind of data set."""

import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from data_pictures import as_mixed_shard, as_tar, draw_classes
from PIL import Image
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import ImageSet, open_dataset, split_off
from tcnn.data.parts import held_out_places, listing

CLASSES = ["ant", "bee"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("parts") / "photos", CLASSES, 4)


def rows_of(photos: Path, inside: bool = True) -> Any:
    """The images as rows, which have their bytes or only the paths."""
    datasets = pytest.importorskip("datasets")
    files = sorted(photos.glob("*/*.jpg"))
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    images = [{"bytes": file.read_bytes(), "path": None} if inside else str(file) for file in files]
    labels = [CLASSES.index(file.parent.name) for file in files]
    return datasets.Dataset.from_dict({"image": images, "label": labels}, features=kinds)


def test_a_data_set_that_is_moved_or_packed_lists_the_same(photos: Path, tmp_path: Path) -> None:
    whole = open_dataset(str(photos))
    copy = str(shutil.copytree(photos, tmp_path / "elsewhere" / "copy"))
    for one in (copy, as_tar(Path(copy)), ImageFolder(copy), Subset(ImageFolder(copy), range(8))):
        assert open_dataset(one).listing() == whole.listing(), one
    assert open_dataset(copy, class_names=["bee", "cat", "ant"], in_chans=1).listing() == whole.listing()
    assert in_memory(whole, tmp_path / "pixels").listing() == whole.listing()
    assert whole.numbered_as(["bee", "cat", "ant"]).listing() == whole.listing()
    assert open_dataset(as_mixed_shard(photos, tmp_path / "mixed.tar")).listing() != whole.listing()


def test_parts_list_their_images_and_where_they_are(photos: Path, tmp_path: Path) -> None:
    """Another part was taken for the one that a run had learned from."""
    whole = open_dataset(photos)
    again = [open_dataset(str(photos)).subset(places) for places in ([0, 2, 5], [0, 3, 5], [2, 0, 5], range(8))]
    assert [part.listing() == whole.subset([0, 2, 5]).listing() for part in again] == [True, False, False, False]
    assert again[3].listing() == whole.listing() == split_off(whole, 0.25, 0)[1].whole.listing()
    numbered = open_dataset(rows_of(photos))
    assert len({numbered.subset(places).listing() for places in ([0, 1], [1, 2], [0, 1])}) == 2, "without names"
    for site in ("one", "other"):
        shutil.copytree(photos, tmp_path / "sites" / site)
    sites = open_dataset(str(tmp_path / "sites"))
    alike = [[place for place in range(16) if site in sites.filename(place)] for site in ("/one/", "/other/")]
    one, other = map(sites.subset, alike)
    assert (one.keys(), one.fingerprint()) == (other.keys(), other.fingerprint())
    assert one.listing() != other.listing()
    assert [len(each) for each in one.subset([3]).of_channels(1).lineage] == [1, 8, 16]


def test_rows_list_the_same_wherever_they_lie(photos: Path, tmp_path: Path) -> None:
    named, numbered = rows_of(photos, inside=False), rows_of(photos)
    listed = open_dataset(named).listing()
    named.save_to_disk(str(tmp_path / "saved"))  # with the bytes in the table, and of the paths their last part
    assert open_dataset(f"hfds/{tmp_path / 'saved'}").listing() == listed
    assert in_memory(open_dataset(named), tmp_path / "pixels").listing() == listed
    (tmp_path / "rows").mkdir()
    numbered.to_parquet(str(tmp_path / "rows" / "train.parquet"))
    listed = open_dataset(numbered).listing()
    assert open_dataset(f"hfds/{tmp_path / 'rows'}").listing() == listed
    assert in_memory(open_dataset(numbered), tmp_path / "pixels").listing() == listed
    assert open_dataset(numbered.select([0, 1, 2, 3, 4, 5, 7])).listing() != listed


def test_any_class_any_name_and_the_order_are_listed() -> None:
    first = listing(["a/1", "a/2", "b/1"], [0, 0, 1], ["a", "b"])
    assert listing(["a/1", "a/2", "b/1"], [1, 1, 0], ["b", "a"]) == first
    for keys, targets in (
        (["a/1", "a/3", "b/1"], [0, 0, 1]), (["a/2", "a/1", "b/1"], [0, 0, 1]), (["a/1", "a/2", "b/1"], [0, 1, 1]),
        (None, [0, 0, 1]),
    ):  # fmt: skip
        assert listing(keys, targets, ["a", "b"]) != first
    assert listing(None, [0, 1, 0], ["a", "b"]) != listing(None, [0, 0, 1], ["a", "b"])
    composed, apart = "caf\u00e9", "cafe\u0301"
    assert listing([composed], [0], [composed]) == listing([apart], [0], [apart])


class Turned(Subset[Any]):
    def __getitem__(self, index: int) -> Any:
        image, target = super().__getitem__(index)
        return image.transpose(Image.Transpose.ROTATE_90), target

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def repeated(photos: Path, kind: str, folder: Path) -> ImageSet:
    """The eight images with every one of the second class three times."""
    datasets = pytest.importorskip("datasets")
    files = ImageFolder(str(photos))
    places = [0, 1, 2, 3] + [4, 5, 6, 7] * 3
    if kind in ("the same path", "a loader of one's own"):
        if kind != "the same path":
            files.loader = Image.open
        files.samples = files.imgs = [files.imgs[place] for place in places]
        files.targets = [target for _, target in files.imgs]
        return open_dataset(files)
    if kind == "links in a tar":
        with tarfile.open(folder / "links.tar", "w") as archive:
            archive.add(photos, "photos")
            for number in (4, 5, 6, 7, 8, 9, 10, 11):
                link = tarfile.TarInfo(f"photos/bee/{number}.jpg")
                link.type, link.linkname = tarfile.LNKTYPE, f"photos/bee/{number % 4}.jpg"
                archive.addfile(link)
        return open_dataset(str(folder / "links.tar"))
    rows = rows_of(photos, inside=kind != "rows of the same path")
    return {
        "a subset": lambda: open_dataset(Subset(files, places)),
        "a subset of a subset": lambda: open_dataset(Subset(Subset(files, places), list(range(16))[::-1])),
        "a subset's own method": lambda: open_dataset(Turned(files, places)),
        "a subset of ours": lambda: open_dataset(str(photos)).subset(places),
        "decoded": lambda: in_memory(open_dataset(Subset(files, places)), folder / "pixels"),
        "chosen rows": lambda: open_dataset(rows.select(places)),
        "rows put together": lambda: open_dataset(
            datasets.concatenate_datasets([rows, rows.select(range(4, 8)), rows.select([7, 6, 5, 4])])
        ),
        "rows of the same path": lambda: open_dataset(
            datasets.concatenate_datasets([rows, *[rows_of(photos, inside=False).select(range(4, 8))] * 2])
        ),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        "the same path", "a loader of one's own", "a subset's own method",
        "links in a tar", "a subset", "a subset of a subset", "a subset of ours", "decoded",
        "chosen rows", "rows put together", "rows of the same path",
    ],
)  # fmt: skip
def test_an_image_that_is_listed_several_times_is_held_out_or_learned_from(
    photos: Path, tmp_path: Path, kind: str
) -> None:
    """Copies of most images of a class that was repeated were both: its accuracy was that of learned images."""
    data = repeated(photos, kind, tmp_path)
    learned, held_out = split_off(data, 0.25, 0)
    parts = [Counter(part.load(index)[0].tobytes() for index in range(len(part))) for part in (learned, held_out)]
    assert not parts[0].keys() & parts[1].keys()
    assert [sorted(part.values()) for part in parts] == [[1, 1, 1, 3, 3, 3], [1, 3]]


def test_without_repeated_images_the_part_is_that_of_before() -> None:
    """The one that earlier releases held out, whose runs are still measured on it."""
    targets = torch.tensor([0, 1, 1, 0, 2, 1, 0, 0, 1, 2, 2, 0])
    alone = held_out_places(targets, torch.arange(12), 0.4, 3)
    assert alone.nonzero()[:, 0].tolist() == [2, 5, 6, 7, 9]
    copies = torch.cat([targets, targets]), torch.arange(12).repeat(2)
    assert held_out_places(*copies, 0.4, 3).tolist() == alone.repeat(2).tolist()


def test_an_image_of_several_classes_is_not_held_out() -> None:
    targets, images = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([10, 11, 12, 10, 11])
    for seed in range(9):
        assert not held_out_places(targets, images, 0.9, seed).any(), "one image of class 0 alone, none of class 1"
    more = held_out_places(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([10, 11, 12, 10, 13]), 0.9, 0)
    assert more.nonzero()[:, 0].tolist() in ([1], [2])
