"""What is shown while a run goes on fits a terminal of 80 columns, and every epoch gets one line, once."""

import json
from pathlib import Path

import pytest
from rich.table import Table

from tcnn.cli.options.spellings import processes
from tcnn.cli.output import console
from tcnn.cli.output.epochs import EpochLog, epoch_line
from tcnn.training.runs.callbacks import Progress
from tcnn.version import __version__

FULL = {
    "percent": 99.95, "eta_seconds": 359999.0, "loss": 12.345, "lr": 1e-4, "temperature": 0.0217,
    "images_per_second": 12345.0, "top1": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("phase", ["training", "validating"])
def test_step_and_time_left_fit_80_columns(phase: str) -> None:
    now = Progress(phase=phase, epoch=50, epochs=50, step=1251, steps=1251, **FULL)
    head = console.headline(now)
    facts = console.facts(now, 80 - len(head) - console.BAR - 2)
    assert len(head) + 1 + console.BAR + 1 + len(facts) <= 80
    assert "step 1251/1251" in head
    assert "99:59:59 left" in facts
    assert "loss" in console.facts(now, 200)
    assert "τ 0.022" in console.facts(now, 200)


def test_without_a_terminal_rows_and_notes_stay_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """They were broken at 120 and 80 columns, in the middle of a time, a file's name or a sentence, so that neither
    `grep` nor a log had them whole.
    """
    table = Table(box=None)
    table.add_column("number")
    table.add_column("what is told")
    table.add_row("1", "a word " * 50 + "end")
    console.stdout().print(table)
    with console.training() as (_, say):
        say("a note " * 50 + "end")
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == ["told", "end"]
    assert max(map(len, out.splitlines())) < 400
    assert err == "a note " * 50 + "end\n"


def test_an_epochs_line() -> None:
    row = {
        "epoch": 49, "train_loss": 12.3456, "lr": 1e-4, "temperature": 0.5, "best": True,
        "val": {"top1": 0.4567, "loss": 1.0},
    }  # fmt: skip
    line = epoch_line(row, 3725)
    assert line == "epoch 50: loss 12.346, top-1 45.7%, lr 1.0e-04, τ 0.500, 1:02:05, best so far"
    assert len(line) <= 80
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


def test_the_old_name_of_nproc_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert processes(None, None) == 1
    assert processes(4, None) == 4
    assert capsys.readouterr().err == ""
    assert processes(None, 3) == 3
    assert "--num-workers is called --nproc now; the old name goes with 0.3" in capsys.readouterr().err
    assert __version__ < "0.3", "a promise: the old name goes now"


@pytest.mark.parametrize(
    ("count", "noun", "said"),
    [(0, "image", "0 images"), (1, "image", "1 image"), (2, "class", "2 classes"), (1, "class", "1 class")],
)
def test_one_of_a_thing_and_some(count: int, noun: str, said: str) -> None:
    assert console.some(count, noun) == said
