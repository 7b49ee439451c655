"""Models of an evaluation are told apart wherever they are named: in titles, captions, legends and tables."""

import json
from pathlib import Path
from typing import Any

import made_up
import pytest
import timm
import torch

import tcnn
from tcnn.analysis.pages.curves import charts_of_evaluation
from tcnn.analysis.pages.report import report
from tcnn.analysis.pages.run_page import base_model
from tcnn.analysis.plots import gallery, robustness
from tcnn.analysis.reading.evaluations import EvaluationFile, titles
from tcnn.analysis.reading.rundirs import Run
from tcnn.evaluation.shape_bias import Decisions, ShapeBias

RUNS = ("runs/wide/best.safetensors", "runs/narrow/best.safetensors", "runs/narrow/last.safetensors", "resnet18")
TITLES = ["wide/best.safetensors", "narrow/best.safetensors", "last.safetensors", "resnet18"]


def evaluated() -> EvaluationFile:
    rows = [made_up.evaluated(name, 0.5 + n / 10, side, ("fog",)) for n, name in enumerate(RUNS) for side in (64, 96)]
    return EvaluationFile(data="pets", images=10, rows=tuple(rows))


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([], []),
        (RUNS, TITLES),
        (["a/x", "b/x", "c/x", "c/y"], ["a/x", "b/x", "c/x", "y"]),
        (["1/run/best.pt", "2/run/best.pt"], ["1/run/best.pt", "2/run/best.pt"]),
        (["x", "a/x", "/x"], ["x", "a/x", "/x"]),
        (["a/b", "a//b", "./a/b"], ["a/b", "a//b", "./a/b"]),
        (["same/m", "same/m"], ["m"]),
        (["hf-hub:timm/resnet18", "hf-hub:me/resnet18"], ["hf-hub:timm/resnet18", "hf-hub:me/resnet18"]),
        (["", "a"], ["", "a"]),
    ],
)
def test_titles(models: list[str], expected: list[str]) -> None:
    found = titles(models)
    assert list(found) == list(dict.fromkeys(models))
    assert list(found.values()) == expected


def test_pictures_of_corruptions() -> None:
    plots = [drawn for drawn in gallery.evaluation_plots(evaluated().rows) if drawn.name.startswith("corruptions")]
    pairs = [(one, side) for one in TITLES[1:] for side in (64, 96)]
    captions = [f"Gain of {one} over {TITLES[0]} under corruptions at {side} pixels." for one, side in pairs]
    assert [drawn.caption for drawn in plots] == captions
    heads = [f"{one} vs. {TITLES[0]} at {side} pixels" for one, side in pairs]
    assert [drawn.figure.get_suptitle() for drawn in plots] == heads
    assert [drawn.name for drawn in plots] == [f"corruptions-{n}-{side}" for n in (1, 2, 3) for side in (64, 96)]


def test_the_gain_is_that_of_its_size() -> None:
    """One model gains at one size what it loses at another."""
    tops = {("cnn", 160): 0.5, ("cnn", 224): 0.5, ("tcnn", 160): 0.6, ("tcnn", 224): 0.4}
    rows = [made_up.evaluated(name, top1, side, ("fog",)) for (name, side), top1 in tops.items()]
    gained = {
        plot.name: plot.figure.axes[1].patches[0].get_width()  # type: ignore[attr-defined]
        for plot in gallery.corruption_plots(rows)
    }
    assert gained == {"corruptions-160": pytest.approx(10), "corruptions-224": pytest.approx(-10)}
    (alone,) = gallery.corruption_plots([row for row in rows if row.height == 160])
    assert (alone.name, alone.caption) == ("corruptions", "Gain of tcnn over cnn under corruptions.")


@pytest.mark.parametrize(
    ("record", "metadata", "expected"),
    [
        ({"weights": "random"}, {}, "test_resnet with random weights"),
        ({"weights": "file"}, {"weights": "random"}, "test_resnet with own weights"),
        ({"weights": "pretrained"}, {"training": {"weights": "random"}}, "test_resnet.r160_in1k"),
        (None, {"training": {"weights": "random"}}, "test_resnet with random weights"),
        (None, {"source": {"weights": "file"}}, "test_resnet with own weights"),
        (None, {"weights": "random"}, "test_resnet with random weights"),
        ({"pretrained": False}, {}, "test_resnet with random weights"),
        (None, {}, "test_resnet.r160_in1k"),
    ],
)
def test_a_tag_is_that_of_weights_that_were_used(
    record: dict[str, Any] | None, metadata: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with torch.device("meta"):
        report = tcnn.convert(timm.create_model("test_resnet"), target="layer4.0.conv1").report
    assert report.base_model == "test_resnet.r160_in1k"
    assert base_model(Run(tmp_path, record=record, metadata=metadata), report) == expected


def test_legends() -> None:
    drawn = robustness.resolution(evaluated().rows)
    assert drawn is not None
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == TITLES
    of_cats = {"cat": Decisions(shape=1, texture=1)}
    facts = {"images": 2, "decisions": of_cats["cat"], "bias": 0.5, "low": 0.1, "high": 0.9, "unreadable": []}
    biases = [ShapeBias(model=name, categories=of_cats, **facts) for name in RUNS]
    legend = robustness.shape_bias(biases).axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == TITLES


def test_charts_of_a_page() -> None:
    by_size, by_severity = charts_of_evaluation(evaluated().rows)
    assert [one["name"] for one in by_size["series"]] == TITLES
    assert [one["name"] for one in by_severity["series"]] == [f"{name}, {side}" for name in TITLES for side in (64, 96)]


def test_tables_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "evaluation.json").write_text(json.dumps(evaluated().model_dump(mode="json")))
    page = made_up.Page(str(report(tmp_path)))
    heads = "".join(f"{name} {side}" for name in TITLES for side in (64, 96))
    assert f"corruption{heads}fog" in "".join(page.text.splitlines())


@pytest.mark.parametrize(("images", "said"), [(1, "pets: 1 image"), (2000, "pets: 2,000 images")])
def test_counts_of_one_are_no_plurals(images: int, said: str, tmp_path: Path) -> None:
    found = evaluated().model_copy(update={"images": images})
    (tmp_path / "evaluation.json").write_text(json.dumps(found.model_dump(mode="json")))
    assert said in made_up.Page(str(report(tmp_path))).text.splitlines()


def test_models_that_get_one_name_keep_lines_of_their_own() -> None:
    """Two uploads, each called best.safetensors: not one line that goes through the points of both."""
    rows = tuple(made_up.evaluated(f"ckpt_{n}", top1, size) for n, top1 in ((1, 0.5), (2, 0.7)) for size in (64, 96))
    found = EvaluationFile(data="ds_1", images=10, rows=rows, trained_on=("ckpt_2", "ckpt_3"), part_lost=("ckpt_3",))
    told = found.renamed({"ckpt_1": "best.safetensors", "ckpt_2": "best.safetensors", "ckpt_3": "best.safetensors"})
    assert told.trained_on == ("best.safetensors 2", "best.safetensors 3")
    assert told.part_lost == ("best.safetensors 3",)
    drawn = robustness.resolution(told.rows)
    assert drawn is not None
    assert [list(line.get_ydata()) for line in drawn.axes[0].lines] == [[50, 50], [70, 70]]
    (chart,) = charts_of_evaluation(told.rows)
    assert [one["name"] for one in chart["series"]] == ["best.safetensors", "best.safetensors 2"]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, ""),
        (1, "Measured on 9 of 10 images; 1 image cannot be read and is left out: red/0.png"),
        (5, "Measured on 5 of 10 images; 5 images cannot be read and are left out: "
            "red/0.png, red/1.png, red/2.png and 2 more"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", [False, True])
def test_images_that_cannot_be_read_are_told_of(count: int, said: str, named: bool, tmp_path: Path) -> None:
    """By their names in the data set, wherever that lies; of several models by the one that could read fewest."""
    lost = {"unreadable": tuple(f"ds_1/red/{n}.png" for n in range(count))[:4], "unreadable_count": count}
    rows = (made_up.evaluated("a", 0.5), made_up.evaluated("b", 0.5).model_copy(update=lost))
    found = EvaluationFile(data="ds_1", images=10, rows=rows)
    (tmp_path / "evaluation.json").write_text(json.dumps(found.model_dump(mode="json")))
    page = made_up.Page(str(report(tmp_path, names={"ds_1": "test.zip"} if named else None))).text
    assert f"{'test.zip' if named else 'ds_1'}: 10 images" in page
    assert (f"{said}." in page.splitlines()) if said else ("Measured on" not in page)


def test_names_that_were_given_are_not_cut_at_a_slash() -> None:
    """A job's is no path, whatever is in it; a file beside it is."""
    rows = [made_up.evaluated(name, 0.5, size, ("fog",)) for name in ("job_1", "job_2", "a/off", "job_3")
            for size in (64, 96)]  # fmt: skip
    names = {"job_1": "lr 1e-3 / mixup off", "job_2": "runs//off", "job_3": "runs//off"}
    told = EvaluationFile(data="ds_1", images=10, rows=tuple(rows)).renamed(names)
    expected = ["lr 1e-3 / mixup off", "runs//off", "off", "runs//off 2"]
    by_size, _ = charts_of_evaluation(told.rows)
    assert [one["name"] for one in by_size["series"]] == expected
    captions = [drawn.caption.partition(" under ")[0] for drawn in gallery.corruption_plots(told.rows)]
    assert set(captions) == {f"Gain of {one} over {expected[0]}" for one in expected[1:]}
    drawn = robustness.resolution(told.rows)
    assert drawn is not None
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == expected
