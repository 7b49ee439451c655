"""Tables and pictures of experiments, from results whose numbers are known; and all comparisons together: which are
there, on which images, with what the experiments' own tables tell.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import figures
import forest
import numpy
import page
import pytest
import torch

from tcnn.data.parts import balanced_places


def row(arm: str, seed: int, top1: list[float], **accuracy: dict[str, float]) -> dict[str, Any]:
    heads = [
        {"kind": "epoch", "epoch": epoch, "gates": {"conv": [0.9, 0.5]}, "spans": {"conv": [1.0, 0.5]}}
        for epoch in range(len(top1))
    ]
    return {
        "arm": arm, "seed": seed, "size": [32, 32], "top1": top1[-1], "accuracy": accuracy, "epochs": {"top1": top1},
        "images": dict.fromkeys(("clean", *accuracy), 40), **({"heads": heads} if arm == "t-cnn" else {}),
    }  # fmt: skip


def told(mean: float, low: float, high: float) -> dict[str, Any]:
    return {"mean": mean, "interval": [low, high], "level": 0.95}


@pytest.fixture
def result() -> dict[str, Any]:
    """A CNN and a T-CNN, two seeds each, three epochs."""
    cnn, t_cnn = {"fog/1": 0.5, "fog/5": 0.3, "snow/1": 0.6}, {"fog/1": 0.6, "fog/5": 0.4, "snow/1": 0.5}
    return {
        "experiment": {
            "name": "try", "title": "A trial", "about": "What is it?\n", "model": "resnet20", "reference": "cnn",
            "sizes": [64], "corrupted": {"corruptions": ["fog", "snow"], "severities": [1, 5]},
            "arms": {"cnn": {"control": None}, "t-cnn": {"control": "cnn"}},
        },
        "hardware": "AMD, 2 cores", "versions": {"tcnn": "0.1"},
        "summary": [
            {"arm": "cnn", "label": "CNN", "seeds": 2, "clean": told(0.8, 0.79, 0.81), "updates": 30.0,
             "corrupted": told(0.5, 0.4, 0.6), "train_seconds": 1234.5, "parameters": 269722},
            {"arm": "t-cnn", "label": "T-CNN", "seeds": 2, "clean": told(0.81, 0.8, 0.82), "updates": 30.0,
             "corrupted": told(0.49, 0.4, 0.6), "train_seconds": 5000, "parameters": 300000,
             "against": {
                 "cnn": {"seeds": 2, "clean": told(0.01, 0.002, 0.018), "corrupted": told(-0.01, -0.03, 0.01)}
             }},
        ],
        "rows": [
            row("cnn", 0, [0.7, 0.75, 0.8], corrupted=cnn, sizes={"64": 0.6}),
            row("cnn", 1, [0.6, 0.75, 0.8], corrupted=cnn, sizes={"64": 0.7}),
            row("t-cnn", 0, [0.7, 0.75, 0.82], corrupted=t_cnn, sizes={"64": 0.8}),
            row("t-cnn", 1, [0.7, 0.75, 0.8], corrupted=t_cnn, sizes={"64": 0.8}),
        ],
    }  # fmt: skip


def test_the_tables_say_what_was_measured(result: dict[str, Any]) -> None:
    text = page.section(result)
    assert text.startswith(
        "### A trial\n\nWhat is it?\n\n`resnet20`, 40 validation images; corrupted: 40 of them under 2 "
    )
    assert "| CNN | 2 | 30 | 1,234 | 269,722 | 80.00 % (79.0 to 81.0) | 50.00 % (40.0 to 60.0) |" in text
    assert "| T-CNN | CNN | 2 | **+1.00 (+0.20 to +1.80)** | −1.00 (−3.00 to +1.00) |" in text
    assert "| CNN | 65.0 % | 75.0 % | 80.0 % |" in text
    assert "| fog | 40.0 % | 50.0 % |" in text and "| snow | 60.0 % | 50.0 % |" in text


def test_cross_entropy_has_a_column_where_seeds_suffice(result: dict[str, Any]) -> None:
    assert "ross-entropy" not in page.section(result)
    result["summary"][1]["against"]["cnn"]["loss"] = told(-0.01495, -0.02, -0.01)
    text = page.section(result)
    assert "with intervals over seeds only; lower is better." in text and "| corrupted | cross-entropy |" in text
    assert "| −1.00 (−3.00 to +1.00) | **−0.0149 (−0.0200 to −0.0100)** |" in text


def test_the_page_keeps_all_else(result: dict[str, Any]) -> None:
    before = "# A\n<!-- experiments -->\nold\n<!-- /experiments -->\n## B\n"
    assert page.fill(before, []) == f"# A\n<!-- experiments -->\n{page.NONE}<!-- /experiments -->\n## B\n"
    filled = page.fill(before, [result, result])
    assert filled.count("### A trial") == 2 and "old" not in filled and filled.endswith("## B\n")
    assert page.fill(filled, [result, result]) == filled


def test_long_runs_are_shown_at_ten_epochs(result: dict[str, Any]) -> None:
    for entry in result["rows"]:
        entry["epochs"]["top1"] = [number / 100 for number in range(35)]
    header, _, cnn, _ = page.by_epoch(result).splitlines()
    assert header == "| after epoch | 4 | 7 | 10 | 14 | 18 | 21 | 24 | 28 | 32 | 35 |"
    assert cnn.endswith("| 31.0 % | 34.0 % |")


def test_the_pictures_are_drawn_and_are_on_the_page(result: dict[str, Any], tmp_path: Path) -> None:
    figures.draw(result, tmp_path)
    names = {"results-try-epochs", "results-try-gates-t-cnn", "results-try-gain-t-cnn", "results-try-resolution"}
    assert {file.stem for file in tmp_path.iterdir()} == names
    text = page.section(result)
    assert all(f"(img/{name}.png)" in text for name in names)
    gain = figures.evaluated(result, "t-cnn", "T-CNN").corruptions["fog"]
    assert gain.top1 == pytest.approx(0.5) and gain.severities[5].top1 == pytest.approx(0.4)
    sized = [(row.height, row.clean.top1) for row in figures.at_sizes(result, "cnn", "CNN") if row.clean]
    assert sized == [(32, pytest.approx(0.8)), (64, pytest.approx(0.65))]


def test_where_epochs_are_of_other_lengths_updates_are_counted(result: dict[str, Any]) -> None:
    """A part of the images takes more epochs for as many updates."""
    ax = figures.accuracy(result).axes[0]
    assert ax.get_xlabel() == "epochs trained"
    for entry in result["rows"]:
        if entry["arm"] == "t-cnn":
            entry["epochs"]["top1"] *= 2
    ax = figures.accuracy(result).axes[0]
    assert ax.get_xlabel() == "updates"
    places = [[float(at) for at in line.get_xdata()] for line in ax.lines if len(line.get_xdata())]
    assert places == [[10, 20, 30], [5, 10, 15, 20, 25, 30]]


def test_the_gain_by_the_length_of_training(result: dict[str, Any], tmp_path: Path) -> None:
    """Arms that are like one another, shortest first; one that has no control, or no other length, is in no curve."""
    arms, summary = result["experiment"]["arms"], result["summary"]
    arms["long"] = {"control": "cnn", "like": "t-cnn"}
    arms["other"] = {"control": "cnn"}
    summary.append({**summary[1], "arm": "long", "label": "T-CNN, 90 updates", "updates": 90.0})
    summary.append({**summary[1], "arm": "other", "label": "Other"})
    (root, points), *others = figures.lengths(result).items()
    assert (root, others) == ("t-cnn", [])
    assert [(point["updates"], point["clean"]["mean"]) for point in points] == [(30.0, 0.01), (90.0, 0.01)]
    bars = figures.gain_by_length("Gain", points).axes[0].containers
    drawn = [line.get_ydata().tolist() for line in (container.lines[0] for container in bars)]
    assert drawn == [[pytest.approx(1.0)] * 2, [pytest.approx(-1.0)] * 2], "percentage points, clean and corrupted"
    result["rows"] += [row(arm, 0, [0.7, 0.8]) for arm in ("long", "other")]
    assert "results-try-length-t-cnn" in figures.pictures(result)


def test_the_table_of_predictions() -> None:
    row = {"option": "as it is", "layers": 2, "images": 1000, "same_prediction": 1000, "right_cnn": 653,
           "right_tcnn": 653, "relative_error": 1.2e-6}  # fmt: skip
    text = page.predictions({"tiny_darknet": {"rows": [row]}})
    assert "| tiny_darknet | as it is | 2 | 1,000 of 1,000 | 653 | 653 | 1.2e-06 |" in text
    assert page.predictions({}) == ""


def test_the_page_is_what_was_measured() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.fill(text, page.measured()) == text, "run python benchmarks/reproduce/page.py"


RESULTS = page.by_name(page.measured())


@pytest.fixture(scope="module")
def found() -> list[forest.Comparison]:
    return page.compared(page.measured())


def test_every_comparison_is_there_that_an_experiment_tells(found: list[forest.Comparison]) -> None:
    """With the means that it tells."""
    told = {
        (entry["label"], gains["seeds"], *(gains[kind]["mean"] for kind in forest.KINDS if kind in gains))
        for names in forest.GROUPS.values()
        for name in names
        if name in RESULTS
        for entry in RESULTS[name]["summary"]
        for other, gains in entry.get("against", {}).items()
        if other == RESULTS[name]["experiment"]["arms"][entry["arm"]]["control"]
        and (name, entry["arm"]) not in forest.LEFT_OUT
    }
    mine = {
        (one.label, len(one.seeds), *(round(values.values.mean(), 5) for values in one.values.values()))
        for one in found
    }
    assert mine == told
    assert len(told) == len(found) > 15


def test_experiments_on_cifar_are_in_a_group_or_have_other_networks() -> None:
    grouped = {name for names in forest.GROUPS.values() for name in names}
    others = {"imagewoof", "imagewoof_quick", "imagewoof_tuned"}
    scratch = {"convit_cpu", "convmixer_cpu", "cordonnier_cpu", "vit_init"}
    assert set(RESULTS) - others - scratch == grouped & set(RESULTS), "a ResNet-20 or Tiny Darknet, on CIFAR-10"
    assert RESULTS["positions"]["experiment"]["model"] == "resnet20", "the paper's own layer, too"
    for name, arm in forest.LEFT_OUT:
        assert arm in RESULTS[name]["experiment"]["arms"]


def test_who_has_no_equal_is_left_out() -> None:
    """Controls have the learning rate, the updates and the images of their arm; of the others that is what is said."""
    for names in forest.GROUPS.values():
        for name in names:
            rows = {row["arm"]: row for row in RESULTS.get(name, {}).get("rows", ())}
            for arm, said in RESULTS[name]["experiment"]["arms"].items() if name in RESULTS else ():
                if arm in rows and said["control"] in rows and (name, arm) not in forest.LEFT_OUT:
                    mine, its = rows[arm], rows[said["control"]]
                    for key in ("lr", "epochs", "batch_size", "ema"):
                        assert mine["settings"].get(key) == its["settings"].get(key), (name, arm, key)


def test_smaller_sets_of_images_are_part_of_larger_ones(found: list[forest.Comparison]) -> None:
    found = [one for one in found if "corrupted" in one.values]
    counts = {len(one.values["corrupted"].places) for one in found}
    assert counts >= {250, 1000, 2000}
    targets = torch.arange(10).repeat_interleave(500)
    sets = [set(balanced_places(targets, count / 5000, 1).tolist()) for count in sorted(counts)]
    assert all(small <= large for small, large in pairwise(sets))
    for one in found:
        places = one.values["corrupted"].places
        assert numpy.bincount(targets.numpy()[places]).tolist() == [len(places) // 10] * 10


def test_the_mean_is_over_pairs(found: list[forest.Comparison]) -> None:
    """Of which arms beside the same training of a CNN are one: their mean."""
    for kind in forest.KINDS:
        count, trainings, told = forest.together(found, forest.POOLED["all"], kind)
        beside: dict[tuple[str, str, int], list[float]] = {}
        for one in found:
            for seed, own in zip(one.seeds, one.values[kind].values if kind in one.values else (), strict=False):
                beside.setdefault((*one.control, seed), []).append(own.mean())
        assert trainings == len(beside) < sum(len(one.seeds) for one in found if kind in one.values)
        assert count == len({key[:2] for key in beside})
        assert told.mean == pytest.approx(sum(sum(own) / len(own) for own in beside.values()) / trainings, abs=1e-12)
