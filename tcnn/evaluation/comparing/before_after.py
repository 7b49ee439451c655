"""Before and after: what a CNN, its T-CNN and their fine-tuned forms answer to the same images, side by side."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from tcnn.evaluation import scores
from tcnn.evaluation.outcomes import Outcomes, answer_names, in_common
from tcnn.evaluation.scores import Interval

Role = Literal["cnn", "tuned_cnn", "converted", "t_cnn"]
"""The source CNN, the CNN fine-tuned with the same recipe, the T-CNN as training began, the fine-tuned T-CNN."""
ROLES: dict[Role, str] = {
    "cnn": "CNN", "tuned_cnn": "CNN, fine-tuned", "converted": "converted", "t_cnn": "T-CNN, fine-tuned",
}  # fmt: skip
"""What they are called in tables."""

NAMED = 24
"""Images that a comparison names, of each kind; it counts them all."""


class Estimate(BaseModel):
    """A share, or a difference of shares, with its interval of 95 %."""

    mean: float
    low: float
    high: float


class Rate(BaseModel):
    """Images a second through the model alone, in batches, without loading them: the median of some passes."""

    median: float
    low: float
    """Of the slowest pass,"""
    high: float
    """and of the fastest."""


class Accuracy(BaseModel):
    """How many images of a class, or of all, were answered right."""

    images: int
    right: int
    top1: Estimate


class Cost(BaseModel):
    """What a model takes."""

    parameters: int
    bytes: int
    """Of its weights, as its file has them."""
    flops: int | None
    """Of one image, 2 × multiply-adds; None where they cannot be counted."""
    images_per_second: Rate


class Row(BaseModel):
    """One of the models."""

    role: Role
    missing: str | None = None
    """Why it could not be measured; then there is nothing else."""
    new_classifier: bool = False
    """Its classifier was drawn at random for these classes, so that it can only guess."""
    accuracy: Accuracy | None = None
    corrupted: Accuracy | None = None
    """On some of the images, each under a corruption of ImageNet-C at a severity, both drawn for it."""
    cost: Cost | None = None
    per_class: dict[str, Accuracy] = {}


class Changed(BaseModel):
    """An image that two models answer differently."""

    file: str
    target: str
    before: str
    before_confidence: float
    after: str
    after_confidence: float
    thumbnail: str | None = None
    """A data URL."""


class Change(BaseModel):
    """What one model answers better or worse than another, image by image."""

    top1: Estimate
    """Of the accuracies, paired."""
    newly_right: int
    newly_wrong: int
    otherwise_wrong: int
    """Wrong both times, and not the same."""
    per_class: dict[str, Estimate] = {}
    right_images: list[Changed] = []
    """Newly right, those first of which the model is surest,"""
    wrong_images: list[Changed] = []
    """and newly wrong."""


class Difference(Change):
    """What one model of a run answers better or worse than another."""

    of: Role
    over: Role
    corrupted: Estimate | None = None
    """Of the accuracies on corrupted images, paired."""


C = TypeVar("C", bound=Change)


def counts_of(found: C) -> C:
    """A change without classes and single images."""
    return found.model_copy(update={"per_class": {}, "right_images": [], "wrong_images": []})


class BeforeAfter(BaseModel):
    """All models that a run can be held against, on the images that it was validated on."""

    images: int
    rows: list[Row]
    corrupted_images: int = 0
    """Images that were looked at under corruptions, too."""
    differences: list[Difference]
    """The one that matters most first."""

    def headline(self) -> "BeforeAfter":
        """The same without classes and single images: what fits into a job's result."""
        rows = [row.model_copy(update={"per_class": {}}) for row in self.rows]
        return self.model_copy(update={"rows": rows, "differences": [counts_of(one) for one in self.differences]})

    def lines(self) -> Iterator[str]:
        """Every difference on a line: accuracy with its interval, images newly right and wrong, corrupted ones."""
        for one in self.differences:
            corrupted = "" if one.corrupted is None else f"; corrupted {_points(one.corrupted, 1)}"
            yield (
                f"{ROLES[one.of]} over {ROLES[one.over]}: {_points(one.top1, 2, ' points')}; "
                f"{one.newly_right} newly right, {one.newly_wrong} newly wrong{corrupted}"
            )


def _points(found: Estimate, digits: int, unit: str = "") -> str:
    mean, low, high = (f"{100 * value:+.{digits}f}" for value in (found.mean, found.low, found.high))
    return f"{mean}{unit} ({low} to {high})"


class Measured(NamedTuple):
    """A row, and what it was counted from; None where there is nothing."""

    row: Row
    outcomes: Outcomes | None
    corrupted: Outcomes | None = None


def counted(found: Outcomes, class_names: Sequence[str]) -> tuple[Accuracy, dict[str, Accuracy]]:
    """The accuracy on all images, and on those of every class that has some."""
    right = found.right
    each = {}
    for index, name in enumerate(class_names):
        own = found.targets == index
        if own.any():
            each[name] = _accuracy(right[own])
    return _accuracy(right), each


def differences(
    rows: Sequence[Measured], class_names: Sequence[str], files: Mapping[int, str] | Sequence[str]
) -> list[Difference]:
    """Every later model over every earlier one that can be held against it, the last model's first.

    A model whose classifier is new only guesses, so nothing is held against it. `files` names images by their places.
    """
    usable = [one for one in rows if one.outcomes is not None and not one.row.new_classifier]
    found = []
    for place in range(len(usable) - 1, 0, -1):
        after = usable[place]
        # The fine-tuned CNN is the fairest judge of the fine-tuned T-CNN: it had the same images and updates.
        others = sorted(usable[:place], key=lambda one: one.row.role != "tuned_cnn")
        found += [_difference(before, after, class_names, files) for before in others]
    return found


def _difference(
    before: Measured, after: Measured, class_names: Sequence[str], files: Mapping[int, str] | Sequence[str]
) -> Difference:
    assert before.outcomes is not None  # noqa: S101 - its caller has looked
    assert after.outcomes is not None  # noqa: S101
    corrupted = None
    if before.corrupted is not None and after.corrupted is not None:
        one, other = in_common(before.corrupted, after.corrupted)
        corrupted = estimate(scores.paired(one.right, other.right))
    found = change(before.outcomes, after.outcomes, class_names, files)
    return Difference(of=after.row.role, over=before.row.role, corrupted=corrupted, **dict(found))


def change(
    before: Outcomes, after: Outcomes, class_names: Sequence[str], files: Mapping[int, str] | Sequence[str]
) -> Change:
    """What is right or wrong after that was not before, on the images that both could read."""
    one, other = in_common(before, after)
    was, now = one.right, other.right
    gained, lost = ~was & now, was & ~now
    names = answer_names(class_names)

    def changed(mask: NDArray[np.bool_]) -> list[Changed]:
        return [
            Changed(
                file=files[int(one.indices[i])], target=names[one.targets[i]],
                before=names[one.predicted[i]], before_confidence=float(one.confidence[i]),
                after=names[other.predicted[i]], after_confidence=float(other.confidence[i]),
            )
            for i in other.most_confident(mask, NAMED)
        ]  # fmt: skip

    return Change(
        top1=estimate(scores.paired(was, now)),
        newly_right=int(gained.sum()),
        newly_wrong=int(lost.sum()),
        otherwise_wrong=int((~was & ~now & (one.predicted != other.predicted)).sum()),
        per_class={
            name: estimate(scores.paired(was[own], now[own]))
            for index, name in enumerate(class_names)
            if (own := one.targets == index).any()
        },
        right_images=changed(gained),
        wrong_images=changed(lost),
    )


def _accuracy(right: NDArray[np.bool_]) -> Accuracy:
    images, hits = len(right), int(right.sum())
    return Accuracy(images=images, right=hits, top1=estimate(scores.share(hits, images)))


def estimate(found: Interval) -> Estimate:
    """The interval as results have it."""
    return Estimate(**{name: round(value, 6) for name, value in found._asdict().items()})
