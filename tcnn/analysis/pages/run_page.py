"""The page of a run, from what was read of it: conversion, curves, gates, evaluations, settings."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import ValidationError

from tcnn.analysis.charts import bundle
from tcnn.analysis.pages.curves import charts_of_evaluation, curves_of_training
from tcnn.analysis.pages.page import pictures, template
from tcnn.analysis.plots import gallery
from tcnn.analysis.plots.training import apart, epochs
from tcnn.analysis.reading.evaluations import EvaluationFile, titles
from tcnn.analysis.reading.rundirs import Epoch, Run, metadata
from tcnn.conversion.report import ConversionReport
from tcnn.errors import RequestError, shorten
from tcnn.verification.report import VerificationReport
from tcnn.version import __version__

MAX_ROWS = 12
"""Largest number of rows in the table of epochs; of more as many, evenly spread, and all of them folded."""


def rendered(run: Run) -> str:
    """The page; what it lacks is added to what the run is `missing`."""
    rows = epochs(run.metrics)
    done = [Epoch.model_validate(row) for row in rows]
    conversion = _model(ConversionReport, run, "conversion")
    verification, verified = _verification(run)
    return template("report.html").render(
        title=_title(run, conversion),
        run=run,
        conversion=conversion,
        base=base_model(run, conversion) if conversion is not None else "",
        validated_on=validated_on(run),
        verification=verification,
        verified=verified,
        epochs=done,
        shown=_some(done),
        apart=apart(rows),
        best=_best(done),
        layers=_last_state(done, conversion),
        curves=curves_of_training(run.metrics),
        steps=sum(row.get("kind") == "train" for row in run.metrics),
        training=pictures(gallery.head_plots(run.metrics)),
        inside=[] if run.inspection is None else pictures(gallery.inspection_plots(run.inspection)),
        measured=[charts_of_evaluation(each.rows) for each in run.evaluations],
        robustness=[pictures(gallery.corruption_plots(each.rows)) for each in run.evaluations],
        columns=[_corruption_columns(each) for each in run.evaluations],
        tables=[_corruption_table(each) for each in run.evaluations],
        settings=_settings(run),
        changes=_changes(run),
        versions=_versions(run),
        script=Markup(bundle.script()),  # noqa: S704 - ours
        script_source=Markup(bundle.script_source()),  # noqa: S704
        chart_style=Markup(bundle.style()),  # noqa: S704
        made_by=__version__,
    )


def _title(run: Run, conversion: ConversionReport | None) -> str:
    name = run.called or run.path.resolve().name
    return f"{name}: {base_model(run, conversion)}" if conversion is not None else name


def base_model(run: Run, conversion: ConversionReport) -> str:
    """The CNN's name; with the tag of its pretrained weights only if it had these."""
    record, training, earlier = run.record or {}, run.metadata.get("training"), run.metadata.get("source")
    told = [record.get("weights"), *(each.get("weights") for each in (training, earlier) if isinstance(each, dict))]
    converted = run.path / "converted.safetensors"
    if converted.is_file():
        with suppress(RequestError):
            told.append(metadata(converted).get("weights"))
    if record.get("pretrained") is False:  # up to version 0.1
        told.append("random")
    weights = next((each for each in (*told, run.metadata.get("weights")) if isinstance(each, str)), None)
    named = {"random": "random weights", "file": "own weights"}.get(weights or "")
    return f"{conversion.base_model.partition('.')[0]} with {named}" if named else conversion.base_model


def validated_on(run: Run) -> str:
    """On which images a run was validated, in words."""
    record = run.record or {}
    config = record.get("config")
    share = config.get("val_split") if isinstance(config, dict) else None
    if record.get("val"):
        return str(record["val"])
    if isinstance(share, int | float) and share:
        return f"{share:.0%} of its images, held out from training".replace("%", " %")
    return "its own validation split"


def _model(kind: Any, run: Run, section: str) -> Any:
    """A section of the checkpoint's metadata as its record, or None."""
    if section not in run.metadata:
        return None
    try:
        return kind.model_validate(run.metadata[section])
    except ValidationError:
        run.missing.append(f"{run.checkpoint}: its {section} was written by another version and cannot be shown")
        return None


def _verification(run: Run) -> tuple[VerificationReport | None, str]:
    """The verification report, and its file: training changes the function, so it stays with the converted file."""
    found = _model(VerificationReport, run, "verification")
    if found is not None and run.checkpoint is not None:
        return found, run.checkpoint.name
    source = (run.record or {}).get("model")
    for file in (run.path / "converted.safetensors", *([Path(source)] if isinstance(source, str) else [])):
        if file.suffix == ".safetensors" and file.is_file():
            try:
                return VerificationReport.model_validate(metadata(file).get("verification")), file.name
            except (RequestError, ValidationError):
                continue
    if not run.only_measured:
        run.missing.append("no verification report: equivalence error and drift are unknown")
    return None, ""


def _some(done: Sequence[Epoch]) -> list[Epoch]:
    """All epochs if they are few; else the first, every so many, and the last."""
    if len(done) <= MAX_ROWS:
        return list(done)
    return [done[round(i * (len(done) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]


def _best(done: Sequence[Epoch]) -> Epoch | None:
    """The epoch that best.safetensors is of; the most accurate one where the metrics do not say which that is."""
    chosen = next((row for row in reversed(done) if row.best), None)
    return chosen or max(done, key=lambda row: -1.0 if row.val.top1 is None else row.val.top1, default=None)


def _last_state(done: Sequence[Epoch], conversion: ConversionReport | None) -> list[dict[str, Any]]:
    """Gates and spans of every layer after the last epoch that recorded them, and how many heads have neither."""
    last = next((row for row in reversed(done) if row.gates), None)
    if last is None:
        return []
    spans = last.spans or {}
    beside = {layer.name: layer.content_heads for layer in conversion.layers} if conversion is not None else {}
    return [
        {"name": name, "gates": gates, "spans": spans.get(name), "content_heads": beside.get(name, 0)}
        for name, gates in (last.gates or {}).items()
        if gates
    ]


def _corruption_columns(evaluation: EvaluationFile) -> list[tuple[str, str]]:
    """Model and size of every row of the evaluation that has corruptions."""
    called = titles(row.model for row in evaluation.rows)
    return [(called[row.model], row.size) for row in evaluation.rows if row.corruptions]


def _corruption_table(evaluation: EvaluationFile) -> list[tuple[str, list[float | None]]]:
    """Mean top-1 on every corruption, with a column for each of `_corruption_columns`."""
    rows = [row for row in evaluation.rows if row.corruptions]
    names = dict.fromkeys(name for row in rows for name in row.corruptions)
    return [(name, [row.corruptions[name].top1 if name in row.corruptions else None for row in rows]) for name in names]


def _settings(run: Run) -> list[tuple[str, str]]:
    """The run's settings as names and values, those of the conversion with their dots."""
    config = (run.record or {}).get("config")
    flat: list[tuple[str, str]] = []
    for name, value in (config if isinstance(config, dict) else {}).items():
        inner = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        flat += [(key, shorten(str(each), 200)) for key, each in inner.items()]
    return flat


def _changes(run: Run) -> list[tuple[str, str]]:
    """After how many updates other settings were gone on with, and which."""
    listed = (run.record or {}).get("changes")
    found = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    changed = [(one.get("updates"), one["changed"]) for one in found if isinstance(one.get("changed"), list)]
    return [(str(updates), shorten(str(each), 200)) for updates, changes in changed for each in changes]


def _versions(run: Run) -> dict[str, str]:
    versions = (run.record or {}).get("versions")
    found = {str(k): str(v) for k, v in versions.items()} if isinstance(versions, dict) else {}
    written = run.metadata.get("tcnn_version")
    return found | ({"checkpoint written by tcnn": str(written)} if written else {})
