"""Fine-tuning in a job's process: a run that goes on from the attempt before, whose epochs are told as they end."""

import contextlib
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

from tcnn.analysis.reading.rundirs import metadata
from tcnn.checkpoints import checkpoint
from tcnn.files import link
from tcnn.training.before_after import FILE as COMPARED
from tcnn.training.launch.exchange import RunRequest
from tcnn.training.launch.launcher import finetune_on
from tcnn.training.preparing.converted import FILE as CONVERTED
from tcnn.training.runs.callbacks import Callbacks
from tcnn.training.runs.callbacks import Progress as TrainingProgress
from tcnn.training.runs.rundir import BASELINE, RunDirectory
from tcnn.training.single_run import FinetuneResult
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter, artifact_of, public, unplaced
from tcnn_jobs.errors import for_requests
from tcnn_jobs.model.jobs import Progress, Result
from tcnn_jobs.model.requests import FinetuneRequest, Training, as_stored

log = logging.getLogger("tcnn.tasks")


def train(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
    """Fine-tune a checkpoint or a timm model."""
    request = as_stored(FinetuneRequest, assignment.request)
    source = assignment.paths.get("source") or request.model or ""
    result = finetune(
        assignment, directory, reporter, source, request, pretrained=request.pretrained, weights=own_weights(assignment)
    )
    converted = directory.run / CONVERTED
    verification = metadata(converted).get("verification") if converted.is_file() else None
    return trained(assignment, directory, reporter, result, verification)


def own_weights(assignment: Assignment) -> Path | None:
    """The CNN's own weights, if they were uploaded."""
    return Path(assignment.paths["weights"]) if "weights" in assignment.paths else None


def finetune(
    assignment: Assignment, directory: AttemptDirectory, reporter: Reporter, source: str, training: Training,
    pretrained: bool = True, weights: Path | None = None,
) -> FinetuneResult:  # fmt: skip
    """Fine-tune where the job is placed, going on from the previous attempt; the owner hears of every epoch."""
    _inherit_run(assignment.paths.get("previous"), directory.run)
    epochs_told, phase = assignment.epochs_told, ""

    def tell_epochs() -> None:
        nonlocal epochs_told
        epochs_told = _tell_epochs(reporter, directory.run, epochs_told)

    def report(now: TrainingProgress) -> None:
        nonlocal phase
        reporter.progress(Progress(**now.model_dump()))
        if now.phase != phase:  # an epoch may have been validated and written down
            phase = now.phase
            tell_epochs()

    def say(message: str) -> None:
        tell_epochs()  # what is said comes after them: after the last one, that the CNN is trained
        log.info("%s", public(message, assignment))
        reporter.event("message", text=public(message, assignment))

    # As the request has them: another worker, which goes on with the run, has its files elsewhere.
    names = {"data": training.dataset} | ({"val": training.val} if training.val else {})
    if isinstance(training, FinetuneRequest):
        names["model"] = training.label
    run = RunRequest(
        model=str(source), data=assignment.paths.get("dataset", training.dataset),
        val=assignment.paths.get("val", training.val) if training.val else None,
        config=training.settings, out=str(directory.run), resume=True, pretrained=pretrained,
        weights=None if weights is None else str(weights), names=names,
        baseline=training.baseline, compare=True,
    )  # fmt: skip
    result = finetune_on(assignment.placement, run, Callbacks(report, say), sys.stdout.buffer)
    tell_epochs()
    return result


def _tell_epochs(reporter: Reporter, run: Path, told: int) -> int:
    """Tell the epochs that a run has written down since so many were told; how many are told now."""
    rows = RunDirectory(run).rows("epoch")
    for row in rows[told:]:
        facts = {key: row.get(key) for key in ("epoch", "train_loss", "lr", "temperature", "val", "gate_mean")}
        reporter.event("epoch", **facts)
    return max(told, len(rows))  # fewer after a resume: they are trained again, and were told


def _inherit_run(previous: str | None, run: Path) -> None:
    """Inherit the run directory of the previous attempt, so that training resumes from its last resume point.

    Checkpoints are never changed in place, so they are linked; the records are appended to, so they are copied: the
    attempt before may still be running on a machine that was thought dead.
    """
    if previous is None or run.exists():
        return
    old, fresh = Path(previous) / "run", run.with_name(".run.inherited")
    if not (old / "config.json").is_file():
        return
    shutil.rmtree(fresh, ignore_errors=True)
    _inherit_files(old, fresh)
    if (old / BASELINE / "config.json").is_file():
        _inherit_files(old / BASELINE, fresh / BASELINE)
    fresh.rename(run)


def _inherit_files(old: Path, fresh: Path) -> None:
    (fresh / "resume").mkdir(parents=True)
    for file in (*old.iterdir(), *(old / "resume").glob("step-*.safetensors")):
        if file.name.startswith(".") or not file.is_file():
            continue
        with contextlib.suppress(FileNotFoundError):  # an old resume point that was just replaced by a newer one
            if file.suffix == ".safetensors":
                link(file, fresh / file.relative_to(old))
            else:
                shutil.copy2(file, fresh / file.relative_to(old))


def trained(
    assignment: Assignment, directory: AttemptDirectory, reporter: Reporter, trained: FinetuneResult,
    verification: dict[str, Any] | None = None,
) -> Result:  # fmt: skip
    """The result of fine-tuning: files flushed and hashed, after the checkpoint has been loaded as a user would."""
    reporter.progress(Progress(phase="publishing", percent=100.0))
    run = RunDirectory(directory.run)
    checkpoint.load(run.best)
    best = artifact_of(assignment, run.best)
    others = (
        run.last,
        run.path / CONVERTED if (run.path / CONVERTED).is_file() else directory.converted,
        run.metrics,
        run.path / "summary.csv",
        run.path / "config.json",
        run.path / COMPARED,
    )
    files = (best, *(artifact_of(assignment, file) for file in others if file.is_file()))
    cnn = RunDirectory(directory.run / BASELINE).best
    if cnn.is_file():
        files += (artifact_of(assignment, cnn, "baseline.safetensors"),)
    told = unplaced(trained.model_dump(mode="json", exclude={"out", "best", "last", "model"}), assignment)
    notes = tuple(map(for_requests, told.pop("notes")))
    return Result(checkpoint=best, files=files, verification=verification, metrics=told, notes=notes)
