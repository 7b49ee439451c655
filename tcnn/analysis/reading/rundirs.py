"""Read a run directory (configuration, metrics, checkpoint metadata) without torch; note what is missing."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open

from tcnn.analysis.reading.evaluations import EvaluationFile, read_evaluation
from tcnn.analysis.records import Inspection
from tcnn.checkpoints.files import CHECKPOINTS, checkpoint_file, from_json
from tcnn.errors import RequestError
from tcnn.formatting import are, some
from tcnn.training.runs.rundir import read_metrics


class Validation(BaseModel):
    """Validation results of an epoch; None where unknown or not finite."""

    top1: float | None = None
    top5: float | None = None
    loss: float | None = None


class Epoch(BaseModel):
    """The line of one epoch in metrics.jsonl."""

    epoch: int
    """Epoch, from 0."""
    val: Validation = Validation()
    train_loss: float | None = None
    lr: float | None = None
    temperature: float | None = None
    """τ of the positions."""
    gate_temperature: float | None = None
    gates: dict[str, list[float]] | None = None
    spans: dict[str, list[float]] | None = None
    best: bool | None = None
    """Whether its model became that of best.safetensors, which before annealing is over any later one does."""


@dataclass
class Run:
    """Contents of a run directory."""

    path: Path
    record: dict[str, Any] | None = None
    """Contents of config.json."""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: Path | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """Metadata of the checkpoint, with JSON sections decoded."""
    evaluations: list[EvaluationFile] = field(default_factory=list)
    inspection: Inspection | None = None
    missing: list[str] = field(default_factory=list)
    """What is missing, and why."""
    called: str | None = None
    """What the run is called, if not as its directory."""

    def rename(self, names: Mapping[str, str]) -> None:
        """Call the run, data sets and models by their names, where they have ids of a service."""
        self.called = names.get(self.path.resolve().name)
        if self.record is not None:
            words = {key: value for key, value in self.record.items() if isinstance(value, str)}
            self.record |= {key: names.get(value, value) for key, value in words.items()}
        self.evaluations = [each.renamed(names) for each in self.evaluations]

    @property
    def only_measured(self) -> bool:
        """Whether models were evaluated here and nothing was converted or trained."""
        return bool(self.evaluations) and self.record is None and not self.metrics and self.checkpoint is None


def read_run(path: Path) -> Run:
    """Read everything that a run, or a job of the service, has written to a directory.

    Missing, partial or unreadable files are noted, never raised; only a directory without any file of a run raises
    `RequestError`.
    """
    if not path.is_dir():
        raise RequestError(f"{path}: expected a run's directory, found {'a file' if path.exists() else 'nothing'}")
    inner = path / "run" if (path / "run").is_dir() and not (path / "metrics.jsonl").exists() else path
    run = Run(path)
    run.record = _json(inner / "config.json", run.missing, "which settings the run had is not known")
    _metrics(inner / "metrics.jsonl", run)
    _end(inner / "resume", run)
    places = dict.fromkeys((inner, path))
    run.checkpoint = next((p / name for name in CHECKPOINTS for p in places if (p / name).is_file()), None)
    if run.checkpoint is None:
        run.missing.append("no checkpoint: what was converted, and how well, is not known")
    else:
        try:
            run.metadata = metadata(run.checkpoint)
        except RequestError as error:
            run.missing.append(str(error))
    for file in (file for place in places for file in sorted(place.glob("evaluation*.json"))):
        try:
            run.evaluations.append(read_evaluation(file))
        except RequestError as error:
            run.missing.append(str(error))
    for file in (place / name for place in places for name in ("inspect.json", "inspection/inspect.json")):
        if file.is_file() and run.inspection is None:
            _inspection(file, run)
    if run.only_measured:
        run.missing = [line for line in run.missing if not line.startswith("no ")]  # it was not to be there
    if run.record is None and not (run.metrics or run.checkpoint or run.evaluations):
        raise RequestError(
            f"{path}: expected a run's directory (config.json, metrics.jsonl, best.safetensors), found nothing of it"
        )
    return run


def _metrics(file: Path, run: Run) -> None:
    if not file.is_file():
        run.missing.append("no metrics.jsonl: there are no curves")
        return
    found = read_metrics(file)
    lines = sum(1 for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip())
    run.metrics = [row for row in found if _sound(row)]
    cut, odd = lines - len(found), len(found) - len(run.metrics)
    if cut:
        run.missing.append(f"metrics.jsonl: {cut} of {some(lines, 'line')} {are(cut)} cut off or no JSON; left out")
    if odd:
        run.missing.append(
            f"metrics.jsonl: {odd} of {some(lines, 'line')} {are(odd)} not as tcnn writes them; left out"
        )
    if not any(row.get("kind") == "epoch" for row in run.metrics):
        run.missing.append("metrics.jsonl: no epoch has ended yet, so there are no curves")


def _end(points: Path, run: Run) -> None:
    """Note if the newest resume point is that of a run which was stopped, or still trains."""
    newest = max(points.glob("step-*.safetensors"), default=None)
    if newest is None:
        return
    with suppress(RequestError):
        position = metadata(newest).get("position")
        if isinstance(position, dict) and position.get("finished") is False:
            run.missing.append("the run has not ended: what is told of it is as far as it has come")


def _sound(row: dict[str, Any]) -> bool:
    if row.get("kind") != "epoch":
        return True
    try:
        Epoch.model_validate(row)
    except ValidationError:
        return False
    return True


def _inspection(file: Path, run: Run) -> None:
    try:
        run.inspection = Inspection.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        run.missing.append(f"{file.name}: not what `tcnn inspect` writes ({first}); left out")


def _json(file: Path, missing: list[str], otherwise: str) -> dict[str, Any] | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing.append(f"no {file.name}: {otherwise}")
    except (OSError, ValueError):
        missing.append(f"{file.name}: not readable; {otherwise}")
    else:
        if isinstance(content, dict):
            return content
        missing.append(f"{file.name}: not an object; {otherwise}")
    return None


def metadata(file: Path) -> dict[str, Any]:
    """Read the metadata of a safetensors file, with its JSON sections decoded; raises `RequestError` with one line.

    Only the head of the file is read, and its length compared: nothing is checked against the digest, for which all of
    the file would have to be read.
    """
    try:
        with safe_open(file, framework="numpy") as handle:
            return decoded(handle.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise RequestError(f"{file.name}: not a whole safetensors file; what was converted is not known") from error


def decoded(raw: Mapping[Any, Any]) -> dict[str, Any]:
    """The metadata of a safetensors file, strings all, with their JSON sections decoded."""
    return {str(key): _section(value) for key, value in raw.items()}


def _section(value: Any) -> Any:
    try:
        found = from_json(value)
    except (TypeError, ValueError):
        return value
    return found if isinstance(found, dict | list) else value


def checkpoint_of(name: str) -> str:
    """The best checkpoint of a run directory; any other name unchanged."""
    folder = Path(name)
    if not folder.is_dir() or (folder / "model.safetensors").is_file():
        return name
    return str(checkpoint_file(folder) or name)


def metrics_beside(checkpoint: str) -> list[dict[str, Any]]:
    """The metrics of the run that a checkpoint belongs to, if any."""
    return read_metrics(Path(checkpoint).parent / "metrics.jsonl")
