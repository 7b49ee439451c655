"""Which split is measured where none is named: what a run has held out of its training set, else `val`."""

from pathlib import Path

import pytest
import timm
from data_pictures import draw_classes
from tiny_runs import tiny

import tcnn
from tcnn.config.evaluation import EvaluationConfig
from tcnn.data.image_set import open_dataset, split_off
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.comparing.paired import measure_on
from tcnn.evaluation.comparing.report import Comparison
from tcnn.evaluation.held_out import measured_by_default

CPU = EvaluationConfig(device="cpu")
CLASSES = ["ant", "bee", "cat"]
HELD_OUT = 6
"""A quarter of the eight training images of every class."""
TESTED = 9


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with `train` alone and with both splits, and runs that held a part of `train` out, or nothing of it."""
    root = tmp_path_factory.mktemp("measured")
    for data in ("alone", "both"):
        draw_classes(root / data / "train", CLASSES, 8)
        train(root, f"part of {data}", data, val_split=0.25)
    draw_classes(root / "both" / "val", CLASSES, TESTED // 3, 50)
    draw_classes(root / "other", CLASSES, 4, 70)
    train(root, "whole", "both")
    train(root, "validated elsewhere", "alone", val=str(root / "other"))
    return root


def train(root: Path, name: str, data: str, val: str | None = None, val_split: float | None = None) -> None:
    config = tiny(convert=False, epochs=1, size=32, device="cpu", val_split=val_split)
    tcnn.finetune(
        "test_resnet", str(root / data), val, config=config, out=root / name, pretrained=False, quiet=True
    )  # fmt: skip


def measured(place: Path, run: str, data: str | None = None, **options: object) -> Comparison:
    return compare(
        [str(place / run)], None if data is None else str(place / data), CPU, quiet=True, **options
    )  # fmt: skip


@pytest.mark.parametrize("data", ["alone", "both"])
def test_the_part_that_a_run_held_out_of_a_split(place: Path, data: str) -> None:
    """Ended for want of `val`, or measured that, where the run was validated on something else."""
    found = measured(place, f"part of {data}")
    assert (found.data, found.split) == (str(place / data), "train")
    assert (found.held_out, found.trained_on, found.images) == (True, [], HELD_OUT)
    model = tcnn.load(place / f"part of {data}")
    assert compare(model, config=CPU, quiet=True).images == HELD_OUT
    assert found.rows[0].clean is not None
    _, held_out = split_off(open_dataset(place / data, "train"), 0.25, 0)
    assert tcnn.evaluate(model, held_out, quiet=True).top1 == found.rows[0].clean.top1


def test_what_is_measured_where_the_data_are_named(place: Path) -> None:
    """As a job names them always: `val` if there is one, which no training has seen."""
    for known_as in (None, "ds_1"):
        found = measured(place, "part of alone", "alone", known_as=known_as)
        assert (found.split, found.held_out, found.images) == ("train", True, HELD_OUT)
    found = measured(place, "part of both", "both")
    assert (found.split, found.held_out, found.trained_on, found.images) == ("val", False, [], TESTED)
    found = measured(place, "part of both", "both", split="train")
    assert (found.split, found.held_out, found.images) == ("train", True, HELD_OUT)


def test_a_split_that_is_named_is_never_another(place: Path) -> None:
    for data in (None, "alone"):
        with pytest.raises(RequestError, match=r"alone: has no split 'val'; it has train$"):
            measured(place, "part of alone", data, split="val")
    assert measured(place, "part of both", split="val").images == TESTED


def test_all_of_the_training_images_are_not_taken_in_place_of_val(place: Path) -> None:
    """Whether a model has learned from them or from nothing."""
    for model in (place / "validated elsewhere", timm.create_model("test_resnet", num_classes=3)):
        with pytest.raises(RequestError, match=r"alone: has no split 'val'; it has train$"):
            compare([model], str(place / "alone"), CPU, quiet=True)


def test_other_runs_are_measured_on_what_they_were_validated_on(place: Path) -> None:
    for run, data, images in (("whole", "both", TESTED), ("validated elsewhere", "other", 12)):
        found = measured(place, run)
        assert (found.data, found.held_out, found.trained_on, found.images) == (str(place / data), False, [], images)
    assert measured_by_default([str(place / "part of both")]) == (str(place / "both"), "train")
    assert measured_by_default([str(place / "whole")]) == (str(place / "both"), None)


def test_pruning_is_measured_on_what_was_held_out_of_a_split(place: Path) -> None:
    for run, data, held_out, images in (
        ("part of alone", "alone", True, HELD_OUT),
        ("part of both", "both", False, TESTED),
    ):
        model = tcnn.load(place / run)
        found = measure_on(str(place / run), str(place / data), 32)(model, model)
        assert (found.held_out, found.trained_on, found.images) == (held_out, False, images)
    with pytest.raises(RequestError, match=r"alone: has no split 'val'; it has train$"):
        measure_on(str(place / "whole"), str(place / "alone"), 32)
