"""Comparison results: accuracy per model and size, means over corruptions, CE and mCE; as tables and rows of CSV."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from tcnn.evaluation.comparing.before_after import Estimate, counts_of
from tcnn.evaluation.comparing.paired import PairedDifference
from tcnn.evaluation.comparing.single_images import Mistake, ModelChange
from tcnn.evaluation.imagenet_variants import corruption_errors
from tcnn.evaluation.scores import Evaluation, Score
from tcnn.formatting import Printed, columns, scale, some, unreadable

TIMM_COLUMNS = (
    "model", "img_size", "top1", "top1_err", "top5", "top5_err", "param_count", "crop_pct", "interpolation",
)  # fmt: skip


class Table(NamedTuple):
    """A table with its title; the first column is text, the others are numbers."""

    title: str
    names: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __str__(self) -> str:
        return f"{self.title}\n{columns([self.names, *self.rows], numbers=True)}"


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


class Comparison(Printed, BaseModel):
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
    part_lost: list[str] = []
    """Those of them that held a part out, which cannot be told: the images have changed since."""
    left_out: str | None = None
    """What is said of files in class folders that were not taken for images, if there are any."""
    baseline: str | None
    """The model whose errors CE and mCE are relative to."""
    seconds: float
    rows: list[Row]
    differences: list[PairedDifference] = []
    """Every other model over the first, in accuracy."""
    changes: list[ModelChange] = []
    """Every other model over the first, image by image, if images were asked for."""

    def __str__(self) -> str:
        """The tables of `tcnn evaluate`, and how it was measured."""
        return "\n".join([*map(str, tables(self)), *notes(self)])

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


def tables(result: Comparison) -> Iterator[Table]:
    """All tables of a comparison that have something to say."""
    yield _models(result)
    if result.differences:
        yield _differences(result)
    if any(row.corruptions for row in result.rows):
        yield _corruptions(result)
    if any(row.clean and row.clean.per_class for row in result.rows):
        yield _classes(result.rows)


def _models(result: Comparison) -> Table:
    """A line for every model and size."""
    corrupted = any(row.corruptions for row in result.rows)
    more = ("corrupted", "mCE") if corrupted else ()
    names = ("model", "parameters", "size", "top-1", "95%", "top-5", "loss", *more, "images/s")
    rows = []
    for row in result.rows:
        shares = (_share(row.corruption_top1), _share(row.mce)) if corrupted else ()
        clean = row.clean
        scores = list(row.corruptions.values())
        speed = clean or next(iter(scores[0].severities.values()))
        rows.append(
            (
                row.model, scale(row.parameters), _size(row), _share(clean.top1 if clean else None), _range(clean),
                _share(clean.top5 if clean else None), f"{clean.loss:.3f}" if clean else "–", *shares,
                f"{speed.images_per_second:.0f}",
            )
        )  # fmt: skip
    return Table(f"{result.data}: {some(result.images, 'image')}", names, rows)


def _differences(result: Comparison) -> Table:
    """Every other model beside the first."""
    over = result.differences[0].over
    title = f"how much better than {over}, image by image: percentage points, with 95% intervals"
    kinds = [kind for kind in ("top1", "corrupted") if any(getattr(each, kind) for each in result.differences)]
    rows = [(each.of, _size(each), *(_points(getattr(each, kind)) for kind in kinds)) for each in result.differences]
    return Table(title, ("model", "size", *(kind.replace("top1", "top-1") for kind in kinds)), rows)


def _corruptions(result: Comparison) -> Table:
    """Accuracy under every corruption, with CE where there is a baseline."""
    title = "top-1 under corruption" + (" (CE)" if result.baseline else "")
    rows = []
    for name in result.rows[0].corruptions:
        scores = [row.corruptions[name] for row in result.rows]
        rows.append((name, *(_share(s.top1) + (f" ({_share(s.ce)})" if result.baseline else "") for s in scores)))
    return Table(title, ("corruption", *(f"{row.model} {_size(row)}" for row in result.rows)), rows)


def _classes(rows: Sequence[Row]) -> Table:
    """Accuracy of every class."""
    results = [row.clean.per_class if row.clean else {} for row in rows]
    found = []
    for name in dict.fromkeys(name for result in results for name in result):
        images = next(result[name].images for result in results if name in result)
        found.append((name, str(images), *(_share(r[name].top1) if name in r else "–" for r in results)))
    return Table("top-1 of every class", ("class", "images", *(f"{row.model} {_size(row)}" for row in rows)), found)


def notes(result: Comparison) -> Iterator[str]:
    """What is to be known of how it was measured, a line each."""
    if result.left_out:
        yield result.left_out
    if result.held_out:
        yield "measured on the images that training had held out, and on no others"
    if result.trained_on:
        yield f"trained on these images, so this tells nothing about others: {', '.join(result.trained_on)}"
    if result.part_lost:
        yield (
            "nothing tells which of them training had held out, as a file name, a class or the order of the images is "
            f"another one now, or it learned from a part of them: {', '.join(result.part_lost)}; measure on the data "
            "set as it was, or on other images"
        )
    for row in {row.model: row for row in result.rows}.values():
        if row.classes < row.outputs:
            yield f"{row.model}: {row.classes} of its {row.outputs} classes compete"
    if result.baseline is not None:
        whose = "AlexNet's (Hendrycks & Dietterich 2019)" if result.baseline == "alexnet" else f"{result.baseline}'s"
        yield f"CE is the error as a share of {whose}, mCE its mean over corruptions."
    worst = max(result.rows, key=lambda row: row.unreadable_count)
    if worst.unreadable_count:
        named = ", ".join(worst.unreadable[:3]) + (" …" if worst.unreadable_count > 3 else "")
        yield f"{unreadable(worst.unreadable_count)}: {named}"


def _points(found: Estimate | None) -> str:
    return "–" if found is None else f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"


def _range(score: Score | None) -> str:
    if score is None or score.top1_interval is None:
        return "–"
    low, high = score.top1_interval
    return f"{100 * low:.1f}–{100 * high:.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _size(row: Row | PairedDifference) -> str:
    return f"{row.height}" if row.height == row.width else f"{row.height}×{row.width}"
