"""A data set whose labels or file names were changed after training: no part of it is called held out."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_pictures import as_tar, draw, draw_classes
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_runs import run
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

import tcnn
from tcnn.checkpoints.checkpoint import digest
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import ImageSet, open_dataset, split_off
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.comparing.report import Comparison
from tcnn.evaluation.held_out import Training
from tcnn.training.record import leakage_note

CLASSES = ["ant", "bee"]
IMAGES = 40
"""More than make a fingerprint, so that some can change unseen."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that held a fifth of the images out; those of the second class have the numbers after the first's."""
    root = tmp_path_factory.mktemp("relisted")
    for place, name in enumerate(CLASSES):
        for number in range(20 * place, 20 * place + 20):
            draw(root / "photos" / name / f"{number}.png", number)
    run("test_resnet", root / "photos", root / "run", epochs=1, convert=False, quiet=True)
    return root


@pytest.fixture
def here(home: Path, tmp_path: Path) -> Path:
    """A copy of both."""
    return shutil.copytree(home, tmp_path / "here")


def measured(here: Path, data: str | Path, known_as: str | None = None, split: str = "val") -> Comparison:
    file = str(here / "run" / "last.safetensors")
    return compare([file], str(data), EvaluationConfig(device="cpu", split=split), quiet=True, known_as=known_as)


def correct_a_label(photos: Path) -> None:
    """The order stays, as the image has a number between the two classes."""
    (photos / "ant" / "19.png").rename(photos / "bee" / "19.png")


def exchange_labels(photos: Path) -> None:
    """Every class has as many images as before."""
    for old, new in (("ant/3", "bee/3"), ("bee/33", "ant/33")):
        (photos / f"{old}.png").rename(photos / f"{new}.png")


def rename_between(photos: Path) -> None:
    """It moves by one place, between two images that make the fingerprint."""
    (photos / "ant" / "8.png").rename(photos / "ant" / "9b.png")


@pytest.mark.parametrize("change", [correct_a_label, exchange_labels, rename_between])
@pytest.mark.parametrize("moved", [False, True])
def test_a_part_that_cannot_be_told_is_not_called_held_out(
    home: Path, here: Path, tmp_path: Path, change: Callable[[Path], None], moved: bool
) -> None:
    """Other images were held out then: most of those that were measured had been learned from, without a word."""
    photos = here / "photos"
    learned = {image_bytes(file) for file in files_of(split_off(open_dataset(str(photos)), 0.2, 0)[0])}
    change(photos)
    now = files_of(split_off(open_dataset(str(photos)), 0.2, 0)[1])
    assert any(image_bytes(file) in learned for file in now)
    data = photos.rename(tmp_path / "moved") if moved else photos
    found = measured(here, data, known_as=None if moved else str(home / "photos"))
    assert (found.held_out, found.images) == (False, IMAGES)
    assert found.trained_on == found.part_lost == [str(here / "run" / "last.safetensors")]
    assert "nothing tells which of them training had held out, as a file name, a class or the order" in str(found)
    with pytest.warns(UserWarning, match=f"learned from up to {IMAGES} of these {IMAGES} images"):
        tcnn.evaluate(tcnn.load(here / "run"), str(data), quiet=True)


def image_bytes(file: str) -> bytes:
    return Path(file).read_bytes()


def files_of(data: ImageSet) -> list[str]:
    return [data.filename(index) for index in range(len(data))]


def test_the_same_images_elsewhere_are_the_same(home: Path, here: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(here / "photos", tmp_path / "copy")
    for data in (home / "photos", copy, as_tar(copy)):
        found = measured(here, data)
        assert (found.held_out, found.trained_on, found.part_lost, found.images) == (True, [], [], 8)


def test_rows_of_a_table(tmp_path: Path) -> None:
    """They have no names: one label that is corrected is another part, though nothing moves."""
    datasets = pytest.importorskip("datasets")
    draw_classes(tmp_path / "photos", CLASSES, 20)
    files = sorted((tmp_path / "photos").glob("*/*.jpg"), key=lambda file: int(file.stem))
    labels = [CLASSES.index(file.parent.name) for file in files]
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})

    def write() -> None:
        images = [{"bytes": file.read_bytes(), "path": None} for file in files]
        table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=kinds)
        table.to_parquet(str(tmp_path / "rows" / "train.parquet"))

    (tmp_path / "rows").mkdir()
    write()
    data = f"hfds/{tmp_path / 'rows'}"
    run("test_resnet", data, tmp_path / "run", epochs=1, convert=False, quiet=True)
    assert measured(tmp_path, data, split="train").held_out
    labels[5] = 1 - labels[5]
    write()
    found = measured(tmp_path, data, split="train")
    assert (found.held_out, found.part_lost) == (False, [str(tmp_path / "run" / "last.safetensors")])


def forget_the_list(file: Path) -> Path:
    """A checkpoint as of a release that recorded none."""
    with safe_open(file, "pt") as opened:  # type: ignore[no-untyped-call]
        metadata = opened.metadata()
    training = json.loads(metadata["training"])
    assert training.pop("listing")
    metadata["training"] = json.dumps(training)
    tensors = load_file(file)
    save_file(tensors, file, metadata | {"digest": digest(tensors, metadata)})
    return file


def test_a_checkpoint_that_recorded_no_list_says_what_it_knows(here: Path, tmp_path: Path) -> None:
    """It is measured on the part that its share and seed give, if that is the one that they gave then."""
    forget_the_list(here / "run" / "last.safetensors")
    assert measured(here, here / "photos").held_out
    subset = oversampled(here / "photos")
    file = Path(run("test_resnet", subset, tmp_path / "run", epochs=1, convert=False, quiet=True).last)
    whole, held_out = open_dataset(subset), split_off(open_dataset(subset), 0.2, 0)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tcnn.evaluate(tcnn.load(file), held_out, quiet=True)
    with pytest.warns(UserWarning, match="learned from 56 of these 70 images"):
        tcnn.evaluate(tcnn.load(file), whole, quiet=True)
    with pytest.warns(UserWarning, match="learned from (up to )?70 of these 70 images"):
        tcnn.evaluate(tcnn.load(forget_the_list(file)), whole, quiet=True)


def oversampled(photos: Path) -> "Subset[Any]":
    """All of the first class, and half of the second, each five times."""
    return Subset(ImageFolder(str(photos)), [*range(20), *(place for place in range(20, 30) for _ in range(5))])


def test_a_model_that_was_trained_before_a_label_was_corrected(here: Path) -> None:
    record = json.loads((here / "run" / "config.json").read_text())
    before = Training(record["data"], None, 0.2, 0, record["images"], record["image_set"], record["listing"])
    again = {**record, "earlier": [before._asdict()]}
    assert leakage_note(again) is None
    assert "it may have learned from the images that it is validated on now" in str(
        leakage_note({**again, "listing": "another"})
    )
