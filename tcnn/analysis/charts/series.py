"""What the charts of a report show: rows of metrics.jsonl, and series of an evaluation, as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tcnn.analysis.reading.evaluations import EvaluatedRow

MOST = 2000
"""Steps of a run that a page has; of more, every so many."""
DRAWN = ("kind", "updates", "epoch", "loss", "temperature", "train_loss", "val", "gate_mean", "span_mean")

Chart = dict[str, Any]
"""Options and series of `chart.js`; `format` is the name of one of `numbers.js`."""


def of_training(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a run with what curves are drawn of."""
    steps = [row for row in rows if row.get("kind") == "train"]
    every = max(1, -(-len(steps) // MOST))
    kept = [*steps[:-1:every], *steps[-1:], *(row for row in rows if row.get("kind") == "epoch")]
    return [{name: _finite(row[name]) for name in DRAWN if name in row} for row in kept]


def _finite(value: Any) -> Any:
    """JSON has no numbers that are not finite, and a chart no place for them."""
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def of_evaluation(rows: Sequence[EvaluatedRow]) -> list[Chart]:
    """Accuracy over the side of the images, and over the severity of corruptions, where several were measured."""
    return [*_by_size(rows), *_by_severity(rows)]


def _by_size(rows: Sequence[EvaluatedRow]) -> Iterator[Chart]:
    models: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if row.clean is not None:
            models.setdefault(row.model, []).append((round((row.height * row.width) ** 0.5), row.clean.top1))
    series = [{"name": name, "points": sorted(points)} for name, points in models.items() if len(points) > 1]
    if series:
        yield {"title": "Accuracy by resolution", "unit": "top-1", "format": "percent", "axis": "pixels a side",
               "at": "side", "series": series}  # fmt: skip


def _by_severity(rows: Sequence[EvaluatedRow]) -> Iterator[Chart]:
    several = len({row.size for row in rows}) > 1
    series = []
    for row in rows:
        severities = sorted({level for one in row.corruptions.values() for level in one.severities})
        means = []
        for level in severities:
            there = [one.severities[level].top1 for one in row.corruptions.values() if level in one.severities]
            means.append((level, sum(there) / len(there)))
        if len(means) > 1:
            series.append({"name": f"{row.title}, {row.size}" if several else row.title, "points": means})
    if series:
        yield {"title": "Accuracy by severity", "unit": "top-1, mean of the corruptions", "format": "percent",
               "axis": "severity", "at": "severity", "series": series}  # fmt: skip
