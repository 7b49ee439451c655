"""The CNN beside a T-CNN: the same start, batches and updates; resumed where it was; both compared."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from forked import processes
from safetensors.torch import load_file
from tiny_runs import TwoConvs, colours, run, seeded, tiny
from torch import nn

import tcnn
from tcnn.analysis.reading.model_info import of_file
from tcnn.checkpoints.files import label_names
from tcnn.config import ConversionConfig
from tcnn.errors import RequestError, Stopped
from tcnn.exporting.export import describe
from tcnn.training import before_after
from tcnn.training.baseline import baseline_start
from tcnn.training.preparing.prepare import prepare
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.single_run import FinetuneResult
from tcnn.workflows.pipeline import convert_to_file

CLASSES = ("blue", "green", "red")
OPTIONS: dict[str, Any] = {
    "baseline": True, "log_steps": 1, "checkpoint_steps": 1, "mixup": 0, "cutmix": 0, "lr": 3e-3, "drop_path": 0.0,
}  # fmt: skip


class Headed(TwoConvs):
    """Of seven classes, until it is told how many."""

    num_classes = 7

    def __init__(self) -> None:
        super().__init__(7)

    def reset_classifier(self, classes: int) -> None:
        self.num_classes, self.head = classes, nn.Linear(8, classes)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    """A run with its baseline that nobody has interrupted."""
    return run(seeded(Headed), data, tmp_path_factory.mktemp("whole") / "run", **OPTIONS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps to learn, three images to measure: these every model sees corrupted, too."""
    return colours(tmp_path_factory.mktemp("few"), images=7)


@pytest.fixture(scope="module")
def measured(few: Path, tmp_path_factory: pytest.TempPathFactory) -> FinetuneResult:
    """One of a model that timm builds again from a file: before and after can be compared in all."""
    return run("test_resnet", few, tmp_path_factory.mktemp("measured") / "run", **OPTIONS, epochs=1)


@pytest.mark.parametrize("stride", ["keep", pytest.param("dilate", marks=pytest.mark.slow)])
def test_cnn_and_t_cnn_start_alike(stride: Any, tmp_path: Path) -> None:
    config = tiny(conversion={"stride": stride, "input_size": (32, 32)})
    file = tmp_path / "t.safetensors"
    convert_to_file("test_resnet", file, config.conversion, pretrained=False)
    for source in ("test_resnet", file):
        if source == file:
            config = tiny()  # a checkpoint brings its own conversion
        tuned, cnn = prepare(source, config, CLASSES, False), baseline_start(source, config, CLASSES, source == file)
        assert cnn.new_classifier
        assert cnn.size == tuned.size
        shared = tuned.model.state_dict()
        for name, tensor in cnn.model.state_dict().items():
            assert name not in shared or torch.equal(tensor, shared[name]), name
        images = torch.rand(2, 3, *tuned.size)
        with torch.no_grad():
            one, other = (each.model.eval()(images) for each in (tuned, cnn))
        assert torch.allclose(one, other, atol=1e-4), "what was converted computes what its CNN computes"


@pytest.mark.slow
def test_the_cnn_of_a_file_of_ones_own_is_had_back_from_the_conversion(tmp_path: Path) -> None:
    torch.manual_seed(3)
    mine = timm.create_model("test_resnet", num_classes=3).eval()
    torch.save(mine.state_dict(), tmp_path / "mine.pth")
    file = tmp_path / "t.safetensors"
    convert_to_file("test_resnet", file, ConversionConfig(input_size=(32, 32)), weights=tmp_path / "mine.pth")
    found = baseline_start(file, tiny(), CLASSES)
    for name, tensor in found.model.state_dict().items():
        own = mine.state_dict()[name]
        # The classes are other ones, so the classifier is the T-CNN's new one.
        assert name.startswith("fc.") or torch.allclose(tensor, own, rtol=0, atol=1e-7 * own.abs().max().item()), name
    other = tmp_path / "d.safetensors"
    dilated = ConversionConfig(stride="dilate", input_size=(32, 32))
    convert_to_file("test_resnet", other, dilated, weights=tmp_path / "mine.pth")
    with pytest.raises(RequestError, match="file of one's own, and its stride is another one"):
        baseline_start(other, tiny(), CLASSES)


def test_same_batches_and_updates(whole: FinetuneResult) -> None:
    directory = RunDirectory(Path(whole.out))
    baseline = RunDirectory(directory.path / "baseline")
    tuned, cnn = directory.rows("train"), baseline.rows("train")
    assert [row["updates"] for row in tuned] == [row["updates"] for row in cnn] == [1, 2, 3, 4, 5, 6]
    assert tuned[0]["loss"] == pytest.approx(cnn[0]["loss"], rel=1e-4), "the same function on the same images"
    mine, its = directory.record(), baseline.record()
    assert its["config"].pop("convert") is False
    assert mine["config"].pop("convert") is True
    for key in ("size",):
        mine["config"].pop(key), its["config"].pop(key)
    assert mine == its
    assert not [name for name in load_file(baseline.best) if "gating" in name]


def test_models_of_ones_own_are_compared_too(whole: FinetuneResult) -> None:
    """timm cannot build them, so both fine-tuned ones were missing, with their difference."""
    assert whole.before_after is not None
    rows = {row.role: row for row in whole.before_after.rows}
    assert [row.missing for row in rows.values()] == [None] * 4
    assert rows["t_cnn"].accuracy is not None
    assert rows["t_cnn"].accuracy.top1.mean == pytest.approx(whole.best_top1)
    assert [(one.of, one.over) for one in whole.before_after.differences] == [("t_cnn", "tuned_cnn")]


@pytest.mark.parametrize("given", ["late", "a T-CNN", "without its stride"])
def test_a_trained_model_of_ones_own_is_had_back_however_it_became_one(given: str, few: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 2, "compare": True, "lr": 3e-3, "drop_path": 0.0}
    model: nn.Module = seeded(TwoConvs)
    if given == "late":
        options["convert_at"] = 1
    if given == "a T-CNN":
        model = tcnn.convert(model, input_size=(32, 32)).model
    if given == "without its stride":
        options |= {"conversion": {"stride": "dilate"}, "baseline": True}
    found = run(model, few, tmp_path / "run", **options)
    assert found.before_after is not None
    rows = {row.role: row for row in found.before_after.rows}
    last = rows["t_cnn"]
    assert last.missing is None and last.accuracy is not None
    assert last.accuracy.top1.mean == pytest.approx(found.best_top1)


def test_a_model_of_ones_own_knows_the_names_of_its_classes(whole: FinetuneResult, data: Path, tmp_path: Path) -> None:
    """They were numbers: such a model has no metadata of timm's, in which names are kept."""
    source = Headed()
    source.reset_classifier(len(CLASSES))
    model = tcnn.load(whole.best, source=source)
    assert label_names(model) == CLASSES
    (guess, *_) = tcnn.predict(model, next(data.rglob("red/*")), size=32)[0].guesses
    assert guess.name == CLASSES[guess.index]
    assert json.loads(describe(model, (32, 32))["label_names"]) == list(CLASSES)
    assert of_file("run", Path(whole.best)).label_names == CLASSES
    tcnn.save(model, tmp_path / "again.safetensors")
    assert label_names(tcnn.load(tmp_path / "again.safetensors", source=source)) == CLASSES


def test_before_and_after(measured: FinetuneResult, few: Path) -> None:
    assert measured.before_after is not None
    rows = {row.role: row for row in measured.before_after.rows}
    assert list(rows) == ["cnn", "tuned_cnn", "converted", "t_cnn"]
    assert [row.new_classifier for row in rows.values()] == [True, False, True, False]
    assert rows["cnn"].accuracy == rows["converted"].accuracy
    assert rows["t_cnn"].accuracy is not None
    assert rows["t_cnn"].accuracy.top1.mean == pytest.approx(measured.best_top1)
    cost, plain = rows["t_cnn"].cost, rows["cnn"].cost
    assert cost is not None
    assert plain is not None
    assert abs(cost.bytes - Path(measured.best).stat().st_size) < 60_000, "what its file has beside the header"
    assert cost.flops > plain.flops > 0  # type: ignore[operator]
    rate = cost.images_per_second
    assert rate.low <= rate.median <= rate.high and rate.low < rate.high, "of several passes, however slow they are"
    assert measured.before_after.corrupted_images == rows["t_cnn"].accuracy.images
    for row in rows.values():
        assert row.corrupted is not None and row.corrupted.images == measured.before_after.corrupted_images
    assert rows["cnn"].corrupted == rows["converted"].corrupted, "the same function of the same corrupted images"
    (gain,) = measured.before_after.differences
    assert gain.corrupted is not None and gain.corrupted.low <= gain.corrupted.mean <= gain.corrupted.high
    assert (gain.of, gain.over) == ("t_cnn", "tuned_cnn")
    text = (Path(measured.out) / before_after.FILE).read_text()
    assert str(few) not in text
    content = json.loads(text)
    assert set(content["rows"][3]["per_class"]) == set(CLASSES)
    named = content["differences"][0]
    assert len(named["right_images"]) == gain.newly_right
    for image in named["right_images"] + named["wrong_images"]:
        assert image["thumbnail"].startswith("data:image/jpeg;base64,")


@pytest.mark.parametrize("phase", ["baseline training", pytest.param("comparing", marks=pytest.mark.slow)])
def test_a_baseline_is_resumed_where_it_was(whole: FinetuneResult, data: Path, tmp_path: Path, phase: str) -> None:
    def interrupt(now: Progress) -> None:
        if now.phase == phase and now.step >= 2:
            raise Stopped("killed")

    with pytest.raises(Stopped):
        run(seeded(Headed), data, tmp_path / "run", report=interrupt, **OPTIONS)
    if phase == "baseline training":  # what is gone on with is the run that it is a part of
        again: list[Progress] = []
        stop = lambda: bool(again) and again[-1].phase == phase  # noqa: E731
        with pytest.raises(Stopped, match=f"go on with --resume --out {re.escape(str(tmp_path / 'run'))}$"):
            run(seeded(Headed), data, tmp_path / "run", resume=True, report=again.append, stop=stop, **OPTIONS)
    last = run(seeded(Headed), data, tmp_path / "run", resume=True, **OPTIONS)
    for file in ("last.safetensors", "baseline/last.safetensors"):
        one, other = load_file(Path(whole.out) / file), load_file(tmp_path / "run" / file)
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert last.before_after is not None
    assert whole.before_after is not None
    assert [row.accuracy for row in last.before_after.rows] == [row.accuracy for row in whole.before_after.rows]


def _killed(data: Path, out: Path) -> None:
    """A run in a process of its own, which dies while it trains the CNN."""

    def report(now: Progress) -> None:
        if now.phase == "baseline training" and now.step >= 2:
            os.kill(os.getpid(), signal.SIGKILL)

    run("test_resnet", data, out, report=report, **OPTIONS, epochs=1)


@pytest.mark.slow
def test_a_kill_during_the_baseline_changes_no_figure(measured: FinetuneResult, few: Path, tmp_path: Path) -> None:
    process = processes.Process(target=_killed, args=(few, tmp_path / "run"))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "run" / before_after.FILE).exists()
    again = run("test_resnet", few, tmp_path / "run", resume=True, **OPTIONS, epochs=1)
    assert again.before_after is not None
    assert measured.before_after is not None
    one, other = (found.before_after.model_dump() for found in (again, measured))
    for row in one["rows"] + other["rows"]:
        del row["cost"]["images_per_second"]  # the only figure that time has a part in
    assert one == other


def test_what_has_no_baseline_says_so_before_it_trains(measured: FinetuneResult, data: Path, tmp_path: Path) -> None:
    trained = measured.best
    with pytest.raises(RequestError, match="has been trained since"):
        run(trained, data, tmp_path / "run", baseline=True)
    with pytest.raises(RequestError, match="leave one of the two out"):
        run("test_resnet", data, tmp_path / "run", baseline=True, convert=False)
    with pytest.raises(RequestError, match="T-CNN already"):
        run(tcnn.load(trained), data, tmp_path / "run", baseline=True)
    assert not (tmp_path / "run").exists()


def test_a_replaced_run_leaves_no_old_baseline(data: Path, tmp_path: Path, whole: FinetuneResult) -> None:
    old = RunDirectory(tmp_path / "run")
    old.create({"run": "finetune"}, force=False)
    RunDirectory(old.path / "baseline").create({"run": "finetune"}, force=False)
    (old.path / before_after.FILE).write_text("{}")
    old.clear()
    assert list(old.path.iterdir()) == []
