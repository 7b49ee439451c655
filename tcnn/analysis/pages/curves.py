"""What the charts of a report are drawn of: the rows of a run, and the accuracies of its evaluations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tcnn.analysis.reading.evaluations import EvaluatedRow, titles

MOST_STEPS = 2000
"""Steps of a run that a page has, besides those without a finite loss; of more, those that a curve needs."""
DRAWN = (
    "kind", "updates", "epoch", "loss", "temperature", "gate_temperature", "train_loss", "val", "gate_mean",
    "span_mean",
)  # fmt: skip
Chart = dict[str, Any]
"""Options and series of `chart.js`; `format` is the name of one of `numbers.js`."""


def curves_of_training(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run with what curves are drawn of: every epoch, and steps as they are, of more than `MOST_STEPS`
    those that a curve needs.
    """
    steps = [row for row in rows if row.get("kind") == "train"]
    kept = [*_needed(steps), *(row for row in rows if row.get("kind") == "epoch")]
    return [{name: _finite(row[name]) for name in DRAWN if name in row} for row in kept]


def _needed(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All if they are few; else the first, the last, and between them the lowest and highest loss of every so many, and
    the first that is not finite, where the curve has a gap.

    A mean was never measured, and of every n-th step alone the curve would lack its peaks.
    """
    if len(steps) <= MOST_STEPS:
        return list(steps)
    size = math.ceil((len(steps) - 2) / (MOST_STEPS // 2 - 1))
    kept = {0, len(steps) - 1}
    for start in range(1, len(steps) - 1, size):
        group = range(start, min(start + size, len(steps) - 1))
        losses: dict[int, Any] = {at: steps[at].get("loss") for at in group if _measured(steps[at].get("loss"))}
        if losses:
            kept |= {min(losses, key=losses.__getitem__), max(losses, key=losses.__getitem__)}
        kept |= set([at for at in group if at not in losses][:1])
    return [steps[at] for at in sorted(kept)]


def _measured(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _finite(value: Any) -> Any:
    """JSON has no numbers that are not finite, and a chart no place for them."""
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def charts_of_evaluation(rows: Sequence[EvaluatedRow]) -> list[Chart]:
    """Accuracy over the side of the images, and over the severity of corruptions, where several were measured."""
    return [*_by_size(rows), *_by_severity(rows)]


def _by_size(rows: Sequence[EvaluatedRow]) -> Iterator[Chart]:
    models: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.clean is not None:
            models.setdefault(row.model, []).append((round((row.height * row.width) ** 0.5), row.clean.top1))
    called = titles(models)
    series = [{"name": called[name], "points": sorted(points)} for name, points in models.items() if len(points) > 1]
    if series:
        yield {"title": "Accuracy by resolution", "unit": "top-1", "format": "percent", "axis": "pixels per side",
               "at": "side", "series": series}  # fmt: skip


def _by_severity(rows: Sequence[EvaluatedRow]) -> Iterator[Chart]:
    several, called = len({row.size for row in rows}) > 1, titles(row.model for row in rows)
    series = []
    for row in rows:
        severities = sorted({level for one in row.corruptions.values() for level in one.severities})
        means = []
        for level in severities:
            there = [one.severities[level].top1 for one in row.corruptions.values() if level in one.severities]
            means.append((level, sum(there) / len(there)))
        if len(means) > 1:
            name = called[row.model]
            series.append({"name": f"{name}, {row.size}" if several else name, "points": means})
    if series:
        yield {"title": "Accuracy by severity", "unit": "top-1, mean over corruptions", "format": "percent",
               "axis": "severity", "at": "severity", "series": series}  # fmt: skip
