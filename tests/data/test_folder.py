"""Class folders and tars of them: the same rules, the same classes, the same pixels."""

import io
import os
import re
import tarfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from data_pictures import as_tar, classes_of, draw, draw_classes, picture
from timm.data import create_dataset

from tcnn.data.image_set import open_dataset
from tcnn.data.sources.names import sort_key
from tcnn.errors import RequestError

Pack = Callable[[Path], str]


def as_folder(root: Path) -> str:
    return str(root)


def as_tar_below(root: Path) -> str:
    path = root.with_suffix(".tar")
    with tarfile.open(path, "w") as archive:
        archive.add(root, arcname="some/where")
    return str(path)


@pytest.fixture(params=[as_folder, as_tar, as_tar_below])
def pack(request: pytest.FixtureRequest) -> Pack:
    return request.param


def test_classes_and_pixels(tmp_path: Path, pack: Pack) -> None:
    data = open_dataset(pack(draw_classes(tmp_path / "data", ["dog", "cat"], 2)))
    assert data.class_names == ("cat", "dog")
    assert data.targets.tolist() == [0, 0, 1, 1]
    assert data.split is None
    assert len(data) == 4
    assert [data.filename(i).rpartition("/")[2] for i in range(4)] == ["0.jpg", "1.jpg"] * 2
    for index, seed in enumerate([100, 101, 0, 1]):
        image, target = data.load(index)
        assert target == index // 2
        buffer = io.BytesIO()
        picture(seed).save(buffer, "JPEG")
        assert numpy.abs(numpy.asarray(image).astype(int) - numpy.asarray(picture(seed))).mean() < 30
    with pytest.raises(IndexError):
        data.load(4)


def test_order_of_classes_and_images_is_timms(tmp_path: Path) -> None:
    names = ["class10", "class9", "Zebra", "apple", "n02", "n1"]
    root = draw_classes(tmp_path / "data", names, 11)
    data = open_dataset(str(root))
    theirs = create_dataset("", root=str(root), split="train")
    assert data.class_names == tuple(theirs.reader.class_to_idx)
    assert [data.filename(i) for i in range(len(data))] == theirs.filenames(absolute=True)
    assert data.targets.tolist() == [target for _, target in theirs.reader.samples]
    assert numpy.array_equal(numpy.asarray(data.load(5)[0]), numpy.asarray(theirs[5][0]))


def test_order_where_natural_order_sees_no_difference(tmp_path: Path, pack: Pack) -> None:
    """timm would leave it to the file system, and classes to the hash of a string, which changes from run to run."""
    data = open_dataset(pack(draw_classes(tmp_path / "data", ["b", "B", "01", "1", "1²", "001"], 1)))
    assert data.class_names == ("001", "01", "1", "1²", "B", "b")


def test_junk_is_ignored(tmp_path: Path, pack: Pack) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 2)
    for name in ("cat/.DS_Store", "cat/Thumbs.db", "dog/notes.txt", "README.md", "cat/labels.csv", "dog/no_ending"):
        (root / name).write_text("junk")
    for name in ("cat/._0.jpg", "__MACOSX/cat/0.jpg", ".ipynb_checkpoints/0.jpg", "cat/.ipynb_checkpoints/0.jpg"):
        draw(root / name)
    for name in (".git/objects", "dog/masks", "cat/folder.jpg"):
        (root / name).mkdir(parents=True)
    draw(root / "lying_about.jpg")
    assert classes_of(open_dataset(pack(root))) == {"cat": 2, "dog": 2}


@pytest.mark.parametrize("asked", ["train", "training"])
@pytest.mark.parametrize("there", [("train", "val"), ("training", "validation"), ("Train", "VAL"), ("train", "eval")])
def test_splits(tmp_path: Path, pack: Pack, there: tuple[str, str], asked: str) -> None:
    draw_classes(tmp_path / "data" / there[0], ["cat", "dog"], 3)
    draw_classes(tmp_path / "data" / there[1], ["cat", "dog"], 1)
    spec = pack(tmp_path / "data")
    train = open_dataset(spec, asked)
    assert (classes_of(train), train.split) == ({"cat": 3, "dog": 3}, there[0])
    for name in ("val", "valid", "validation"):
        val = open_dataset(spec, name, train.class_names)
        assert (classes_of(val), val.split) == ({"cat": 1, "dog": 1}, there[1])


def test_a_split_that_does_not_exist(tmp_path: Path, pack: Pack) -> None:
    for split in ("train", "test", "mini"):
        draw_classes(tmp_path / "data" / split, ["cat", "dog"], 1)
    spec = pack(tmp_path / "data")
    with pytest.raises(RequestError, match=r"has no split 'val'; it has test, train$"):
        open_dataset(spec, "val")
    assert len(open_dataset(spec, "testing")) == 2
    assert len(open_dataset(spec, "mini")) == 2
    with pytest.raises(RequestError, match=r"has no split 'mimi'; it has test, train$"):
        open_dataset(spec, "mimi")
    whole = pack(draw_classes(tmp_path / "whole", ["cat", "dog"], 1))
    assert len(open_dataset(whole, "val")) == 2
    with pytest.raises(RequestError, match="has no split 'mini'; it is not divided into splits"):
        open_dataset(whole, "mini")


def test_a_class_may_be_called_train(tmp_path: Path, pack: Pack) -> None:
    data = open_dataset(pack(draw_classes(tmp_path / "data", ["train", "car", "test"], 2)))
    assert classes_of(data) == {"car": 2, "test": 2, "train": 2}
    assert data.split is None


@pytest.mark.parametrize("others", [(), ("annotations",)])
def test_a_picture_astray_in_a_split(tmp_path: Path, pack: Pack, others: tuple[str, ...]) -> None:
    """It makes no class of the split, whose images would be those of training and validation at once."""
    for split, images in (("train", 3), ("val", 1)):
        draw_classes(tmp_path / "data" / split, ["cat", "dog"], images)
        draw(tmp_path / "data" / split / "overview.jpg")
    for other in others:
        (tmp_path / "data" / other).mkdir()
    spec = pack(tmp_path / "data")
    for split, images in (("train", 3), ("val", 1)):
        data = open_dataset(spec, split)
        assert (classes_of(data), data.split) == ({"cat": images, "dog": images}, split)


def test_a_class_called_train_may_have_folders(tmp_path: Path, pack: Pack) -> None:
    root = draw_classes(tmp_path / "data", ["train", "car"], 2)
    draw_classes(root / "train", ["steam"], 1)
    data = open_dataset(pack(root))
    assert (classes_of(data), data.split) == ({"car": 2, "steam": 1, "train": 2}, None)


def test_deeper_folders(tmp_path: Path, pack: Pack) -> None:
    """As in timm the innermost folder is the class; a folder around the splits does not hide them."""
    draw_classes(tmp_path / "data/downloads/pets/train/animals", ["cat", "dog"], 2)
    draw_classes(tmp_path / "data/downloads/pets/train/plants", ["rose"], 1)
    draw_classes(tmp_path / "data/downloads/pets/val", ["cat"], 1)
    data = open_dataset(pack(tmp_path / "data"))
    assert classes_of(data) == {"cat": 2, "dog": 2, "rose": 1}
    assert data.split == "train"


def test_only_one_class(tmp_path: Path, pack: Pack) -> None:
    assert classes_of(open_dataset(pack(draw_classes(tmp_path / "data", ["cat"], 2)))) == {"cat": 2}


@pytest.mark.parametrize("junk", [False, True])
def test_an_empty_class_folder(tmp_path: Path, pack: Pack, junk: bool) -> None:
    root = draw_classes(tmp_path / "data", ["ant", "dog"], 1)
    (root / "cat").mkdir()
    if junk:
        (root / "cat" / "cat.txt").write_text("no image")
        draw(root / "cat" / "._cat.jpg")
    spec = pack(root)
    with pytest.raises(
        RequestError, match=r"no images in class folder cat; fill it or remove it \(images end in \.jpg"
    ):
        open_dataset(spec)
    assert open_dataset(spec, "val", ["ant", "bee", "cat", "dog"]).targets.tolist() == [0, 3]


@pytest.mark.parametrize("content", ["nothing", "flat", "folders", "text"])
def test_nothing_to_see(tmp_path: Path, pack: Pack, content: str) -> None:
    root = tmp_path / "data"
    (root / "empty").mkdir(parents=True)
    if content == "nothing":
        (root / "empty").rmdir()
    elif content == "flat":
        draw(root / "1.jpg")
        draw(root / "2.jpg")
    elif content == "text":
        (root / "empty" / "a.txt").touch()
    found = {
        "nothing": "nothing" if pack is not as_tar_below else "folders without images",
        "flat": "2 images that lie in no class folder",
        "folders": "folders without images",
        "text": "folders without images",
    }[content]
    if content == "flat" and pack is as_tar_below:
        pytest.skip("an archive of one folder is that class")
    with pytest.raises(RequestError, match=f"expected a folder of images for every class, found {found}"):
        open_dataset(pack(root))


def test_a_missing_class_keeps_the_indices(tmp_path: Path, pack: Pack) -> None:
    train = open_dataset(pack(draw_classes(tmp_path / "train", ["a", "b", "c", "d"], 1)))
    val = open_dataset(pack(draw_classes(tmp_path / "val", ["d", "b"], 2)), "val", train.class_names)
    assert val.class_names == train.class_names
    assert val.targets.tolist() == [1, 1, 3, 3]
    assert [val.load(i)[1] for i in range(4)] == [1, 1, 3, 3]


def test_an_unknown_class(tmp_path: Path, pack: Pack) -> None:
    spec = pack(draw_classes(tmp_path / "val", ["cat", "doge"], 1))
    with pytest.raises(RequestError, match=r"unknown class doge \(near: dog\); .* that were trained \(2 of them\)"):
        open_dataset(spec, "val", ["cat", "dog"])
    with pytest.raises(RequestError, match=r"unknown class cat, doge;"):
        open_dataset(spec, "val", ["1", "2", "3"])


def test_names_with_every_character(tmp_path: Path, pack: Pack) -> None:
    names = ["a cat", "Größe", "日本", "per%cent", "dot.ted", "{brace}", "[1]"]
    root = draw_classes(tmp_path / "data", names, 1)
    draw(root / "日本" / "ねこ 1.jpg")
    data = open_dataset(pack(root))
    assert sorted(data.class_names) == sorted(names)
    for index in range(len(data)):
        data.load(index)
    assert any(data.filename(i).endswith("ねこ 1.jpg") for i in range(len(data)))


def test_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", ["cat"], 1)
    (root / "cat" / "0.jpg").rename(root / "cat" / "\udce9.jpg")
    data = open_dataset(str(root))
    assert data.filename(0) == str(root / "cat" / r"\xe9.jpg")
    data.load(0)


def test_class_names_of_a_mac_are_those_of_others(tmp_path: Path, pack: Pack) -> None:
    """Its folders have accents apart from their letters: the same names, classes and order."""
    composed = ["cafard", "caféier", "zèbre"]
    apart = [unicodedata.normalize("NFD", name) for name in composed]
    train = open_dataset(pack(draw_classes(tmp_path / "train", apart, 1)))
    assert train.class_names == open_dataset(pack(draw_classes(tmp_path / "own", composed, 1))).class_names
    assert sorted(train.class_names) == sorted(composed)
    both = draw_classes(tmp_path / "both", [*composed[:1], *apart[1:]], 1)
    draw_classes(both, composed[1:], 2)
    data = open_dataset(pack(both), class_names=tuple(apart))  # of a checkpoint by an older version
    assert data.class_names == tuple(apart) and data.targets.bincount().tolist() == [1, 3, 3]


def test_copies_of_a_mac_are_in_the_same_order() -> None:
    """So their splits are the same; plain names stay in the order that they had, and no two are a tie."""
    composed = ["a/zèbre.png", "a/éa.png", "a/eb.png", "a/Été 2.png", "a/été 10.png", "a/zz.png", "a/fz.png"]
    apart = [unicodedata.normalize("NFD", name) for name in composed]
    assert [unicodedata.normalize("NFC", name) for name in sorted(apart, key=sort_key)] == sorted(
        composed, key=sort_key
    )
    assert sort_key(composed[0]) != sort_key(apart[0])
    plain = ["a/10.png", "a/9.png", "a/09.png", "A/1.png", "a/1.png", "a/b1.png", "a/a10.png", "a/a9.png"]
    earlier = sorted(plain, key=lambda name: ([int(part) if part.isdigit() else part
                                               for part in re.split(r"(\d+)", name.lower())], name))  # fmt: skip
    assert sorted(plain, key=sort_key) == earlier


def test_class_names_that_cannot_be_stored(tmp_path: Path) -> None:
    root = draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    (root / "cat").rename(root / os.fsdecode(b"caf\xe9"))
    with pytest.raises(RequestError, match=r"class name 'caf\\udce9' has a lone surrogate \(U\+DCE9\), as of bytes"):
        open_dataset(str(root))


def test_class_names_in_scripts_that_join_their_letters(tmp_path: Path, pack: Pack) -> None:
    """With the joiners and spaces that they are spelt with; nothing that would break a line or turn it around."""
    names = ["ශ්\u200dරී", "می\u200cخواهم", "秋田\u3000犬", "👨\u200d👩\u200d👧", "n°\u00a01"]
    data = open_dataset(pack(draw_classes(tmp_path / "data", names, 1)))
    assert sorted(data.class_names) == sorted(names)
    for name, said in (
        ("a\u202eb", r"reading direction \(U\+202E\)"),
        ("a\u2028b", "line separator"),
        ("a\x1bb", "U.001B"),
    ):
        root = draw_classes(tmp_path / f"bad{ord(name[1])}", [name, "dog"], 1)
        with pytest.raises(RequestError, match=rf"class name '.*' has a .*{said}.*; rename the class"):
            open_dataset(str(root))


def test_a_picture_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected an uncompressed, whole tar archive"):
        open_dataset(str(draw(tmp_path / "cat.jpg")))


def test_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    draw_classes(tmp_path / "data", ["cat", "dog"], 1)
    assert len(open_dataset("~/data")) == 2
