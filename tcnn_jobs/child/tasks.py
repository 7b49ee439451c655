"""The tasks: one function per kind of job, which calls the library. Only this and `training` load torch."""

import contextlib
import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tcnn.analysis.images import read_pictures
from tcnn.checkpoints.opening import open_model
from tcnn.errors import RequestError
from tcnn.evaluation.comparing.comparison import compare
from tcnn.evaluation.comparing.report import Comparison
from tcnn.files import file_digest, link
from tcnn.formatting import plural
from tcnn.workflows.pipeline import STEPS, ConversionResult, convert_to_file
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Reporter, artifact_of, unplaced
from tcnn_jobs.child.training import finetune, own_weights, train, trained
from tcnn_jobs.model.jobs import Kind, Progress, Result
from tcnn_jobs.model.requests import EvaluateRequest, TransformRequest, as_stored, models_of

log = logging.getLogger("tcnn.tasks")

CONVERSION = Path("conversion.json")
"""What the conversion of a job measured, beside the converted file."""
VERIFIED_ON = 8
"""Images of the data set on which a model is compared with its source."""


def run(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
    """Run a job in the working directory, which is the attempt's, and return its result. Raises what tcnn raises."""
    result = TASKS[assignment.kind](assignment, directory, reporter)
    reporter.progress(Progress(phase="done", percent=100.0))
    return result


def transform(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
    """Convert and verify a timm model; fine-tune it if asked to."""
    request = as_stored(TransformRequest, assignment.request)
    converted = _inherited_conversion(assignment) or _convert(request, assignment, directory, reporter)
    verification = None if converted.verification is None else converted.verification.model_dump(mode="json")
    if request.finetune is None:
        file = artifact_of(assignment, directory.converted)
        return Result(checkpoint=file, files=(file,), verification=verification, metrics=_sizes(converted))
    result = finetune(assignment, directory, reporter, str(directory.converted), request.finetune)
    return trained(assignment, directory, reporter, result, verification)


def _convert(
    request: TransformRequest, assignment: Assignment, directory: AttemptDirectory, reporter: Reporter
) -> ConversionResult:
    done = 0
    folder = Path(assignment.paths.get("dataset", ""))
    # Where there are images the model is compared with its source on these, and drift is stated on them.
    images = partial(_some_images, folder) if request.finetune is not None and folder.is_dir() else None

    def step(name: str) -> None:
        nonlocal done
        reporter.progress(Progress(phase="converting", step=done, steps=STEPS, percent=100 * done / STEPS))
        done += 1
        log.info("converting: %s", name)

    converted = convert_to_file(
        request.model, directory.converted, request.conversion, pretrained=request.pretrained,
        weights=own_weights(assignment), num_classes=request.num_classes, force=True, progress=step, images=images,
    )  # fmt: skip
    CONVERSION.write_text(converted.model_dump_json(), encoding="utf-8")
    checks = converted.verification
    reporter.event("converted", layers=len(converted.conversion.layers), verified=checks is not None and checks.passed)
    return converted


def _some_images(folder: Path, model: nn.Module) -> Tensor | None:
    """Up to `VERIFIED_ON` images of a data set, (B, C, H, W), normalised for the model; None if none can be read."""
    if not folder.name:
        return None
    with contextlib.suppress(RequestError):
        found = read_pictures(folder, model, limit=VERIFIED_ON).tensors
        return found if len(found) else None
    return None


def _inherited_conversion(assignment: Assignment) -> ConversionResult | None:
    """The finished conversion of the previous attempt, linked into this one; None if missing or damaged."""
    previous = assignment.paths.get("previous")
    if previous is None or not (Path(previous) / CONVERSION).is_file():
        return None
    try:
        converted = ConversionResult.model_validate_json((Path(previous) / CONVERSION).read_text(encoding="utf-8"))
        link(Path(previous) / "converted.safetensors", Path("converted.safetensors"))
        if file_digest(Path("converted.safetensors")) != converted.sha256:
            return None
        link(Path(previous) / CONVERSION, CONVERSION)
    except (OSError, ValueError):
        return None
    return converted


def _sizes(converted: ConversionResult) -> dict[str, Any]:
    report = json.loads(converted.conversion.model_dump_json())
    return {"seconds": converted.seconds, "conversion": report}


def measure(assignment: Assignment, directory: AttemptDirectory, reporter: Reporter) -> Result:
    """Evaluate one model, or several side by side."""
    request = as_stored(EvaluateRequest, assignment.request)
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
    comparison = compare(
        models, data, request.settings, progress=report, known_as=request.dataset, opening=partial(_opened, own)
    )
    labels = dict(zip(models, (reference.measured_as for reference in references), strict=True))
    comparison.trained_on = [labels[name] for name in comparison.trained_on]
    comparison.part_lost = [labels[name] for name in comparison.part_lost]
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
            f"Measured on the {comparison.images:,} {plural(comparison.images, 'image')} that training held out of "
            f"{comparison.data}, and no others."
        )
    notes += [
        f"{model} was trained on these images: its accuracy says nothing about images that it has not seen."
        for model in comparison.trained_on
    ]
    notes += [
        f"Nothing tells which of them the training of {model} had held out, as a file name, a class or the order of "
        "the images is another one now."
        for model in comparison.part_lost
    ]
    return tuple(notes)


def _opened(own: Mapping[str, str], name: str) -> nn.Module:
    """A model; of `own`, files of weights, the one that they are weights of."""
    return open_model(own[name], Path(name)) if name in own else open_model(name)


def _repeated(references: list[Any], rows: int) -> list[Any]:
    """One reference per row of a comparison, whose rows are sorted by model, then by size."""
    return [reference for reference in references for _ in range(rows // len(references))]


TASKS = {Kind.TRANSFORM: transform, Kind.FINETUNE: train, Kind.EVALUATE: measure}
