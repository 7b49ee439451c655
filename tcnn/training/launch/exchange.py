"""Placement of a run's processes, and the directory by which they and their launcher exchange files, on any host.

request.json   the request; written before the processes start
progress.json  the progress; replaced by the first process, a few times a second at most
said.jsonl     notes for the user, one line each
stop           exists when the run is to save its state and end
result.json    the result
error-RANK.json                or the `TcnnError` with which a process ended

It lies beside the run, so processes on other hosts see it where they see the run.
"""

import json
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tcnn import errors
from tcnn.config import FinetuneConfig
from tcnn.config.base import Frozen
from tcnn.config.values import NEVER
from tcnn.errors import TcnnError
from tcnn.training.runs.callbacks import Callbacks, Progress

REQUEST = "request.json"
INTERVAL = 0.4
"""Seconds between two writes of the same phase's progress, and between two checks for `stop`."""


class Placement(Frozen):
    """Number of processes of a run, and what starts them. Results depend on it by rounding only."""

    engine: Literal["local", "ray"] = Field(
        default="local", description="local: this host, under torchrun if there are several; ray: a Ray cluster."
    )
    num_workers: int = Field(default=1, ge=1, le=4096, description="Processes that share the training, a GPU each.")
    address: str | None = Field(default=None, description="HOST:PORT of the Ray cluster.")
    max_failures: int = Field(
        default=3, ge=0, le=NEVER, description="Restarts from the last resume point that Ray makes itself."
    )
    grace: float = Field(
        default=30.0, ge=0, description="Seconds that processes have to save a resume point and leave."
    )

    @model_validator(mode="after")
    def _consistent(self) -> "Placement":
        if (self.engine == "ray") != (self.address is not None):
            found = "no address" if self.address is None else f"{self.engine} and the address {self.address}"
            raise ValueError(f"engine: expected ray and the cluster's address, or neither, found {found}")
        return self


def batch_size_problem(config: FinetuneConfig, num_workers: int) -> str | None:
    """Why a batch cannot be divided equally among so many processes, in one line; None if it can."""
    pairs = num_workers > 1 and bool(config.mixup or config.cutmix)
    divisor = num_workers * 2 if pairs else num_workers
    if config.batch_size % divisor == 0:
        return None
    even = ", an even number for each as mixup takes pairs" if pairs else ""
    nearest = max(1, config.batch_size // divisor) * divisor
    return (
        f"batch_size {config.batch_size} cannot be shared equally among {num_workers} processes{even}; "
        f"give {nearest}, or another number of processes"
    )


class RunRequest(BaseModel):
    """Request of a run in other processes: the arguments of `finetune` and the working directory."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    model: str
    data: str
    val: str | None = None
    config: FinetuneConfig = FinetuneConfig()
    given: tuple[str, ...] = ()
    """Names of the settings that are refused if they have no effect on the model; others may stand."""
    out: str = "run"
    directory: str = "."
    resume: bool = False
    force: bool = False
    allow_changes: bool = False
    pretrained: bool = True
    weights: str | None = None
    names: dict[str, str] = {}
    module: str | None = None
    """What builds the network of the model, if timm does not know it (`own_network`)."""
    baseline: bool = False
    compare: bool = False


class Exchange:
    """The exchange directory, with the methods of both sides."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log.txt"
        self._progress, self._said, self._stop = path / "progress.json", path / "said.jsonl", path / "stop"
        self._result = path / "result.json"
        # Of the one side: what was passed on already. Of the other: what was told, and when.
        self._offset, self._stamp = 0, (0, 0)
        self._phase, self._written, self._looked, self._asked = "", 0.0, 0.0, False

    # The side of whoever starts the processes.

    def open(self, request: RunRequest) -> None:
        """Create the directory, without files of an earlier start, and write the request."""
        self.path.mkdir(parents=True, exist_ok=True)
        for file in (self._progress, self._said, self._stop, self._result, *self.path.glob("error-*.json")):
            file.unlink(missing_ok=True)
        _replace(self.path / REQUEST, request.model_dump_json())

    def relay(self, callbacks: Callbacks) -> None:
        """Call `report` and `say` with new progress and notes."""
        try:
            stat = self._progress.stat()
            stamp = stat.st_mtime_ns, stat.st_ino
            if stamp != self._stamp:
                callbacks.report(Progress.model_validate_json(self._progress.read_text(encoding="utf-8")))
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
                callbacks.say(str(json.loads(line)))

    def ask_to_stop(self) -> None:
        """Request that the run saves its state and ends."""
        self._stop.touch()

    def result(self) -> dict[str, Any] | None:
        """The result of the run, or None."""
        try:
            found: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def error(self) -> TcnnError | None:
        """The `TcnnError` of the lowest rank that ended with one, or None."""
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

    def request(self) -> RunRequest:
        """Read the request."""
        return RunRequest.model_validate_json((self.path / REQUEST).read_text(encoding="utf-8"))

    def report(self, now: Progress) -> None:
        """Write the progress; called by the first process."""
        if now.phase != self._phase or time.monotonic() - self._written > INTERVAL:
            self._phase, self._written = now.phase, time.monotonic()
            _replace(self._progress, now.model_dump_json(exclude_none=True))

    def say(self, text: str) -> None:
        """Append a note for the user."""
        with self._said.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(text) + "\n")

    def stop_asked(self) -> bool:
        """Whether a stop was requested."""
        if not self._asked and time.monotonic() - self._looked > INTERVAL:
            self._looked = time.monotonic()
            self._asked = self._stop.exists()
        return self._asked

    def finish(self, result: BaseModel) -> None:
        """Write the result."""
        _replace(self._result, result.model_dump_json())

    def fail(self, error: TcnnError, rank: int) -> None:
        """Write the `TcnnError` with which a process ends."""
        told = {"type": type(error).__name__, "message": str(error)}
        _replace(self.path / f"error-{rank:05d}.json", json.dumps(told))


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
