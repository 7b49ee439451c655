"""Accuracy in a card: whose it is said to be, and the table that it stands in."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import yaml
from markdown_it import MarkdownIt

import tcnn
from tcnn.conversion.report import ConversionReport
from tcnn.publishing.accuracy import CNN, THIS, UNFOLDED, Accuracy, of_checkpoint, of_files, of_training, table


@pytest.fixture(scope="module")
def converted() -> ConversionReport:
    """What a T-CNN records of its conversion."""
    with torch.device("meta"):
        model, report = tcnn.convert(timm.create_model("test_resnet", num_classes=3), target="layer4.0.conv1")
    assert model.conversion_report is report
    return report


TRAINED = {"data": "/srv/animals", "metrics": {"val": {"top1": 0.9, "top5": 0.97, "images": 50}}}
EXACTLY = {"tolerance": 0.0, "pruned": []}
ACCURACIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "T-CNN of a trained CNN": ({"source": {"training": TRAINED}}, "T-CNN", CNN),
    "folded exactly into its CNN": ({"source": {"training": TRAINED}, "fold": EXACTLY}, "CNN", THIS),
    "folded into it without its stride": ({"source": {"training": TRAINED}, "fold": EXACTLY}, "strideless", CNN),
    "folded with an error": ({"source": {"training": TRAINED}, "fold": {**EXACTLY, "tolerance": 0.1}}, "CNN", CNN),
    "trained, folded exactly": ({"training": TRAINED, "fold": EXACTLY}, "CNN", THIS),
    "trained, pruned": ({"training": TRAINED, "fold": {**EXACTLY, "pruned": [{"head": 1}]}}, "CNN", UNFOLDED),
}


@pytest.mark.parametrize("case", ACCURACIES)
def test_it_is_said_to_be_that_of_the_model_that_has_it(converted: ConversionReport, case: str) -> None:
    sections, kind, model = ACCURACIES[case]
    report = converted
    if kind != "T-CNN":
        config = report.config.model_copy(update={"stride": "remove" if kind == "strideless" else "keep"})
        report = report.model_copy(update={"layers": (), "config": config})
    (row,) = of_checkpoint(sections, report)
    assert row == Accuracy(model, "animals, held out", 50, 0.9, 0.97, None)


@pytest.mark.parametrize("corrupted", [None, 0.5])
def test_every_row_of_the_table_has_the_cells_of_its_head(corrupted: float | None) -> None:
    """One that was measured on less has dashes."""
    rows = [
        Accuracy("a", "animals", 1000, 0.9, 0.99, None),
        Accuracy("b", "animals", 50, 0.5, None, corrupted),
    ]
    lines = [line.strip("| ").split("|") for line in table(rows).splitlines()]
    assert {len(line) for line in lines} == {5 if corrupted is None else 6}
    found = [dict(zip(map(str.strip, lines[0]), map(str.strip, line), strict=True)) for line in lines[2:]]
    assert found[0]["top-5"] == "99.00%" and found[1]["top-5"] == "–"
    assert [row.get("corrupted") for row in found] == ([None, None] if corrupted is None else ["–", "50.00%"])


def measured(model: str, size: int, images: int, top1: float) -> dict[str, Any]:
    """A row of `tcnn evaluate --json`."""
    return {"model": model, "height": size, "width": size, "clean": {"images": images, "top1": top1, "top5": 0.9}}


def test_rows_of_a_file_are_told_by_their_size_where_there_are_several(tmp_path: Path) -> None:
    """No folder of the one who measured is told, of a model nor of the data; a row without clean images is left out."""
    rows = [measured("/home/me/t.safetensors", size, 40, 0.5) for size in (64, 96)]
    rows.append({"model": "corrupted.safetensors", "height": 64, "width": 64, "clean": None, "corruption_top1": 0.25})
    for given, titles in (
        (rows, ["t.safetensors at 64 pixels", "t.safetensors at 96 pixels"]),
        (rows[:1], ["t.safetensors"]),
    ):
        (tmp_path / "a.json").write_text(json.dumps({"data": "/home/me/animals/", "images": 40, "rows": given}))
        found = of_files([tmp_path / "a.json"])
        names = ["/home/me/t.safetensors"] * len(titles)
        assert found == [
            Accuracy(title, "animals", 40, 0.5, 0.9, None, measured=name)
            for title, name in zip(titles, names, strict=True)
        ]
    low, high = found[0].interval
    assert (low, high) == pytest.approx((0.352, 0.648), abs=5e-4), "Wilson's, of 20 of 40"


def test_accuracy_on_images_that_a_model_was_trained_on_is_told_as_that(tmp_path: Path) -> None:
    """It was published as any other; the report of a run and the dashboard tell it."""
    rows = [measured(f"/home/me/{name}", 64, 40, 0.5) for name in ("cnn.safetensors", "t.safetensors")]
    written = {
        "data": "animals",
        "images": 40,
        "rows": rows,
        "trained_on": ["/home/me/t.safetensors"],
        "held_out": True,
    }
    (tmp_path / "a.json").write_text(json.dumps(written))
    found = of_files([tmp_path / "a.json"])
    assert [row.trained_on for row in found] == [False, True]
    *_, cnn, own = table(found).splitlines()
    assert cnn.startswith("| cnn.safetensors | 40 of animals, held out |")
    assert own.startswith("| t.safetensors (trained on these images) | 40 of animals, held out |")


@pytest.mark.parametrize(
    ("training", "data"),
    [
        ({"data": "/srv/photos", "val": "/srv/others/val"}, "val"),
        ({"data": "/srv/photos/", "val": None}, "photos, held out"),
        ({"data": "hfds/me/photos"}, "photos, held out"),
    ],
)
def test_what_a_run_was_measured_on_is_named_without_its_folders(training: dict[str, Any], data: str) -> None:
    scores = {"images": 50, "top1": 0.9, "top5": None}
    (row,) = of_training({**training, "metrics": {"val": scores}})
    assert row == Accuracy(THIS, data, 50, 0.9, None, None)
    for nothing in ({}, {"images": 0, "top1": 0.9}, {"images": 50, "top1": None}):
        assert of_training({**training, "metrics": {"val": nothing}}) == []
    assert of_training(None) == of_training({"metrics": None}) == []


def test_another_runs_file_of_the_same_name_is_not_this_model(tmp_path: Path) -> None:
    """Of two runs' best.safetensors, the card's head has the accuracy of the one that is published."""
    rows = []
    for run, top1 in (("wide", 0.75), ("narrow", 0.8)):
        (tmp_path / run).mkdir()
        model, _ = tcnn.convert(timm.create_model("test_resnet", num_classes=3), target="layer4.0.conv1")
        tcnn.save(model, tmp_path / run / "best.safetensors")
        clean = {"images": 400, "top1": top1}
        rows.append({"model": str(tmp_path / run / "best.safetensors"), "height": 64, "width": 64, "clean": clean})
    told = tmp_path / "accuracy.json"
    told.write_text(json.dumps({"data": "animals", "images": 400, "rows": rows}))
    for source, expected in (("wide/best.safetensors", 0.75), ("narrow", 0.8)):
        options = {"evaluations": [told], "pictures": False, "dry_run": True}
        card = tcnn.push_to_hub(tmp_path / source, "my-team/animals", **options).card
        (result,) = yaml.safe_load(card.split("---\n")[1])["model-index"][0]["results"]
        assert [each["value"] for each in result["metrics"]] == [expected]
        assert "| wide/best.safetensors |" in card and "| narrow/best.safetensors |" in card


def test_a_file_that_was_measured_alone_is_not_this_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shortened name is that of every run's best checkpoint; the run measured stands in the table alone."""
    monkeypatch.chdir(tmp_path)
    for run in ("cnn", "tcnn"):
        Path(run).mkdir()
        model, _ = tcnn.convert(timm.create_model("test_resnet", num_classes=3), target="layer4.0.conv1")
        tcnn.save(model, f"{run}/best.safetensors")
    for measured_, own in (("cnn/best.safetensors", False), ("cnn", False), ("elsewhere/best.safetensors", False),
                           ("tcnn/best.safetensors", True), ("tcnn", True)):  # fmt: skip
        row = {"model": measured_, "height": 64, "width": 64, "clean": {"images": 400, "top1": 0.75}}
        Path("a.json").write_text(json.dumps({"data": "animals", "images": 400, "rows": [row]}))
        card = tcnn.push_to_hub("tcnn", "my-team/net", evaluations=["a.json"], pictures=False, dry_run=True).card
        assert "75.00%" in card
        assert ("model-index" in yaml.safe_load(card.split("---\n")[1])) == own, measured_


def test_names_stay_in_their_cells() -> None:
    row = Accuracy("a|b_c](x)_", "cats|dogs\n`rm`", 40, 0.5, None, None)
    *_, line = table([row]).splitlines()
    html = MarkdownIt("commonmark").enable("table").render(table([row]))
    cells = [unescape(cell) for cell in re.findall("<td>(.*?)</td>", html)]
    assert cells[:3] == ["a|b_c](x)_", "40 of cats|dogs `rm`", "50.00%"]
    assert line.startswith("| ")
