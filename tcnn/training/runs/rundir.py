"""Run directory: configuration, metrics and checkpoints of a fine-tuning run.

config.json          settings, data, model, versions
metrics.jsonl        one line every few steps ("train") and every epoch ("epoch")
summary.csv          one line per epoch, in timm's columns and both τ
converted.safetensors  the model before its first step, if it was converted on the way, with its verification
best.safetensors     the best epoch's model
last.safetensors     the last epoch's model
resume/              resume points
before-after.json    the models before and after, compared, if that was asked for
baseline/            the run of the CNN beside it, if that was asked for
"""

import contextlib
import csv
import errno
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tcnn.checkpoints.files import checkpoint_file, finite, from_json
from tcnn.config.finetune import RUNTIME
from tcnn.errors import OutputError, RequestError, storage_errors
from tcnn.files import check_output, make_directory, write_atomically

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

TAUS = ("temperature", "gate_temperature")
"""Names of the τ of the positions and of the gates in rows of metrics."""
SPANS = ("spans", "span_mean")
"""Names of the attention spans in rows of metrics."""
COMPARISON = "before-after.json"
"""The comparison of its models before and after."""
FILES = (
    "metrics.jsonl", "summary.csv", "converted.safetensors", "best.safetensors", "last.safetensors",
    COMPARISON, "config.json",
)  # fmt: skip
"""Files that a run writes. config.json marks the directory as a run, so it is removed last."""


_locks: set[int] = set()
"""File descriptors of the directories that this process holds. A forked child, such as one that loads images, closes
them: it would hold the directories as well, and longer than this process lives."""


def _let_go() -> None:
    for lock in _locks:
        os.close(lock)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)

BASELINE = "baseline"
"""The run of the CNN beside it, in that of the T-CNN."""


class RunDirectory:
    """Paths and records of one run directory.

    Args:
        asked: that of the run that it is a part of, with which both are gone on with.
    """

    def __init__(self, path: Path, asked: Path | None = None) -> None:
        self.path: Path = path
        self.asked: Path = asked or path
        self.resume: Path = path / "resume"
        self.metrics: Path = path / "metrics.jsonl"
        self.best: Path = path / "best.safetensors"
        self.last: Path = path / "last.safetensors"
        self.comparison: Path = path / COMPARISON
        self._lock: int | None = None

    @property
    def started(self) -> bool:
        """Whether the directory contains a run."""
        return (self.path / "config.json").is_file()

    def hold(self) -> None:
        """Keep other processes from training in the directory, which is there, until `released` or the process's end.

        Raises `OutputError` if one does. On a file system without locks nobody is kept out.
        """
        if fcntl is None or self._lock is not None:
            return
        try:
            lock = os.open(self.path, os.O_RDONLY)
        except OSError:  # what cannot be looked into is told where it is written to
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise OutputError(
                    f"{self.path}: another process is training in it; wait for its end, or choose another --out"
                ) from error
            return
        self._lock = lock
        _locks.add(lock)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Context at whose end others may train in the directory again."""
        try:
            yield
        finally:
            if self._lock is not None:
                _locks.discard(self._lock)
                os.close(self._lock)
                self._lock = None

    def check(self, force: bool, needed: Iterable[str | Path] = ()) -> None:
        """Raise `OutputError` if a new run cannot be created here; call it before any work is done.

        `needed`: models by their names, of which none may lie in a run that is replaced.
        """
        try:
            exists = self.path.exists()
        except OSError as error:  # a name that is too long
            reason = (error.strerror or str(error)).lower()
            raise OutputError(f"{self.path}: cannot be used as a directory ({reason}); choose another --out") from error
        if exists and not self.path.is_dir():
            raise OutputError(f"{self.path}: expected a directory for the run, found a file; choose another --out")
        if self.path.is_dir() and not self._is_empty():
            if not self.started:
                raise OutputError(
                    f"{self.path}: holds files that are no run; choose another --out, or an empty directory"
                )
            if not force:
                raise OutputError(
                    f"{self.path}: holds a run already; go on with it (--resume), replace it (--force), "
                    "or choose another --out"
                )
            for name in needed:
                if lies_in(name, self.path):
                    raise OutputError(
                        f"{self.path}: cannot be replaced, as the new run needs {name}, which lies in it; choose "
                        "another --out"
                    )
        missing = self.path / "config.json"
        while not missing.parent.exists():
            missing = missing.parent
        if not missing.parent.is_dir():
            raise OutputError(f"{self.path}: cannot be made, as {missing.parent} is a file; choose another --out")
        check_output(missing, force=True)

    def _is_empty(self) -> bool:
        """Whether the directory contains nothing but what a process killed before writing config.json leaves."""
        left = {path.name for path in self.path.iterdir()} - {path.name for path in self._partial_files()}
        return left <= {"resume"} and not (self.resume.exists() and any(self.resume.iterdir()))

    def _partial_files(self) -> list[Path]:
        """Partial files of a killed process: our temporary names, or those of safetensors' writer."""
        patterns = (".tmp??????", *(f".{name}.*.tmp" for name in FILES))
        return [stray for pattern in patterns for stray in self.path.glob(pattern)]

    def remove_partial_files(self) -> None:
        """Remove partial files of a killed process, and create the directory of resume points."""
        for stray in self._partial_files():
            stray.unlink(missing_ok=True)
        make_directory(self.resume)

    def create(self, record: Mapping[str, Any], force: bool) -> None:
        """Create a new run, replacing an existing one if `force`; raises as `check` does."""
        self.check(force)
        make_directory(self.path)
        self.hold()
        self.clear()
        make_directory(self.resume)
        self.write_record(record)

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write config.json; raises `StorageError`."""
        self._write("config.json", json.dumps(finite(record), indent=2, default=str, allow_nan=False) + "\n")

    def clear(self) -> None:
        """Remove the files of the run and nothing else."""
        baseline = RunDirectory(self.path / BASELINE)
        if baseline.started:
            baseline.clear()
            with contextlib.suppress(OSError):  # somebody keeps something else in it
                baseline.path.rmdir()
        self.remove_partial_files()
        patterns = ("step-*.safetensors", ".step-*.tmp", ".tmp??????")
        for pattern in (*(f"resume/{own}" for own in patterns), "tensorboard/events.out.tfevents.*", *FILES):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)
        for folder in ("resume", "tensorboard"):
            with contextlib.suppress(OSError):  # it is not there, or somebody keeps something else in it
                (self.path / folder).rmdir()

    def record(self) -> dict[str, Any]:
        """Read config.json, as it was written last; raises `RequestError`."""
        try:
            return dict(from_json((self.path / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise RequestError(f"{self.path}/config.json: not readable, so the run cannot be resumed") from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl; raises `StorageError`."""
        with storage_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as handle:
            # What a full disk or a kill cut off gets a line of its own, so that it costs no other.
            handle.write(("\n" if _ends_mid_line(self.metrics) else "") + _line(row))

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Read the lines of metrics.jsonl, all or of one kind; an incomplete line is skipped."""
        return [row for row in read_metrics(self.metrics) if kind in (None, row.get("kind"))]

    def rewind(self, updates: int, epoch: int) -> None:
        """Remove the metrics after a resume point, since they will be measured again."""
        kept = [
            row
            for row in self.rows()
            if (row["updates"] <= updates if row.get("kind") == "train" else row.get("epoch", 0) < epoch)
        ]
        self._write("metrics.jsonl", "".join(map(_line, kept)))

    def write_summary(self) -> None:
        """Rewrite summary.csv from the epochs in metrics.jsonl; raises `StorageError`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr", *TAUS])
        for row in self.rows("epoch"):
            val = row.get("val") or {}
            top5 = val.get("top5")
            writer.writerow(
                [
                    row["epoch"], row["train_loss"], val.get("loss"), 100 * val.get("top1", 0.0),
                    None if top5 is None else 100 * top5, row["lr"], *(row.get(tau) for tau in TAUS),
                ]
            )  # fmt: skip
        self._write("summary.csv", text.getvalue())

    def _write(self, name: str, text: str) -> None:
        write_atomically(self.path / name, text, force=True)


def lies_in(name: str | Path, directory: Path) -> bool:
    """Whether a model, by its name, is a file or directory in a directory, or that directory itself."""
    places = (Path(str(name).removeprefix("local-dir:")), checkpoint_file(name))
    inside = directory.resolve()
    return any(place is not None and place.exists() and place.resolve().is_relative_to(inside) for place in places)


def _ends_mid_line(path: Path) -> bool:
    """Whether the last line of a file is incomplete."""
    with path.open("rb") as handle:
        if handle.seek(0, 2) == 0:
            return False
        handle.seek(-1, 2)
        return handle.read() != b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a metrics file; a partial line of a killed process is skipped.

    Those of older releases may hold `Infinity` and `NaN`.
    """
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row | {key: _spans(row[key]) for key in SPANS if key in row})
    return rows


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(finite(row), allow_nan=False) + "\n"


def _spans(kept: object) -> object:
    """Spans as they were: that of a head with a strength of 0 is infinite, for which JSON has null."""
    if isinstance(kept, dict):
        return {name: _spans(one) for name, one in kept.items()}
    if isinstance(kept, list):
        return [_spans(one) for one in kept]
    return math.inf if kept is None else kept


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings that changed and affect the result, as `name: before → after`."""
    keys = sorted((before.keys() | after.keys()) - RUNTIME)
    return [f"{key}: {before.get(key)!r} → {after.get(key)!r}" for key in keys if before.get(key) != after.get(key)]
