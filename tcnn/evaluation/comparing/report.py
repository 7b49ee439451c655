"""Comparison results: accuracy per model and size, means over corruptions, CE and mCE; as rows of CSV and of timm's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from tcnn.evaluation.comparing.before_after import counts_of
from tcnn.evaluation.comparing.paired import PairedDifference
from tcnn.evaluation.comparing.single_images import Mistake, ModelChange
from tcnn.evaluation.imagenet_variants import corruption_errors
from tcnn.evaluation.scores import Evaluation, Score

TIMM_COLUMNS = (
    "model", "img_size", "top1", "top1_err", "top5", "top5_err", "param_count", "crop_pct", "interpolation",
)  # fmt: skip


class CorruptionScore(BaseModel):
    """Accuracy under one corruption: means over its severities, and each of them."""

    top1: float
    error: float
    ce: float | None
    severities: dict[int, Score]


class Row(BaseModel):
    """Results of one model at one size."""

    model: str
    parameters: int
    height: int
    width: int
    outputs: int
    """Number of classes that the model can predict."""
    classes: int
    """Number of classes that were scored."""
    crop_pct: float | None = None
    """The crop's share of the resized image."""
    interpolation: str | None = None
    clean: Evaluation | None
    mistakes: list[Mistake] = []
    """Images that it gets wrong, the surest answers first, if some were asked for."""
    corruptions: dict[str, CorruptionScore]
    corruption_top1: float | None
    corruption_error: float | None
    """Mean over corruptions of the mean error over severities, not normalised by a baseline."""
    mce: float | None
    unreadable: list[str]
    unreadable_count: int


class Comparison(BaseModel):
    """Result of comparing models, as `tcnn evaluate --json` prints it."""

    data: str
    split: str | None
    """The split that was measured; None of a data set that is not divided."""
    layout: str
    images: int
    """Number of images of one pass, readable or not."""
    held_out: bool = False
    """Whether only the part of the data set was measured that a model's training had held out."""
    trained_on: list[str] = []
    """Models that were trained on some of the images."""
    baseline: str | None
    """The model whose errors CE and mCE are relative to."""
    seconds: float
    rows: list[Row]
    differences: list[PairedDifference] = []
    """Every other model over the first, in accuracy."""
    changes: list[ModelChange] = []
    """Every other model over the first, image by image, if images were asked for."""

    def headline(self) -> "Comparison":
        """The same without single images: what fits into a job's result."""
        rows = [row.model_copy(update={"mistakes": []}) for row in self.rows]
        return self.model_copy(update={"rows": rows, "changes": [counts_of(one) for one in self.changes]})


def corruption_scores(results: Mapping[tuple[str, int], Evaluation]) -> dict[str, CorruptionScore]:
    """Group results by (corruption, severity) into scores per corruption, in the given order."""
    scores: dict[str, CorruptionScore] = {}
    for name in dict.fromkeys(name for name, _ in results):
        each = {
            severity: Score(**result.model_dump(include=set(Score.model_fields)))
            for (corruption, severity), result in results.items()
            if corruption == name
        }
        top1 = sum(score.top1 for score in each.values()) / len(each)
        scores[name] = CorruptionScore(top1=top1, error=1 - top1, ce=None, severities=each)
    return scores


def set_corruption_errors(rows: Sequence[Row], references: Sequence[Mapping[str, float]]) -> None:
    """Set CE and mCE of every row, relative to its reference: the baseline's error on each corruption."""
    for row, reference in zip(rows, references, strict=True):
        relative, row.mce = corruption_errors(errors(row), reference)
        for name, score in row.corruptions.items():
            score.ce = relative.get(name)


def errors(row: Row) -> dict[str, float]:
    """Top-1 error on each corruption, mean over severities."""
    return {name: score.error for name, score in row.corruptions.items()}


def csv_rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    """CSV rows, one for every pass over the images: a model at a size, clean or with a corruption of some severity."""
    for row in comparison.rows:
        passes: list[tuple[str, int | str, Score]] = [] if row.clean is None else [("", "", row.clean)]
        passes += [
            (name, severity, score)
            for name, corruption in row.corruptions.items()
            for severity, score in corruption.severities.items()
        ]
        for name, severity, score in passes:
            yield {
                "model": row.model,
                "height": row.height,
                "width": row.width,
                "corruption": name,
                "severity": severity,
                **score.model_dump(include=set(Score.model_fields)),
            }


def timm_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Rows as timm's validate.py writes them and its bulk_runner.py reads them, of what was measured on clean images.

    One for every model and size: accuracies in percent, parameters in millions.
    Among fewer than five classes the right one is always among the first five.
    """
    return [_timm_row(row) for row in comparison.rows if row.clean is not None]


def _timm_row(row: Row) -> dict[str, Any]:
    assert row.clean is not None  # noqa: S101 - the caller has looked
    top1, top5 = 100 * row.clean.top1, 100 * (1.0 if row.clean.top5 is None else row.clean.top5)
    values = (
        row.model, row.width, round(top1, 4), round(100 - top1, 4), round(top5, 4), round(100 - top5, 4),
        round(row.parameters / 1e6, 2), row.crop_pct, row.interpolation,
    )  # fmt: skip
    return dict(zip(TIMM_COLUMNS, values, strict=True))
