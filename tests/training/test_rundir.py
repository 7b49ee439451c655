"""A run's directory: what is written, what survives a kill, what is never removed."""

import csv
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import TwoConvs, colours, run

import tcnn
from tcnn.checkpoints.checkpoint import read
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.errors import OutputError, RequestError, StorageError
from tcnn.training.resumed import with_defaults
from tcnn.training.runs.rundir import RunDirectory, changed_settings, read_metrics

LAYERS = ["layer4.0.conv1", "layer4.0.conv2"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two epochs."""
    root = tmp_path_factory.mktemp("done")
    run("test_resnet", colours(root / "colours"), root / "run", log_steps=2)
    return root / "run"


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def begun(path: Path) -> RunDirectory:
    directory = RunDirectory(path)
    directory.create({"run": "finetune", "config": {}}, force=False)
    return directory


def test_a_setting_that_json_has_no_number_for(tmp_path: Path) -> None:
    """It is null in the checkpoint: no save of a run may fail for what the run records of itself."""
    made = run(TwoConvs(), colours(tmp_path / "colours", 4), tmp_path / "run", epochs=1, clip_grad=math.inf)
    assert read(made.last).section("training")["config"]["clip_grad"] is None
    assert strict((tmp_path / "run" / "config.json").read_text())["config"]["clip_grad"] is None
    (tmp_path / "old.json").write_text('{"clip_grad": Infinity}')
    assert tcnn.finetune_config("quick", tmp_path / "old.json").clip_grad is None


def strict(text: str) -> Any:
    """What JSON says; `NaN` and `Infinity`, which Python would take, are no JSON."""

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refused)


def test_what_a_run_writes_is_json(tmp_path: Path) -> None:
    """The span of a head that looks nowhere in particular is infinite; a release before wrote that word."""
    directory = begun(tmp_path / "run")
    directory.write_record({"config": {"lr": math.nan, "list": (1.0, -math.inf)}, "path": tmp_path})
    expected = {"config": {"lr": None, "list": [1.0, None]}, "path": str(tmp_path)}
    assert strict((directory.path / "config.json").read_text()) == directory.record() == expected
    row = {"kind": "epoch", "epoch": 0, "lr": 1.0, "spans": {"a": [math.inf, 2.0]}, "span_mean": {"a": math.inf}}
    directory.append({**row, "train_loss": math.nan})
    told = {**row, "train_loss": None, "spans": {"a": [None, 2.0]}, "span_mean": {"a": None}}
    assert [strict(line) for line in directory.metrics.read_text().splitlines()] == [told]
    assert directory.rows() == [{**row, "train_loss": None}], "and is read as it was"
    with directory.metrics.open("a") as file:
        file.write('{"kind": "epoch", "epoch": 1, "spans": {"a": [Infinity, 2.0]}}\n')
    directory.rewind(updates=9, epoch=2)
    assert [strict(line)["spans"] for line in directory.metrics.read_text().splitlines()] == 2 * [{"a": [None, 2.0]}]
    assert [one["spans"] for one in directory.rows()] == 2 * [{"a": [math.inf, 2.0]}]
    (directory.path / "config.json").write_text('{"config": {"clip_grad": Infinity}}')
    assert directory.record() == {"config": {"clip_grad": None}}


def test_what_a_run_leaves(done: Path) -> None:
    assert files(done) == {
        "config.json", "metrics.jsonl", "summary.csv", "converted.safetensors", "best.safetensors", "last.safetensors",
        "resume/step-000000006-00001-0000003.safetensors", "resume/step-000000006-00002-0000000.safetensors",
    }  # fmt: skip


def test_config_json_says_what_was_asked(done: Path) -> None:
    record = json.loads((done / "config.json").read_text())
    assert (record["run"], record["model"], record["size"]) == ("finetune", "test_resnet", [32, 32])
    assert record["class_names"] == ["blue", "green", "red"]
    assert record["versions"]["tcnn"] == tcnn.__version__
    assert tcnn.finetune_config("quick", done / "config.json").model_dump(mode="json") == record["config"]


def test_metrics_of_steps_and_epochs(done: Path) -> None:
    rows = [json.loads(line) for line in (done / "metrics.jsonl").read_text().splitlines()]
    assert [(row["kind"], row["updates"]) for row in rows] == [
        ("train", 2), ("epoch", 3), ("train", 4), ("train", 6), ("epoch", 6),
    ]  # fmt: skip
    for row in rows:
        assert row["lr"] > 0
        assert row["images_per_second"] > 0
        assert 1 / 46 < row["temperature"] <= 1
    assert [row["epoch"] for row in rows] == [0, 0, 1, 1, 1]
    for row in (rows[1], rows[4]):
        assert row["val"]["images"] == 6
        assert 0 <= row["val"]["top1"] <= 1
        assert row["unreadable"] == 0
        for name in ("gates", "spans"):
            assert list(row[name]) == LAYERS
            for layer, values in row[name].items():
                assert len(values) == 9, "one a head"
                assert row[f"{name[:-1]}_mean"][layer] == pytest.approx(sum(values) / 9)
        assert all(0 < gate < 1 for gates in row["gates"].values() for gate in gates)
    assert rows[1]["temperature"] == 1, "annealed over the warm-up"


def test_the_last_row_is_the_state_of_the_file(done: Path) -> None:
    """Gate σ(λ/τ) and span 1/α of the saved layers, and the loss as the mean of the steps'."""
    row = RunDirectory(done).rows("epoch")[-1]
    model = tcnn.load(done / "last.safetensors")
    for layer in LAYERS:
        module = model.get_submodule(layer)
        assert row["gates"][layer] == module.gate.tolist()
        assert row["spans"][layer] == (1 / module.locality_strength).tolist()


def test_the_checkpoints_say_how_they_were_trained(done: Path) -> None:
    from tcnn.checkpoints import checkpoint

    rows = RunDirectory(done).rows("epoch")
    best = max(rows, key=lambda row: row["val"]["top1"])
    for name, row in (("last", rows[-1]), ("best", best)):
        section = checkpoint.read(done / f"{name}.safetensors").section("training")
        assert section["metrics"] == row
        assert section["config"] == RunDirectory(done).record()["config"]
        assert section["model"] == "test_resnet"


TAUS = ("temperature", "gate_temperature")


def test_summary_has_timms_columns(done: Path) -> None:
    rows = list(csv.DictReader((done / "summary.csv").open()))
    assert list(rows[0]) == ["epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr", *TAUS]
    for shown, row in zip(rows, RunDirectory(done).rows("epoch"), strict=True):
        assert int(shown["epoch"]) == row["epoch"]
        assert float(shown["train_loss"]) == row["train_loss"]
        assert float(shown["eval_top1"]) == 100 * row["val"]["top1"]
        assert [float(shown[tau]) for tau in TAUS] == [row[tau] for tau in TAUS]
        assert shown["eval_top5"] == "", "three classes have no top-5"


def test_a_line_that_was_cut_off_costs_no_other(tmp_path: Path) -> None:
    directory = begun(tmp_path / "run")
    directory.append({"kind": "train", "updates": 1})
    with directory.metrics.open("a") as handle:
        handle.write('{"kind": "train", "upd')
    assert [row["updates"] for row in directory.rows()] == [1]
    directory.append({"kind": "train", "updates": 3})
    assert [row["updates"] for row in directory.rows("train")] == [1, 3]


def test_lines_that_are_no_rows_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"a": 1}\n[2]\n\xff\xfe\n\n7\n{"a": 2}\n')
    assert read_metrics(file) == [{"a": 1}, {"a": 2}]
    assert read_metrics(tmp_path / "none") == []


def test_rewind(tmp_path: Path) -> None:
    directory = begun(tmp_path / "run")
    for epoch in (0, 1):
        for updates in (2, 4):
            directory.append({"kind": "train", "epoch": epoch, "updates": 4 * epoch + updates})
        directory.append({"kind": "epoch", "epoch": epoch, "updates": 4 * epoch + 4})
    with directory.metrics.open("a") as handle:
        handle.write("{half")
    directory.rewind(6, 1)
    assert [(row["kind"], row["updates"]) for row in directory.rows()] == [
        ("train", 2), ("train", 4), ("epoch", 4), ("train", 6),
    ]  # fmt: skip
    directory.rewind(4, 0)
    assert [(row["kind"], row["updates"]) for row in directory.rows()] == [("train", 2), ("train", 4)]
    directory.rewind(0, 0)
    assert directory.metrics.read_text() == ""


def test_a_full_disk_is_one_error_and_keeps_what_there_is(tmp_path: Path, file_size_limit: Any) -> None:
    directory = begun(tmp_path / "run")
    directory.append({"kind": "train", "updates": 1})
    with file_size_limit(40), pytest.raises(StorageError, match="no space left while writing"):
        directory.append({"kind": "train", "updates": 2, "text": "x" * 100})
    with file_size_limit(40), pytest.raises(StorageError, match="no space left while writing"):
        directory.rewind(9, 9) or directory.write_summary()
    directory.append({"kind": "train", "updates": 3})
    assert [row["updates"] for row in directory.rows()] == [1, 3]


def test_nothing_is_begun_where_a_run_is(done: Path) -> None:
    before = {name: (done / name).stat().st_mtime_ns for name in files(done)}
    with pytest.raises(OutputError, match=r"holds a run already; .*--resume.*--force.*--out"):
        RunDirectory(done).create({}, force=False)
    assert {name: (done / name).stat().st_mtime_ns for name in files(done)} == before


@pytest.mark.parametrize("force", [True, False])
def test_nothing_is_begun_among_foreign_files(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(OutputError, match="holds files that are no run"):
        RunDirectory(tmp_path).create({}, force=force)
    assert files(tmp_path) == {"thesis.tex"}


@pytest.mark.parametrize("name", ["best.safetensors", "resume/step-000000001-00000-0000001.safetensors"])
def test_results_without_their_config_are_no_run_to_replace(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("weights")
    with pytest.raises(OutputError, match="holds files that are no run"):
        RunDirectory(tmp_path).create({}, force=True)
    assert (tmp_path / name).read_text() == "weights"


def test_force_removes_the_runs_own_files_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "run"
    directory = begun(path)
    own = ["metrics.jsonl", "summary.csv", "best.safetensors", "last.safetensors", ".last.safetensors.0a1b2c3d.tmp"]
    own += ["resume/step-000000003-00001-0000000.safetensors", "tensorboard/events.out.tfevents.1.host.2.0"]
    foreign = ["notes.md", "best.safetensors.bak", ".hidden", "resume/mine.txt", "plots/a.png", "tensorboard/x.txt"]
    for name in (*own, *foreign):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(name)
    directory.create({"run": "again"}, force=True)
    assert files(path) == {"config.json", *foreign}
    assert directory.record() == {"run": "again"}


def test_a_run_that_was_killed_at_birth_can_begin(tmp_path: Path) -> None:
    (tmp_path / "resume").mkdir()
    (tmp_path / ".config.json.0a1b2c3d.tmp").write_text("{")
    directory = RunDirectory(tmp_path)
    assert not directory.started
    directory.create({"run": "finetune"}, force=False)
    directory.remove_partial_files()
    assert files(tmp_path) == {"config.json"}


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    directory = begun(tmp_path / "run")
    for name in (".best.safetensors.0a1b2c3d.tmp", ".metrics.jsonl.0a1b2c3d.tmp", ".tmpA1b2C3", ".mine.tmp", ".tmp"):
        (directory.path / name).write_text("")
    directory.remove_partial_files()
    assert files(directory.path) == {"config.json", ".mine.tmp", ".tmp"}


@pytest.mark.parametrize(
    ("place", "expected"),
    [("file", "expected a directory for the run, found a file"), ("file/run", "is a file"), ("file/a/b", "is a file")],
)
def test_a_file_is_no_place_for_a_run(tmp_path: Path, place: str, expected: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=expected):
        RunDirectory(tmp_path / place).check(force=True)


def test_a_check_makes_nothing(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "a" / "b").check(force=False)
    assert list(tmp_path.iterdir()) == []
    begun(tmp_path / "a" / "b")
    assert files(tmp_path) == {"a/b/config.json"}


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: the superuser may write anywhere")
@pytest.mark.parametrize("place", [".", "new", "new/deeper"])
def test_no_permission(tmp_path: Path, place: str) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(OutputError, match="no permission to write"):
        RunDirectory(tmp_path / place).check(force=False)


@pytest.mark.parametrize("text", ["", "{half", "[1]", "7"])
def test_a_config_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(RequestError, match=r"config\.json: not readable, so the run cannot be resumed"):
        RunDirectory(tmp_path).record()


def test_differences_leave_out_what_changes_nothing() -> None:
    before = {"lr": 1, "workers": 4, "device": "cpu", "epochs": 3, "gone": 1}
    after = {"lr": 2, "workers": 0, "device": "cuda", "epochs": 3, "new": None}
    assert changed_settings(before, after) == ["gone: 1 → None", "lr: 1 → 2"]


def test_a_run_of_an_earlier_release_had_the_defaults_of_settings_that_are_new() -> None:
    """It goes on with the same ones, and not with others."""
    today = FinetuneConfig(lr=0.5, conversion=ConversionConfig(stride="dilate")).model_dump(mode="json")
    earlier = {key: value for key, value in today.items() if key != "init"}
    earlier["conversion"] = {key: value for key, value in today["conversion"].items() if "position" not in key}
    assert changed_settings(with_defaults(earlier), today) == []
    assert changed_settings(with_defaults(earlier), today | {"init": "impulse"}) == ["init: 'default' → 'impulse'"]
