"""The experiment runner, end to end on a few tiny images: whole, interrupted, resumed."""

import json
import shutil
from pathlib import Path
from typing import Any

import arms
import measuring
import numpy
import pytest
from experiment import load
from job import Job, place
from networks.building import shaped
from results import Results
from tiny_experiment import TINY, call, images, read, right, rows, summaries, write

from tcnn.data.image_set import open_dataset
from tcnn.evaluation.evaluate import evaluate
from tcnn.training.runs.rundir import RunDirectory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return images(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The experiment from beginning to end without a break."""
    out = tmp_path_factory.mktemp("whole")
    assert call(write(out / "tiny.yaml"), data, out) == 0
    return out


def test_every_arm_and_seed_has_its_row(whole: Path) -> None:
    found = rows(whole)
    seeds = [(row["arm"], row["seed"]) for row in found]
    assert seeds == [("start", 0), *((arm, seed) for arm in ("cnn", "t-cnn", "again") for seed in (0, 1))]
    for row in found[1:]:
        assert row["updates"] == 10 and len(row["epochs"]["top1"]) == 2
        assert row["images"] == {"clean": 20, "sizes": 20, "corrupted": 8}
        assert list(row["accuracy"]["corrupted"]) == ["fog/1", "fog/5", "contrast/1", "contrast/5"]
    assert len({str(bits) for bits in right(whole).values()}) > 8, "nothing is compared where all are alike"
    heads = {row["arm"]: row.get("heads") for row in found if row["seed"] == 0}
    assert heads["cnn"] is heads["start"] is None
    assert [epoch["epoch"] for epoch in heads["t-cnn"]] == [0, 1]
    assert {len(gates) for epoch in heads["t-cnn"] for gates in epoch["gates"].values()} == {9}


def test_what_is_recorded_is_what_evaluate_finds(whole: Path, data: Path) -> None:
    """Image by image, clean, at another size and corrupted: the sums are those of `tcnn.evaluate`."""
    experiment = load(whole / "tiny.yaml")
    validation = open_dataset(str(data), "validation", class_names=("cat", "dog"))
    job = Job(experiment, str(data), None, whole / "work", whole / "r.json")
    for row in rows(whole)[:4:3]:
        config = experiment.config(row["arm"], row["seed"])
        model = arms.start(job, "adapted", config, validation.class_names)
        if row["arm"] != "start":
            model = arms.tcnn.load(RunDirectory(place(job, row["arm"], row["seed"])).last, source=model)
        for case in measuring.cases(experiment, (8, 8)):
            some = measuring.chosen(case, validation, experiment.corrupted)
            expected = evaluate(model, some, size=case.size, corruption=case.corruption)
            assert row["accuracy"][case.kind][case.name] == pytest.approx(expected.top1, abs=1e-5)
            if case.name == "clean":
                assert row["loss"] == pytest.approx(expected.loss, abs=1e-4)
        bits = measuring.unpacked(numpy.array(right(whole)[f"{row['arm']}/{row['seed']}/corrupted"], numpy.uint8), 8)
        assert bits.mean(1).round(5).tolist() == list(row["accuracy"]["corrupted"].values())


def test_arms_that_are_alike_do_not_differ_in_one_image(whole: Path) -> None:
    """The same start, batches and updates: a second CNN with the same settings is the same CNN."""
    bits = right(whole)
    for seed in (0, 1):
        for kind in ("clean", "sizes", "corrupted"):
            assert bits[f"again/{seed}/{kind}"] == bits[f"cnn/{seed}/{kind}"]
    gain = summaries(whole)["again"]["against"]["cnn"]
    assert gain["seeds"] == 2
    assert gain["clean"] == gain["corrupted"] == {"mean": 0, "interval": [0, 0], "level": 0.95}


def test_differences_are_paired(whole: Path) -> None:
    """The mean of a difference is the difference of the means; an arm without seeds is compared with every seed."""
    entries = summaries(whole)
    found = rows(whole)
    of = {arm: [row["top1"] for row in found if row["arm"] == arm] for arm in entries}
    gain = entries["t-cnn"]["against"]["cnn"]["clean"]
    assert gain["mean"] == pytest.approx(numpy.mean(of["t-cnn"]) - numpy.mean(of["cnn"]), abs=1e-5)
    assert gain["interval"][0] <= gain["mean"] <= gain["interval"][1]
    results = Results(whole / "r.json", load(whole / "tiny.yaml"))
    assert results.against("cnn", "start")["seeds"] == 2
    assert results.against("cnn", "start")["clean"]["mean"] == pytest.approx(
        numpy.mean(of["cnn"]) - of["start"][0], abs=1e-5
    )


def test_cross_entropies_are_paired_too(whole: Path) -> None:
    """Of three seeds: the mean of their differences. Two tell no interval."""
    results = Results(whole / "r.json", load(whole / "tiny.yaml"))
    assert "loss" not in results.against("t-cnn", "cnn")
    for row in [row for row in results.rows if row["seed"] == 1 and row["arm"] in ("cnn", "t-cnn")]:
        results.rows.append({**row, "seed": 2, "loss": row["loss"] + (0.5 if row["arm"] == "cnn" else 0.25)})
        results.right |= {f"{row['arm']}/2/{kind}": results.right[f"{row['arm']}/1/{kind}"] for kind in row["images"]}
    loss = {(row["arm"], row["seed"]): row["loss"] for row in results.rows}
    expected = numpy.mean([loss["t-cnn", seed] - loss["cnn", seed] for seed in range(3)])
    assert results.against("t-cnn", "cnn")["loss"]["mean"] == pytest.approx(expected, abs=1e-5)


class Killed(BaseException):
    """As if the process were gone: nothing of ours catches it."""


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_cut_off_again_and_again_is_uninterrupted(
    how: str, whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 61st time that it asks whether its time is up, which it does at every step and before every batch that it
    measures: in the middle of the first phase, of arms, of their measurement."""
    file, asked, pieces = write(tmp_path / "tiny.yaml"), 0, 0
    trained: list[str] = []
    fit = arms.fit

    def late(job: Job) -> bool:
        nonlocal asked
        asked += 1
        if asked % 61 == 0 and how == "killed":
            raise Killed
        return asked % 61 == 0

    def counted(*given: Any) -> None:
        trained.append(given[4].name)
        fit(*given)

    monkeypatch.setattr(Job, "late", late)
    monkeypatch.setattr(arms, "fit", counted)
    while True:
        there = {f"{row['arm']}-{row['seed']}-{row['digest']}" for row in rows(tmp_path)}
        trained.clear()
        try:
            status = call(file, data, tmp_path)
        except Killed:
            status = 75
        assert not there & set(trained), "rows that are there are not run again"
        pieces += 1
        if status == 0:
            break
        assert status == 75 and pieces < 50
    assert pieces > 2
    assert rows(tmp_path) == rows(whole)
    assert right(tmp_path) == right(whole)


def test_nothing_is_begun_when_all_is_there(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(whole / "tiny.yaml", whole / "no data", whole) == 0
    assert capsys.readouterr().out == "every row is there already\n"


def test_another_label_is_told_of_the_rows_that_are_there(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    before = read(whole)
    named = {name: arm | {"label": "As it was"} if name == "cnn" else arm for name, arm in TINY["arms"].items()}
    file = write(tmp_path / "copy" / "tiny.yaml", arms=named, seeds=TINY["seeds"])
    assert call(file, whole / "no data", tmp_path / "copy") == 0
    after = read(tmp_path / "copy")
    assert [entry["label"] for entry in after["summary"] if entry["arm"] == "cnn"] == ["As it was"]
    assert after["rows"] == before["rows"] and (after["hardware"], after["versions"]) == (
        before["hardware"], before["versions"],
    )  # fmt: skip


def test_rows_of_two_machines(whole: Path) -> None:
    results = Results(whole / "r.json", load(whole / "tiny.yaml"))
    results.rows[0] = results.rows[0] | {"hardware": "another one"}
    assert results._content()["hardware"] == f"another one and {results.rows[1]['hardware']}"


def test_an_arm_that_changed_is_run_again_and_no_other(
    whole: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    changed = {**TINY["arms"], "again": {"control": "cnn", "convert": False, "lr": 1e-4}}
    trained: list[str] = []
    fit = arms.fit
    monkeypatch.setattr(arms, "fit", lambda *given: (trained.append(given[4].name[:7]), fit(*given)))
    assert call(write(tmp_path / "copy" / "tiny.yaml", arms=changed), data, tmp_path / "copy") == 0
    assert trained == ["again-0", "again-1"]
    before, after = right(whole), right(tmp_path / "copy")
    assert {key for key in after if after[key] != before[key]} <= {key for key in before if key.startswith("again")}
    assert len(rows(tmp_path / "copy")) == len(rows(whole))


def test_rows_of_another_measurement_are_no_part_of_a_summary(whole: Path, data: Path, tmp_path: Path) -> None:
    """One arm is measured anew on fewer images: it stands alone, for the others were measured on more."""
    for name in ("r.json", "r.npz"):
        shutil.copy(whole / name, tmp_path / name)
    fewer = write(tmp_path / "toy.yaml", corrupted={"images": 4, "corruptions": ["fog"], "severities": [1]})
    assert call(fewer, data, tmp_path, "--arms", "cnn", "--seeds", "0") == 0
    found = read(tmp_path)
    assert [(row["arm"], row["seed"]) for row in found["rows"]] == [("cnn", 0)]


def test_equal_time_gives_the_epochs_that_fit(whole: Path, data: Path, tmp_path: Path) -> None:
    """By the times that stand in the results: here the T-CNN is told to have taken three times as long."""
    shutil.copytree(whole, tmp_path / "copy")
    content = read(tmp_path / "copy")
    for row in content["rows"]:
        row["train_seconds"] = {"t-cnn": 9.0, "cnn": 3.0}.get(row["arm"], 1.0)
    (tmp_path / "copy" / "r.json").write_text(json.dumps(content))
    longer = {**TINY["arms"], "long": {"like": "cnn", "equal_time_to": "t-cnn", "beside": ["start"]}}
    file = write(tmp_path / "copy" / "tiny.yaml", arms=longer, seeds=[0, 1])
    assert call(file, data, tmp_path / "copy", "--arms", "long", "--seeds", "1") == 0
    row = next(row for row in rows(tmp_path / "copy") if row["arm"] == "long")
    assert (row["seed"], row["updates"], row["settings"]["epochs"]) == (1, 30, 6)
    assert row["settings"]["warmup_epochs"] == 1.5 and row["settings"]["convert"] is False
    assert list(summaries(tmp_path / "copy")["long"]["against"]) == ["cnn", "start", "t-cnn"]


def test_a_cnn_of_another_geometry_is_measured_as_it_was_trained(data: Path, tmp_path: Path) -> None:
    """Kept and dilated CNNs have the same weights in their files, and compute differently."""
    dilated = {"convert": False, "conversion": {"stride": "dilate"}}
    chosen = {"cnn": {"convert": False}, "dilated": dilated, "start": {"train": False, **dilated}}
    assert call(write(tmp_path / "tiny.yaml", arms=chosen, seeds=[0]), data, tmp_path) == 0
    experiment = load(tmp_path / "tiny.yaml")
    job = Job(experiment, str(data), None, tmp_path / "work", tmp_path / "r.json")
    by = {row["arm"]: row for row in rows(tmp_path)}
    config = experiment.config("dilated", 0)
    source = shaped(arms.start(job, "adapted", config, ("cat", "dog")), config, (8, 8))
    validation = open_dataset(str(data), "validation", class_names=("cat", "dog"))
    last = arms.tcnn.load(RunDirectory(place(job, "dilated", 0)).last, source=source)
    for arm, model in (("dilated", last), ("start", source)):
        expected = evaluate(model, validation, size=8)
        assert (by[arm]["top1"], by[arm]["loss"]) == (
            pytest.approx(expected.top1),
            pytest.approx(expected.loss, abs=1e-4),
        )
