"""WebDataset shards, as its own library writes them."""

import gzip
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
from data_pictures import draw_classes, picture

from tcnn.data.image_set import open_dataset
from tcnn.errors import EnvironmentFailure, RequestError

webdataset = pytest.importorskip("webdataset")

Sample = dict[str, object]


def write(path: Path, samples: Sequence[Sample]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as sink:
        for sample in samples:
            sink.write(sample)
    return path


def samples(count: int, first: int = 0, **fields: object) -> list[Sample]:
    """Pictures of three classes in turn."""
    return [
        {"__key__": f"{number:04}", "png": picture(number), "cls": number % 3, **fields}
        for number in range(first, first + count)
    ]


def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    for shard in range(3):
        write(tmp_path / f"train-{shard:03}.tar", samples(5, 5 * shard))
    data = open_dataset(f"wds/{tmp_path}")
    pattern = str(tmp_path / "train-{000..002}.tar")
    theirs = list(webdataset.WebDataset(pattern, shardshuffle=False).decode("rgb8").to_tuple("png", "cls"))
    assert len(data) == len(theirs) == 15
    assert data.class_names == ("0", "1", "2")
    for index in (14, 3, 7, 0, 11):
        image, target = data.load(index)
        assert numpy.array_equal(numpy.asarray(image), theirs[index][0])
        assert target == data.targets[index] == theirs[index][1]
    assert data.filename(7) == f"{tmp_path}/train-001.tar/0007.png"


@pytest.mark.parametrize("spec", ["", "/train-{0..2}.tar", "/train-*.tar", "/train-0.tar"])
def test_ways_to_name_shards(tmp_path: Path, spec: str) -> None:
    for shard in range(3):
        write(tmp_path / f"train-{shard}.tar", samples(4))
    assert len(open_dataset(f"wds/{tmp_path}{spec}")) == (4 if spec.endswith("0.tar") else 12)


def test_splits_of_other_names(tmp_path: Path) -> None:
    """Of two folds the first was taken for all shards."""
    for name in ("a.tar", "b.tar"):
        write(tmp_path / name, samples(3))
    splits = {"fold0": {"filenames": ["a.tar"]}, "fold1": {"filenames": ["b.tar"]}}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(RequestError, match="has no split 'train'; it has fold0, fold1"):
        open_dataset(f"wds/{tmp_path}")
    assert open_dataset(f"wds/{tmp_path}", "fold1").split == "fold1"


@pytest.mark.parametrize("layout", ["names", "folders", "info"])
def test_splits(tmp_path: Path, layout: str) -> None:
    names = {
        "names": ("cifar-train-0.tar", "cifar-val-0.tar"),
        "folders": ("train/0.tar", "validation/0.tar"),
        "info": ("a.tar", "b.tar"),
    }[layout]
    write(tmp_path / names[0], samples(6))
    write(tmp_path / names[1], samples(3))
    if layout == "info":
        splits = {"train": {"filenames": ["a.tar"]}, "validation": {"filenames": ["b.tar"]}}
        (tmp_path / "_info.json").write_text(json.dumps({"splits": splits}))
    train = open_dataset(f"wds/{tmp_path}", "train")
    assert len(train) == 6
    assert train.split == "train"
    assert len(open_dataset(f"wds/{tmp_path}", "val", train.class_names)) == 3
    with pytest.raises(RequestError, match=r"has no split 'test'; it has train, val(idation)?"):
        open_dataset(f"wds/{tmp_path}", "test")


def test_a_shard_of_no_split_among_others(tmp_path: Path) -> None:
    """It was left out in silence, whatever split was asked for."""
    for name in ("train-0.tar", "val-0.tar", "more-0.tar"):
        write(tmp_path / name, samples(3))
    for split in ("train", "val"):
        with pytest.raises(RequestError, match=r"more-0\.tar has no split in its name, as (train|val)-0\.tar has"):
            open_dataset(f"wds/{tmp_path}", split)
    assert len(open_dataset(f"wds/{tmp_path}/train-*.tar")) == 3


@pytest.mark.parametrize("name", ["train-1.tar.gz", "train-1.tgz"])
def test_compressed_shards(tmp_path: Path, name: str) -> None:
    """Beside others they were left out in silence; alone nothing was found."""
    shard = write(tmp_path / "train-1.tar", samples(3))
    compressed = tmp_path / name
    compressed.write_bytes(gzip.compress(shard.read_bytes()))
    for spec in (tmp_path, compressed):
        with pytest.raises(RequestError, match=rf"{re.escape(name)}: expected an uncompressed.* tar archive; it is "):
            open_dataset(f"wds/{spec}")
    compressed.rename(shard)
    for spec in (f"wds/{tmp_path}", str(shard)):
        with pytest.raises(RequestError, match=r"train-1\.tar: expected an uncompressed, whole tar archive; it is "):
            open_dataset(spec)
    with pytest.raises(RequestError, match=r"found tar archives; shards are called wds/"):
        open_dataset(str(tmp_path))


def test_labels_of_every_kind(tmp_path: Path) -> None:
    def labelled(**label: object) -> Path:
        return write(tmp_path / "labels" / "0.tar", [{"__key__": "a.b/0", "jpg": picture(), **label}])

    for label, names, targets in (
        ({"cls": 2}, ("0", "1", "2"), [2]),
        ({"json": {"label": 1, "other": "x"}}, ("0", "1"), [1]),
        ({"json": {"cls": 1}}, ("0", "1"), [1]),
        ({"json": {"label": "cat"}}, ("cat",), [0]),
        ({"cls": 1, "json": {"width": 3}}, ("0", "1"), [1]),
        ({"txt": "a cat", "cls": 0}, ("0",), [0]),
    ):
        data = open_dataset(f"wds/{labelled(**label)}")
        assert data.class_names == names
        assert data.targets.tolist() == targets
        assert data.load(0)[0].size == (12, 10)


def test_names_beside_the_shards(tmp_path: Path) -> None:
    write(tmp_path / "train-0.tar", samples(6))
    write(tmp_path / "val-0.tar", [sample for sample in samples(6) if sample["cls"] != 1])
    (tmp_path / "classes.txt").write_text("cat\ndog\nfox\nelk\n")
    train = open_dataset(f"wds/{tmp_path}")
    assert train.class_names == ("cat", "dog", "fox", "elk")
    folders = draw_classes(tmp_path / "folders", ["fox", "dog"], 1)
    assert open_dataset(str(folders), "val", train.class_names).targets.tolist() == [1, 2]
    names = ("elk", "fox", "cat")
    assert open_dataset(f"wds/{tmp_path}", "val", names).targets.tolist() == [2, 1, 2, 1]
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with pytest.raises(RequestError, match=r"classes\.txt: names 2 classes; the shards use label 2"):
        open_dataset(f"wds/{tmp_path}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"crane\ndog\ncrane\n", r"the classes 0 and 2 are both called 'crane'; give each a name of its own$"),
        (b"cat\n\ndog\nfox\n", r"classes\.txt: line 2 is empty; expected the name of class 1$"),
        (b"caf\xe9\ndog\nfox\n", r"classes\.txt: expected names in UTF-8, a line each; .*0xe9"),
    ],
)
def test_names_that_would_be_taken_for_others(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "0.tar", samples(6))
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(RequestError, match=message):
        open_dataset(f"wds/{tmp_path}")


def test_classes_in_another_encoding(tmp_path: Path) -> None:
    """They are no UTF-8, and were one class."""
    write(
        tmp_path / "0.tar",
        [{**one, "cls": f"caf{'éèê'[place]}".encode("latin-1")} for place, one in enumerate(samples(3))],
    )
    with pytest.raises(
        RequestError, match=r"the class name 'caf\\udce8' has a lone surrogate \(U\+DCE8\), as of bytes"
    ):
        open_dataset(f"wds/{tmp_path}")


def test_names_as_windows_writes_them(tmp_path: Path) -> None:
    write(tmp_path / "0.tar", samples(6))
    (tmp_path / "classes.txt").write_bytes("\ufeffcat\r\ndog\r\nfox\r\n\r\n".encode())
    assert open_dataset(f"wds/{tmp_path}").class_names == ("cat", "dog", "fox")


def test_keys_that_come_again(tmp_path: Path) -> None:
    """The later samples were left out in silence, here a class."""
    again = [{**sample, "png": picture(50 + place), "cls": 3} for place, sample in enumerate(samples(4))]
    path = write(tmp_path / "0.tar", [*samples(4), *again])
    data = open_dataset(f"wds/{path}")
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False).decode("rgb8").to_tuple("png", "cls"))
    assert data.targets.tolist() == [target for _, target in theirs] == [0, 1, 2, 0, 3, 3, 3, 3]
    assert all(numpy.array_equal(numpy.asarray(data.load(place)[0]), theirs[place][0]) for place in range(8))
    assert data.filename(2) == f"{path}/0002.png"
    assert len({data.filename(place) for place in range(8)}) == 8


@pytest.mark.parametrize(
    ("fields", "targets"),
    [
        (["png", "cls0", "png", "cls1"], [0, 1]),
        (["png", "else", "txt", "cls1"], [1]),
        (["cls1", "else", "png"], [1]),
        (["cls0", "txt", "else", "png", "cls1"], [1]),
        (["png", "cls0", "else", "txt", "cls1"], [0]),
        (["png", "else", "cls0", "else", "png", "else", "cls1"], None),
        (["png", "else", "jpg", "else", "cls1"], None),
        (["png", "else", "png", "cls1"], None),
    ],
)
def test_which_files_are_one_sample(tmp_path: Path, fields: list[str], targets: list[int] | None) -> None:
    """All of one name but those called else, which part them."""
    path = write(
        tmp_path / "0.tar",
        [
            {"__key__": "b", "txt": "b"} if field == "else"
            else {"__key__": "a", "cls": int(field[3])} if field.startswith("cls")
            else {"__key__": "a", field: "a" if field == "txt" else picture()}
            for field in fields
        ],
    )  # fmt: skip
    if targets is None:
        with pytest.raises(RequestError, match=r"0\.tar/a: an image without a label; .* with a label, beside it$"):
            open_dataset(f"wds/{path}")
    else:
        assert open_dataset(f"wds/{path}").targets.tolist() == targets


def test_bad_labels(tmp_path: Path) -> None:
    path = tmp_path / "0.tar"
    for fields, message in (
        ({"jpg": picture()}, r"0\.tar/0: an image without a label; expected 0\.cls, or 0\.json with a label"),
        ({"jpg": picture(), "json": {"caption": "a cat"}}, "an image without a label"),
        ({"jpg": picture(), "json": [1]}, "an image without a label"),
        ({"jpg": picture(), "cls": ""}, "an image without a label"),
        ({"jpg": picture(), "cls": 10**12}, r"label 1000000000000 is no class index"),
        ({"jpg": picture(), "cls": "9" * 5000}, r"label 9{100} is no class index"),
        ({"jpg": picture(), "cls": -1}, r"label -1 is no class index; classes are numbered from 0 on"),
        ({"txt": "text only", "cls": 1}, "no images in its shards"),
    ):
        write(path, [{"__key__": "0", **fields}])
        with pytest.raises(RequestError, match=message):
            open_dataset(f"wds/{path}")


def test_no_shards(tmp_path: Path) -> None:
    for spec, message in (
        (str(tmp_path), "expected shards .* found none"),
        (f"{tmp_path}/train-*.tar", "no such shard"),
        (f"{tmp_path}/train-{{0..3}}.tar", r"no such shard: .*train-0\.tar"),
        ("pipe:cat 0.tar", "found a pipe"),
        (f"{tmp_path}/train-{{0..3.tar", r"^wds/.*train-\{0\.\.3\.tar: braces that do not close"),
    ):
        with pytest.raises(RequestError, match=message):
            open_dataset(f"wds/{spec}")


def test_a_shard_that_is_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "0.tar", samples(4))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(RequestError, match=r"0\.tar: expected an uncompressed, whole tar archive"):
        open_dataset(f"wds/{path}")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only braces need one."""
    write(tmp_path / "0.tar", samples(2))
    for name in ("webdataset", "braceexpand"):
        monkeypatch.setitem(sys.modules, name, None)
    assert len(open_dataset(f"wds/{tmp_path}")) == 2
    with pytest.raises(EnvironmentFailure, match=r"pip install 'tcnn\[data\]'$"):
        open_dataset(f"wds/{tmp_path}/{{0..1}}.tar")
