"""Accuracy of a model and of others on the same images, with confidence intervals, from runs and evaluation files."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tcnn.analysis.reading.evaluations import EvaluationFile, read_evaluation, titles
from tcnn.conversion.report import ConversionReport
from tcnn.evaluation.scores import share

THIS = "this model"
"""What the model is called whose own run measured it."""
UNFOLDED = "this model before it was folded"
CNN = "the CNN that it was made from"


class Accuracy(NamedTuple):
    """Top-1 accuracy of a model on a data set; shares between 0 and 1."""

    model: str
    data: str
    images: int
    top1: float
    top5: float | None
    corrupted: float | None
    """Mean over corruptions and severities, where they were measured."""
    trained_on: bool = False
    """Whether the model was trained on some of these images."""
    measured: str | None = None
    """As what the measurement's file names the model: a path, with all its folders; None for a run's own."""

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of top-1."""
        found = share(round(self.top1 * self.images), self.images)
        return found.low, found.high


def of_files(files: Sequence[Path]) -> list[Accuracy]:
    """What files of `tcnn evaluate --json` say, in their order; raises `RequestError` for another file."""
    contents = [read_evaluation(file) for file in files]
    called = titles(row.model for content in contents for row in content.rows)
    return [found for content in contents for found in _of_rows(content, called)]


def _of_rows(content: EvaluationFile, called: Mapping[str, str]) -> Iterator[Accuracy]:
    several = len({(row.height, row.width) for row in content.rows}) > 1
    data = _last(content.data) + (", held out" if content.held_out else "")
    for row in content.rows:
        if row.clean is not None:
            yield Accuracy(
                model=called[row.model] + (f" at {row.size} pixels" if several else ""), data=data,
                images=row.clean.images,
                top1=row.clean.top1, top5=row.clean.top5, corrupted=row.corruption_top1,
                trained_on=row.model in content.trained_on, measured=row.model,
            )  # fmt: skip


def of_checkpoint(sections: Mapping[str, Any], conversion: ConversionReport) -> list[Accuracy]:
    """What a checkpoint's sections say of the run that trained it or, where none did, of the CNN's that it was made of.

    A model that was folded has the accuracy from before only where the fold changed nothing.
    """
    training, source, fold = (_object(sections.get(name)) for name in ("training", "source", "fold"))
    changed = bool(fold) and (fold.get("tolerance") != 0 or bool(fold.get("pruned")))
    if training:
        return [row._replace(model=UNFOLDED) if changed else row for row in of_training(training)]
    unconverted = bool(fold) and not changed and not conversion.layers and conversion.config.stride == "keep"
    rows = of_training(_object(source.get("training")))
    return rows if unconverted else [row._replace(model=CNN) for row in rows]


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def of_training(training: Mapping[str, Any] | None) -> list[Accuracy]:
    """What a checkpoint's training section says of the epoch that it was saved after."""
    scores = ((training or {}).get("metrics") or {}).get("val") or {}
    if not training or not scores.get("images") or scores.get("top1") is None:
        return []
    data = training.get("val") or f"{_last(str(training.get('data')))}, held out"
    return [
        Accuracy(
            model=THIS, data=_last(str(data)), images=scores["images"], top1=scores["top1"],
            top5=scores.get("top5"), corrupted=None,
        )
    ]  # fmt: skip


def _last(data: str) -> str:
    """A data set's name without the folders before it, which are somebody's own."""
    return data.rstrip("/").rpartition("/")[2] or data


def literal(text: str) -> str:
    """A name as Markdown shows it letter by letter, also in a table's cell: names are of files, and may be anything."""
    return re.sub(r"([\\`*\[\]<>|~&]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def table(rows: Sequence[Accuracy]) -> str:
    """A Markdown table, one line a model."""
    corrupted = any(row.corrupted is not None for row in rows)
    lines = ["| model | images | top-1 | 95 % interval | top-5 |" + (" corrupted |" if corrupted else "")]
    lines.append("|---" * (6 if corrupted else 5) + "|")
    for row in rows:
        low, high = row.interval
        seen = " (trained on these images)" if row.trained_on else ""
        cells = [
            f"{literal(row.model)}{seen}",
            f"{row.images:,} of {literal(row.data)}",
            f"{row.top1:.2%}",
            f"{low:.2%} to {high:.2%}",
        ]
        cells += ["–" if row.top5 is None else f"{row.top5:.2%}"]
        cells += ["–" if row.corrupted is None else f"{row.corrupted:.2%}"] if corrupted else []
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
