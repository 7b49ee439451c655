"""What a run shows while it goes on, in Python as on the command line: it fits 80 columns, every epoch has one line,
and nothing is shown to who says so, or takes callbacks.
"""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displayhook import DisplayHook
from IPython.core.interactiveshell import InteractiveShell
from tiny_runs import TwoConvs, colours, run

import tcnn
from tcnn.display import BAR, SPINNER
from tcnn.training.runs.callbacks import Progress
from tcnn.training.runs.display import EpochLog, epoch_line, facts, headline, shown_progress
from tcnn.wording import in_python

FULL = {
    "percent": 99.95, "eta_seconds": 359999.0, "loss": 12.345, "lr": 1e-4, "temperature": 0.0217,
    "images_per_second": 12345.0, "top1": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("data"))


def test_notes_and_a_line_for_every_epoch(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(TwoConvs(), data, tmp_path / "run", epochs=2)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line[:8] for line in lines if line.startswith("epoch")] == ["epoch 1:", "epoch 2:"]
    assert set(map(in_python, result.notes)) <= set(lines)
    assert out == ""


def test_quiet(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(TwoConvs(), data, tmp_path / "run", epochs=1, quiet=True)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("callback", ["report", "say"])
def test_who_takes_a_callback_is_not_told_twice(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], callback: str
) -> None:
    heard: list[Any] = []
    run(TwoConvs(), data, tmp_path / "run", epochs=1, **{callback: heard.append})
    assert capsys.readouterr() == ("", "")
    assert heard


def test_of_several_processes_the_first_shows(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    run(TwoConvs(), data, tmp_path / "run", epochs=1)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_one_line_that_changes_and_no_escape_sequences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[tuple[dict[str, Any], bool]] = []
    shell = InteractiveShell.instance()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(
        shell.display_pub, "publish", lambda data, *given, update=False, **more: published.append((data, update))
    )
    monkeypatch.setattr("tcnn.display.NOTEBOOK_SECONDS", 0.0)
    with shown_progress() as (report, say):
        report(Progress(phase="training", epoch=1, epochs=2, step=3, steps=4, percent=37.5, loss=1.25))
        say("a note")
    shell.clear_instance()
    assert isinstance(shell.displayhook, DisplayHook)
    assert [update for _, update in published] == [False, True, True]
    assert published[1][0] == {"text/plain": "epoch 1/2 step 3/4  38%  loss 1.250"}
    assert published[2][0] == {"text/plain": ""}, "a notebook's file does not keep it"
    assert capsys.readouterr().err == "a note\n"


def test_a_notebook_counts_images_where_there_are_several_batches(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("tcnn.display._line", lambda: nullcontext(lambda done, what, facts: shown.append(what)))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    calls = (
        lambda **options: tcnn.predict(TwoConvs(), data, size=32, **options),
        lambda **options: tcnn.evaluate(TwoConvs(), data, size=32, **options),
    )
    for call, what in zip(calls, ("predicting", "evaluating"), strict=True):
        shown.clear()
        heard: list[int] = []
        for options in ({"batch_size": 30}, {"batch_size": 10, "quiet": True}):
            call(**options)
        call(batch_size=10, progress=heard.append)
        assert shown == []
        assert heard == [10, 10, 10]
        call(batch_size=10)
        assert shown == [what] * 3


def test_a_run_beside_another_in_one_process_is_told(data: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    def meanwhile(now: Progress) -> None:
        if now.phase == "training" and now.step == 1 and not heard:
            run(TwoConvs(), data, tmp_path / "second", epochs=1, say=heard.append)

    run(TwoConvs(), data, tmp_path / "first", epochs=1, report=meanwhile)
    assert "another run learns in this process" in heard[0]
    alone: list[str] = []
    run(TwoConvs(), data, tmp_path / "third", epochs=1, say=alone.append)
    assert not [line for line in alone if "another run" in line]


@pytest.mark.parametrize("phase", ["training", "validating"])
def test_step_and_time_left_fit_80_columns(phase: str) -> None:
    now = Progress(phase=phase, epoch=50, epochs=50, step=1251, steps=1251, **FULL)
    head = headline(now)
    rest = facts(now, 80 - SPINNER - len(head) - BAR - 2)
    assert SPINNER + len(head) + 1 + BAR + 1 + len(rest) <= 80
    assert "step 1251/1251" in head
    assert "99:59:59 left" in rest
    assert "loss" in facts(now, 200)
    assert "τ 0.022" in facts(now, 200)


def test_an_epochs_line() -> None:
    row = {
        "epoch": 49, "train_loss": 12.3456, "lr": 1e-4, "temperature": 0.5, "best": True,
        "val": {"top1": 0.4567, "loss": 1.0},
    }  # fmt: skip
    line = epoch_line(row, 3725)
    assert line == "epoch 50: loss 12.346, top-1 45.7%, lr 1.0e-04, τ 0.500, 1:02:05, best so far"
    assert len(line) <= 80
    apart = epoch_line({**row, "gate_temperature": 0.25}, 5)
    assert apart == "epoch 50: loss 12.346, top-1 45.7%, lr 1.0e-04, τ 0.500 (gates 0.250), 0:05, best so far"
    assert epoch_line({**row, "gate_temperature": 0.5}, 3725) == line
    cnn = epoch_line({**row, "temperature": None, "best": False}, 5)
    assert cnn == "epoch 50: loss 12.346, top-1 45.7%, lr 1.0e-04, 0:05"


def test_every_epoch_that_ends_is_shown_once(tmp_path: Path) -> None:
    shown: list[str] = []
    log = EpochLog(tmp_path, shown.append)
    metrics = tmp_path / "metrics.jsonl"

    def ended(*epochs: int) -> None:
        rows = [{"kind": "epoch", "epoch": epoch, "train_loss": 1.0, "val": {}} for epoch in epochs]
        metrics.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def at(epoch: int) -> Progress:
        return Progress(phase="training", epoch=epoch, epochs=9, step=1, steps=3, percent=0)

    ended(0, 1)
    log.look(at(3))
    assert shown == [], "these were over before the run was resumed"
    ended(0, 1, 2, 3)
    log.look(at(3))
    log.look(at(5))
    log.look(at(5))
    assert [line[:8] for line in shown] == ["epoch 3:", "epoch 4:"]
    ended(0, 1, 2, 3, 4)
    log.finish()
    log.finish()
    assert [line[:8] for line in shown[2:]] == ["epoch 5:"]


def test_the_epochs_of_the_baseline_are_told_apart(tmp_path: Path) -> None:
    def ended(run: str, *epochs: int) -> None:
        rows = [{"kind": "epoch", "epoch": epoch, "train_loss": 1.0, "val": {}} for epoch in epochs]
        path = tmp_path / run / "metrics.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def at(phase: str, epoch: int) -> Progress:
        return Progress(phase=phase, epoch=epoch, epochs=2, step=1, steps=3, percent=0)

    shown: list[str] = []
    log = EpochLog(tmp_path / "run", shown.append)
    log.look(at("training", 1))
    ended("run", 0, 1)
    log.look(at("baseline training", 1))
    assert [line[:8] for line in shown] == ["epoch 1:", "epoch 2:"]
    ended("run/baseline", 0)
    log.look(at("baseline validating", 2))
    ended("run/baseline", 0, 1)
    log.look(at("comparing", 0))
    log.look(at("comparing", 0))
    log.finish()
    assert [line[:12] for line in shown[2:]] == ["CNN epoch 1:", "CNN epoch 2:"]

    resumed: list[str] = []
    log = EpochLog(tmp_path / "run", resumed.append)
    log.look(at("baseline training", 2))
    log.finish()
    assert [line[:12] for line in resumed] == ["CNN epoch 2:"], "the T-CNN's were over before"
