"""A run's directory: what it was asked to do, what it measured, and its checkpoints.

config.json          settings, data, model, versions
metrics.jsonl        one line every few steps ("train") and every epoch ("epoch")
summary.csv          one line an epoch, in timm's columns
best.safetensors     the best epoch's model
last.safetensors     the last epoch's model
resume/              resume points
"""

import csv
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcnn.config.finetune import RUNTIME
from tcnn.errors import OutputError, RequestError
from tcnn.files import check_output, make_directory, replacing, storage_errors


class RunDirectory:
    """Paths and records of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.resume = path / "resume"
        self.metrics = path / "metrics.jsonl"
        self.best = path / "best.safetensors"
        self.last = path / "last.safetensors"

    @property
    def started(self) -> bool:
        """Whether a run lives here."""
        return (self.path / "config.json").is_file()

    def check(self, force: bool) -> None:
        """Raise `OutputError` if a fresh run cannot live here; call it before any work is done."""
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"{self.path}: expected a directory for the run, found a file; choose another --out")
        if self.path.is_dir() and any(self.path.iterdir()):
            if not self.started:
                raise OutputError(
                    f"{self.path}: holds files that are no run; choose another --out, or an empty directory"
                )
            if not force:
                raise OutputError(
                    f"{self.path}: holds a run already; go on with it (--resume), replace it (--force), "
                    "or choose another --out"
                )
        make_directory(self.path)
        check_output(self.path / "config.json", force=True)

    def create(self, record: Mapping[str, Any], force: bool) -> None:
        """Begin a fresh run, in place of the one that lives here if `force`; raises as `check` does."""
        self.check(force)
        self.clear()
        make_directory(self.resume)
        self._write("config.json", json.dumps(record, indent=2, default=str) + "\n")

    def clear(self) -> None:
        """Remove a run's own files and nothing else."""
        for name in ("config.json", "metrics.jsonl", "summary.csv", "best.safetensors", "last.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        for folder in ("resume", "tensorboard"):
            shutil.rmtree(self.path / folder, ignore_errors=True)

    def record(self) -> dict[str, Any]:
        """What `create` wrote; raises `RequestError`."""
        try:
            content = json.loads((self.path / "config.json").read_text(encoding="utf-8"))
            return dict(content)
        except (OSError, ValueError) as error:
            raise RequestError(f"{self.path}/config.json: not readable, so the run cannot be resumed") from error

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line to metrics.jsonl; raises `StorageError`."""
        with storage_errors(self.metrics), self.metrics.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")

    def rows(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, all or of one kind; a line that was cut off in the middle is left out."""
        return [row for row in read_metrics(self.metrics) if kind in (None, row.get("kind"))]

    def rewind(self, updates: int, epoch: int) -> None:
        """Forget what was measured after the resume point, for it will be measured again."""
        kept = [
            row
            for row in self.rows()
            if (row["updates"] <= updates if row.get("kind") == "train" else row.get("epoch", 0) < epoch)
        ]
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def summarise(self) -> None:
        """Write summary.csv anew from the epochs that metrics.jsonl holds; raises `StorageError`."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["epoch", "train_loss", "eval_loss", "eval_top1", "eval_top5", "lr", "temperature"])
        for row in self.rows("epoch"):
            val = row.get("val") or {}
            top5 = val.get("top5")
            writer.writerow(
                [
                    row["epoch"], row["train_loss"], val.get("loss"), 100 * val.get("top1", 0.0),
                    None if top5 is None else 100 * top5, row["lr"], row.get("temperature"),
                ]
            )  # fmt: skip
        self._write("summary.csv", text.getvalue())

    def _write(self, name: str, text: str) -> None:
        with replacing(self.path / name, force=True) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; what a killed process left half-written is passed over."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings that changed and matter, as `name: was → is`."""
    keys = sorted((before.keys() | after.keys()) - RUNTIME)
    return [f"{key}: {before.get(key)!r} → {after.get(key)!r}" for key in keys if before.get(key) != after.get(key)]
