"""Progress of a run on the screen: where it stands, a line for every epoch, and every note.

The lines come from metrics.jsonl, where the run writes them whichever processes train, so none is lost between two
reports. `tcnn finetune` and `tcnn jobs watch` show it, and so does `tcnn.finetune` in Python and in a notebook.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tcnn.display import display
from tcnn.formatting import duration
from tcnn.training.runs.callbacks import Callbacks, Progress, Report, Say, StopCheck
from tcnn.training.runs.rundir import BASELINE, RunDirectory
from tcnn.wording import in_python


@contextmanager
def run_callbacks(
    report: Report | None, say: Say | None, stop: StopCheck, run: Path, quiet: bool = False
) -> Iterator[Callbacks]:
    """The caller's callbacks; where it gives none, those that show the run in `run`, in the first process alone."""
    if quiet or report is not None or say is not None or os.environ.get("RANK", "0") != "0":
        yield Callbacks(report or Callbacks.report, say or Callbacks.say, stop)
        return
    with shown_progress(run) as (show, tell):
        yield Callbacks(show, lambda line: tell(in_python(line)), stop)


@contextmanager
def shown_progress(run: Path | None = None, quiet: bool = False) -> Iterator[tuple[Report, Say]]:
    """Show a run on stderr: where it stands (step, loss, speed, time left), a line for every epoch, and notes.

    Args:
        run: its directory, whose metrics.jsonl tells what became of every epoch; without it only that they end.
        quiet: show nothing.

    Yields the `report` and `say` callbacks of `finetune`.
    """
    trained = 0
    with display(quiet) as shown:
        epochs = None if run is None or quiet else EpochLog(run, shown.show)

        def report(now: Progress) -> None:
            nonlocal trained
            shown.update(now.percent, headline(now), partial(facts, now))
            if epochs is not None:
                epochs.look(now)
            elif not shown.live and now.phase == "validating" and now.epoch != trained:
                trained = now.epoch
                shown.show(f"epoch {now.epoch} of {now.epochs} trained, validating")

        def say(message: str) -> None:
            if epochs is not None:
                epochs.finish()  # what has ended stands above the note
            shown.show(message)

        try:
            yield report, say
        finally:
            if epochs is not None:
                epochs.finish()


def headline(now: Progress) -> str:
    """Phase, epoch and step of a run as text; a phase without epochs or steps has 0 of them."""
    epoch = f"epoch {now.epoch}/{now.epochs}" if now.epochs else ""
    step = f"step {now.step}/{now.steps}" if now.steps else ""
    phase = "" if now.phase == "training" and epoch else now.phase
    return " ".join(filter(None, (phase, epoch, step)))


def facts(now: Progress, width: int = 80) -> str:
    """What fits into a width: time left, then share done, loss, speed, accuracy, learning rate and temperature."""
    parts = [
        "" if now.eta_seconds is None else f"{duration(now.eta_seconds)} left",
        f"{now.percent:.0f}%",
        "" if now.loss is None else f"loss {now.loss:.3f}",
        "" if now.images_per_second is None else f"{now.images_per_second:.0f} img/s",
        "" if now.top1 is None else f"top-1 {now.top1:.1%}",
        "" if now.lr is None else f"lr {now.lr:.1e}",
        "" if now.temperature is None else f"τ {now.temperature:.3f}",
    ]
    fitting = ""
    for part in filter(None, parts):
        longer = f"{fitting}  {part}" if fitting else part
        if fitting and len(longer) > width:
            break
        fitting = longer
    return fitting


class EpochLog:
    """Shows the epochs of the run in `run`, and of the baseline in it, that end while it is watched, each once."""

    def __init__(self, run: Path, show: Callable[[str], None]) -> None:
        self._own = _Epochs(run, show)
        self._baseline = _Epochs(run / BASELINE, lambda line: show(f"CNN {line}"))
        self._place = (False, 0)

    def look(self, now: Progress) -> None:
        """Show what has ended before `now`."""
        place = (now.of_baseline, now.epoch)
        if place == self._place:
            return
        self._place = place
        if now.epoch >= 1:
            (self._baseline if now.of_baseline else self._own).watch(now.epoch)
        self.finish()

    def finish(self) -> None:
        """Show what has ended; without a report there was no epoch to show."""
        self._own.finish()
        self._baseline.finish()


class _Epochs:
    """Those of one directory."""

    def __init__(self, run: Path, show: Callable[[str], None]) -> None:
        self._run, self._show = run, show
        self._told: int | None = None
        """Epochs that have been shown, or were over before; None until the run reports for the first time."""
        self._since = time.monotonic()

    def watch(self, epoch: int) -> None:
        """Begin with this epoch, from 1, unless it has begun."""
        if self._told is None:
            self._told, self._since = epoch - 1, time.monotonic()

    def finish(self) -> None:
        if self._told is None:
            return
        rows = RunDirectory(self._run).rows("epoch")
        for row in rows[self._told :]:
            seconds, self._since = time.monotonic() - self._since, time.monotonic()
            self._show(epoch_line(row, seconds))
        self._told = max(self._told, len(rows))


def epoch_line(row: Mapping[str, Any], seconds: float) -> str:
    """A row of metrics.jsonl as one line, of at most 80 characters unless gates have a τ of their own."""
    val = row.get("val") or {}
    loss, lr = row.get("train_loss"), row.get("lr")
    parts = [
        "" if loss is None else f"loss {loss:.3f}",
        "" if val.get("top1") is None else f"top-1 {val['top1']:.1%}",
        "" if lr is None else f"lr {lr:.1e}",
        _taus(row.get("temperature"), row.get("gate_temperature")),
        duration(seconds),
        "best so far" if row.get("best") else "",
    ]
    return f"epoch {row['epoch'] + 1}: {', '.join(filter(None, parts))}"


def _taus(position: float | None, gate: float | None) -> str:
    """τ of the positions, and of the gates where it is another one."""
    if position is None:
        return ""
    apart = gate is not None and not math.isclose(gate, position, rel_tol=1e-6)
    return f"τ {position:.3f} (gates {gate:.3f})" if apart else f"τ {position:.3f}"
