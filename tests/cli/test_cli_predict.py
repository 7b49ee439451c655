"""`tcnn predict`: the table, JSON, CSV, two models side by side, and one line for everything that is wrong."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import tcnn as package
from tcnn.evaluation.predict import PredictionReport
from tcnn.models.precision import emulated


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, lively: Callable[..., nn.Module]) -> Path:
    """A converted model, the CNN that it was made from, two pictures, and one that is none."""
    root = tmp_path_factory.mktemp("made")
    source = lively(num_classes=10)
    package.save(package.convert(source).model, root / "t.safetensors")
    (root / "photos").mkdir()
    random = np.random.default_rng(0)
    for name in ("a [b].png", "c.png"):
        Image.fromarray(random.integers(0, 256, (40, 50, 3), np.uint8)).save(root / "photos" / name)
    (root / "torn.png").write_bytes(b"no picture")
    return root


@pytest.fixture
def files(tmp_path: Path, made: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_a_table_of_the_most_probable_classes(tcnn: Any, files: Path) -> None:
    result = tcnn("predict", "t.safetensors", "photos", "torn.png", "--top", 2)
    assert (result.code, result.err) == (0, "")
    header, *rows = result.out.splitlines()
    assert header.split() == ["image", "class"]
    assert [row.rstrip()[-1] for row in rows] == ["%", "%", "%", "%", "O"]
    assert rows[0].startswith("photos/a [b].png") and rows[2].startswith("photos/c.png")
    assert "torn.png" in rows[4] and "cannot be read: not an image" in rows[4]


def test_side_by_side_as_json_and_csv(tcnn: Any, files: Path, local_source: str) -> None:
    result = tcnn(
        "predict", "t.safetensors", "photos/c.png", "photos", "--compare", local_source, "--size", "40x48",
        "--batch-size", 1, "--amp", "bfloat16", "--csv", "out.csv", "--json",
    )  # fmt: skip
    note = emulated("bfloat16", torch.device("cpu"))
    assert (result.code, result.err) == (0, f"note: {note}\n" if note else "")
    report = PredictionReport.model_validate(result.json)
    assert [answers.model for answers in report.models] == ["t.safetensors", local_source]
    assert [len(answers.images) for answers in report.models] == [3, 3]
    assert report.compared == 3
    with (files / "out.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert len(lines) == 2 * 3 * 5
    first = report.models[0].images[0].guesses[0]
    assert (lines[0]["model"], lines[0]["file"], lines[0]["rank"]) == ("t.safetensors", "photos/c.png", "1")
    assert (int(lines[0]["index"]), float(lines[0]["probability"])) == (first.index, first.probability)


def test_names_that_are_no_text_are_told_in_json_and_csv(tcnn: Any, files: Path) -> None:
    """A Latin-1 name on a disk of names in UTF-8, as archives of other systems leave them."""
    (files / "c\udce9.png").write_bytes((files / "photos/c.png").read_bytes())
    result = tcnn("predict", "t.safetensors", "c\udce9.png", "--csv", "out.csv", "--json")
    assert result.code == 0, result
    result.out.encode()  # a lone surrogate could not be
    assert [image["file"] for image in result.json["models"][0]["images"]] == [r"c\xe9.png"]
    with (files / "out.csv").open(newline="", encoding="utf-8") as handle:
        assert {line["file"] for line in csv.DictReader(handle)} == {r"c\xe9.png"}


def test_the_converted_models_table_says_how_far_both_agree(tcnn: Any, files: Path) -> None:
    package.save(package.load(files / "t.safetensors"), files / "again.safetensors")
    result = tcnn("predict", "t.safetensors", "photos", "--compare", "again.safetensors", "--top", 1)
    assert result.out.splitlines()[-1] == "the same first answer on 2 of 2 images"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("t.safetensors", "missing.png"), 2, "missing.png: no such image"),
        (("t.safetensors", "photos", "--size", "32,40"), 2, "--size: expected pixels"),
        (("t.safetensors", "photos", "--compare", "t.safetensors"), 2, "--compare: t.safetensors is the model itself"),
        (("t.safetensors", "photos", "--amp", "int8"), 2, "--amp: expected float32, bfloat16 or float16, found 'int8'"),
        (("t.safetensors", "photos", "--force"), 2, "--force: there is no --csv FILE to replace"),
        (("t.safetensors", "photos", "--csv", "torn.png"), 2, "torn.png"),
        (("absent.safetensors", "photos"), 2, "absent.safetensors"),
        (("t.safetensors", "photos", "--device", "cuda:9"), 4, "cuda:9"),
    ],
)
def test_wrong_requests(arguments: tuple[str, ...], code: int, message: str, tcnn: Any, files: Path) -> None:
    assert message in tcnn("predict", *arguments).error(code)


def test_a_run_is_its_best_checkpoint(tcnn: Any, files: Path) -> None:
    (files / "run").mkdir()
    (files / "t.safetensors").rename(files / "run" / "best.safetensors")
    (run,) = tcnn("predict", "run", "photos/c.png", "--json").json["models"]
    assert run["model"] == "run" and len(run["images"][0]["guesses"]) == 5


def test_a_link_that_leads_nowhere_has_a_row_of_its_own(tcnn: Any, files: Path) -> None:
    """Found in a folder, that is; named, it is an error."""
    (files / "photos" / "d.png").symlink_to("gone.png")
    answers = tcnn("predict", "t.safetensors", "photos", "--json").json["models"][0]["images"]
    assert [bool(answer["unreadable"]) for answer in answers] == [False, False, True]
    assert tcnn("predict", "t.safetensors", "photos/d.png").error(2) == "photos/d.png: no such image"


def test_files_of_a_folder_that_are_left_out(tcnn: Any, files: Path) -> None:
    (files / "photos" / "e.heic").touch()
    result = tcnn("predict", "t.safetensors", "photos", "--compare", "test_resnet", "--json")
    assert result.err.count("note: photos: left out: 1 file without the extension of an image, such as e.heic\n") == 1


def test_nothing_readable_is_an_error_and_no_table(tcnn: Any, files: Path) -> None:
    """The head of a table came before it, and in JSON a report, so that there were two objects."""
    result = tcnn("predict", "t.safetensors", "torn.png", "--csv", "a.csv")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "error: no image could be read: torn.png (not an image in one of the formats JPEG, PNG, "
    )
    assert result.err.count("\n") == 1
    assert not (files / "a.csv").exists()
    failed = tcnn("predict", "t.safetensors", "torn.png", "--json")
    assert "no image could be read" in json.loads(failed.out)["error"]["message"]


def test_models_of_other_classes_are_not_said_to_agree(
    tcnn: Any, files: Path, lively: Callable[..., nn.Module]
) -> None:
    """Both have a class 3, say, which is not the same."""
    package.save(package.convert(lively(num_classes=4)).model, files / "other.safetensors")
    given = ("predict", "t.safetensors", "photos", "--compare", "other.safetensors", "--top", 1, "--size", 48)
    done = tcnn(*given)
    assert done.out.rstrip().endswith("so their predictions are not compared")
    assert tcnn(*given, "--json").json["same_first_guess"] is None
