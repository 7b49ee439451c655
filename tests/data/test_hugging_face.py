"""Data sets of the Hugging Face libraries, from files: nothing is downloaded."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
from data_pictures import draw_classes, picture
from PIL import Image

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import UnreadableImage, open_dataset
from tcnn.errors import DownloadError, EnvironmentFailure, RequestError

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


def test_the_hub_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Its client logged ten lines before it, and tried for half a minute."""
    import huggingface_hub.constants as hub
    from datasets import config

    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    asked: list[object] = []
    monkeypatch.setattr(config, "HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    monkeypatch.setattr("time.sleep", asked.append)
    with pytest.raises(DownloadError, match=r"^hfds/me/pictures: cannot be fetched \(.*\); connect, or fill the cache"):
        open_dataset("hfds/me/pictures")
    assert (asked, capfd.readouterr().err) == ([], "")
    assert not hub.HF_HUB_OFFLINE and not config.HF_HUB_OFFLINE


def test_hub_from_parquet(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows(7).to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    data = open_dataset(f"hfds/{tmp_path}/data")
    assert data.class_names == ("cat", "dog", "fox")
    assert data.targets.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert numpy.array_equal(numpy.asarray(data.load(5)[0]), numpy.asarray(picture(5)))


def test_hub_configurations(tmp_path: Path) -> None:
    """A folder that declares two, told apart after a colon; without one the first declared is not guessed."""
    folder = tmp_path / "data"
    for name, count, split in (("small", 2, "train"), ("large", 5, "test")):
        (folder / name).mkdir(parents=True)
        rows(count).to_parquet(folder / name / f"{split}.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: small\n  data_files:\n  - {split: train, path: small/train.parquet}\n"
        "- config_name: large\n  data_files:\n  - {split: test, path: large/test.parquet}\n---\n"
    )
    assert len(open_dataset(f"hfds/{folder}:small")) == 2
    assert len(open_dataset(f"hfds/{folder}:large", "test")) == 5
    with pytest.raises(RequestError, match="has no split 'train'; it has test"):
        open_dataset(f"hfds/{folder}:large")
    with pytest.raises(RequestError, match="Config name is missing"):
        open_dataset(f"hfds/{folder}")


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


def test_hub_decoded_images_of_another_split(tmp_path: Path) -> None:
    """By name they are the same images."""
    import datasets

    divided = datasets.DatasetDict(train=rows(10), validation=rows(20).select(range(10, 20)))
    divided.save_to_disk(tmp_path / "x")
    train, val, again = (open_dataset(f"hfds/{tmp_path}/x", split) for split in ("train", "val", "train"))
    assert again.stamp(3) == train.stamp(3)
    for data in (train, val):
        kept = in_memory(data, tmp_path / "pixels")
        assert all(kept.load(index)[0].tobytes() == data.load(index)[0].tobytes() for index in range(10))


def test_hub_splits_of_other_names(tmp_path: Path) -> None:
    """Of two folds the first was taken for the whole, and a split of another name was not listed."""
    import datasets

    table = rows(4)
    for name, splits in (("folds", ("fold0", "fold1")), ("one", ("full",)), ("more", ("train", "extra")), ("none", ())):
        datasets.DatasetDict(dict.fromkeys(splits, table)).save_to_disk(tmp_path / name)
    whole = open_dataset(f"hfds/{tmp_path}/one")
    assert (len(whole), whole.split) == (4, None)
    assert open_dataset(f"hfds/{tmp_path}/folds", "fold1").split == "fold1"
    for name, split, message in (
        ("folds", "train", "has no split 'train'; it has fold0, fold1"),
        ("more", "val", "has no split 'val'; it has extra, train"),
        ("none", "train", "has no split at all"),
    ):
        with pytest.raises(RequestError, match=message):
            open_dataset(f"hfds/{tmp_path}/{name}", split)


def test_hub_folders_that_are_damaged(tmp_path: Path) -> None:
    """They were KeyError, TypeError, and a network that does not answer."""
    import datasets

    rows(2).save_to_disk(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_text("{}")
    datasets.DatasetDict(train=rows(2)).save_to_disk(tmp_path / "splits")
    (tmp_path / "splits" / "dataset_dict.json").write_text("[]")
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "train.parquet").write_bytes(b"")
    for name, message in (
        ("state", "cannot be read .no '_data_files' in it"),
        ("splits", "cannot be read .list indices"),
        ("table", "cannot be read .Parquet file size is 0 bytes"),
        ("none", "no such folder: .*none$"),
        ("none:large", "no such folder: .*none$"),
    ):
        with pytest.raises(RequestError, match=f"^hfds/{tmp_path}/{name}: {message}") as raised:
            open_dataset(f"hfds/{tmp_path}/{name}")
        assert "\n" not in str(raised.value)


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
            (["a", "", "b"], r"1 of 3 rows have no class"),
            ([[0, 1], [1], []], r"expected one class for every image in `label`, a number or a name; found \[0, 1\]"),
            ([0.0, 2.5, 1.0], r"expected one class for every image .*; found 0\.0"),
            ([{"x": 1}] * 3, r"expected one class for every image"),
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
