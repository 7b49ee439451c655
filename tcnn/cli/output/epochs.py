"""One line for every epoch of a run: its loss, accuracy, rate, τ and time, and whether it is the best so far.

The lines come from metrics.jsonl, where the run writes them whichever processes train, so none is lost between two
reports.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcnn.cli.output.console import duration

if TYPE_CHECKING:
    from tcnn.training.runs.callbacks import Progress


class EpochLog:
    """Shows the epochs of the run in `run`, and of the baseline in it, that end while it is watched, each once."""

    def __init__(self, run: Path, show: Callable[[str], None]) -> None:
        from tcnn.training.runs.rundir import BASELINE

        self._own = _Epochs(run, show)
        self._baseline = _Epochs(run / BASELINE, lambda line: show(f"CNN {line}"))
        self._place = (False, 0)

    def look(self, now: "Progress") -> None:
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
        from tcnn.training.runs.rundir import RunDirectory

        rows = RunDirectory(self._run).rows("epoch")
        for row in rows[self._told :]:
            seconds, self._since = time.monotonic() - self._since, time.monotonic()
            self._show(epoch_line(row, seconds))
        self._told = max(self._told, len(rows))


def epoch_line(row: Mapping[str, Any], seconds: float) -> str:
    """A row of metrics.jsonl as one line of at most 80 characters."""
    val = row.get("val") or {}
    loss, lr, temperature = row.get("train_loss"), row.get("lr"), row.get("temperature")
    parts = [
        "" if loss is None else f"loss {loss:.3f}",
        "" if val.get("top1") is None else f"top-1 {val['top1']:.1%}",
        "" if lr is None else f"lr {lr:.1e}",
        "" if temperature is None else f"τ {temperature:.3f}",
        duration(seconds),
        "best so far" if row.get("best") else "",
    ]
    return f"epoch {row['epoch'] + 1}: {', '.join(filter(None, parts))}"
