"""The directory through which the processes of a run speak with the one that has started them, wherever they are.

order.json     what to do; written before they start
progress.json  where the run stands; replaced by the first process, a few times a second at most
said.jsonl     what a user should know, one line each
stop           exists when the run is to save what it has and end
result.json    the end: what it came to
error-RANK.json                or which of our errors a process has ended with

It lies beside the run, so processes on other hosts see it where they see the run.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tcnn import errors
from tcnn.config import FinetuneConfig
from tcnn.errors import TcnnError
from tcnn.training.runs.progress import Progress, Report

Say = Callable[[str], None]

INTERVAL = 0.4
"""Seconds between two writes of the same phase's progress, and between two looks for `stop`."""


class Order(BaseModel):
    """What every process is told: the arguments of `finetune`, and the directory that relative paths begin in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    data: str
    val: str | None
    config: FinetuneConfig
    out: str
    directory: str
    resume: bool = False
    force: bool = False
    allow_changes: bool = False
    pretrained: bool = True
    weights: str | None = None
    names: dict[str, str] = {}


class Exchange:
    """Both sides of the directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.txt"
        self._progress, self._said, self._stop = path / "progress.json", path / "said.jsonl", path / "stop"
        self._result = path / "result.json"
        # Of the one side: what was passed on already. Of the other: what was told, and when.
        self._offset, self._stamp = 0, (0, 0)
        self._phase, self._written, self._looked, self._asked = "", 0.0, 0.0, False

    # The side of whoever starts the processes.

    def open(self, order: Order) -> None:
        """Begin anew: nothing that an earlier start has left is taken for this one's."""
        self.path.mkdir(parents=True, exist_ok=True)
        for file in (self._progress, self._said, self._stop, self._result, *self.path.glob("error-*.json")):
            file.unlink(missing_ok=True)
        _replace(self.path / "order.json", order.model_dump_json())

    def relay(self, report: Report, say: Say) -> None:
        """Pass on what is new."""
        try:
            stat = self._progress.stat()
            stamp = stat.st_mtime_ns, stat.st_ino
            if stamp != self._stamp:
                report(Progress.model_validate_json(self._progress.read_text(encoding="utf-8")))
                self._stamp = stamp
        except (OSError, ValueError):
            pass  # not there yet
        if not self._said.exists():
            return
        with self._said.open("rb") as handle:
            handle.seek(self._offset)
            for line in handle:
                if not line.endswith(b"\n"):
                    break  # it is still being written
                self._offset += len(line)
                say(str(json.loads(line)))

    def ask_to_stop(self) -> None:
        """Let the run save what it has and end."""
        self._stop.touch()

    def result(self) -> dict[str, Any] | None:
        """What the run came to, if it came to an end."""
        try:
            found: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def error(self) -> TcnnError | None:
        """The error of the lowest rank that has ended with one of ours."""
        for file in sorted(self.path.glob("error-*.json")):
            try:
                told = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            kind = getattr(errors, told["type"], TcnnError)
            error: TcnnError = kind(told["message"])
            return error
        return None

    # The side of the processes.

    def order(self) -> Order:
        """What is to be done."""
        return Order.model_validate_json((self.path / "order.json").read_text(encoding="utf-8"))

    def report(self, now: Progress) -> None:
        """Where the run stands; the first process tells."""
        if now.phase != self._phase or time.monotonic() - self._written > INTERVAL:
            self._phase, self._written = now.phase, time.monotonic()
            _replace(self._progress, now.model_dump_json(exclude_none=True))

    def say(self, text: str) -> None:
        """Something that a user should know."""
        with self._said.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(text) + "\n")

    def stop_asked(self) -> bool:
        """Whether the run is to end."""
        if not self._asked and time.monotonic() - self._looked > INTERVAL:
            self._looked = time.monotonic()
            self._asked = self._stop.exists()
        return self._asked

    def finish(self, result: BaseModel) -> None:
        """The last word of a run that has come to its end."""
        _replace(self._result, result.model_dump_json())

    def fail(self, error: TcnnError, rank: int) -> None:
        """The last word of a process that ends with one of our errors."""
        told = {"type": type(error).__name__, "message": str(error)}
        _replace(self.path / f"error-{rank:05d}.json", json.dumps(told))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
