"""The task of an evaluation: models side by side on a data set."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from tcnn.checkpoints.opening import open_model
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.comparing.report import Comparison
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter, artifact_of
from tcnn_jobs.child.naming import unplaced
from tcnn_jobs.model.jobs import Progress, Result
from tcnn_jobs.model.requests import EvaluateRequest, models_of


def measure(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
    """Evaluate one model, or several side by side."""
    request = EvaluateRequest(**assignment.request)
    references = [request, *request.against]
    paths, own, models = assignment.paths, {}, []
    for (prefix, _), reference in zip(models_of(request), references, strict=True):
        weights = paths.get(f"{prefix}weights")
        if weights is not None:
            own[weights] = reference.label
        models.append(weights or paths.get(prefix.removesuffix(".") or "source") or reference.label)

    def report(done: int, total: int, what: str) -> None:
        reporter.progress(Progress(phase="evaluating", step=done, steps=total, percent=100 * done / max(1, total)))

    data = assignment.paths.get("dataset", request.dataset)
    comparison = compare(models, data, request.settings, report, request.dataset, partial(_opened, own))
    labels = dict(zip(models, (reference.measured_as for reference in references), strict=True))
    comparison.trained_on = [labels[name] for name in comparison.trained_on]
    for row, reference in zip(comparison.rows, _repeated(references, len(comparison.rows)), strict=True):
        row.model = reference.measured_as  # not where it lies on this server
    for change in comparison.changes:
        change.of, change.over = labels[change.of], labels[change.over]
    comparison.data = request.dataset
    comparison = Comparison.model_validate(unplaced(comparison.model_dump(mode="json"), assignment))
    report_file = directory.path / "evaluation.json"
    report_file.write_text(comparison.model_dump_json(indent=2), encoding="utf-8")
    notes = seen_before(comparison)
    metrics = comparison.headline().model_dump(mode="json")
    return Result(files=(artifact_of(assignment, report_file),), metrics=metrics, notes=notes)


def seen_before(comparison: Comparison) -> tuple[str, ...]:
    """Notes on leakage: which models were trained on the images they were measured on."""
    notes = []
    if comparison.held_out:
        notes.append(
            f"Measured on the {comparison.images:,} images that training held out of {comparison.data}, and no others."
        )
    notes += [
        f"{model} was trained on these images: its accuracy says nothing about images that it has not seen."
        for model in comparison.trained_on
    ]
    return tuple(notes)


def _opened(own: Mapping[str, str], name: str) -> nn.Module:
    """A model; of `own`, files of weights, the one that they are weights of."""
    return open_model(own[name], Path(name)) if name in own else open_model(name)


def _repeated(references: list[Any], rows: int) -> list[Any]:
    """One reference per row of a comparison, whose rows are sorted by model, then by size."""
    return [reference for reference in references for _ in range(rows // len(references))]
