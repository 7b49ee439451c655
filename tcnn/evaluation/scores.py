"""Scores of an evaluation: accuracy, over all and by class, with intervals, and what was taken for what.

Intervals say how sure an accuracy is, and how sure a difference of two accuracies on the same images: in closed form,
and for few images, all of them right, or two models that never differ, too, where a normal approximation or a bootstrap
would give an interval of no width.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, computed_field

from tcnn.formatting import Printed, some

NAMED_CONFUSIONS = 1000
"""Largest number of pairs of classes of which a result tells how often one was taken for the other."""
QUANTILE = 1.959963984540054
"""The normal distribution's 97.5 % quantile: all intervals are of 95 %."""


class Interval(NamedTuple):
    """A share, or a difference of shares, and between what it lies."""

    mean: float
    low: float
    high: float


def share(right: int, images: int) -> Interval:
    """The score interval of a share (Wilson 1927, JASA 22); `right` of `images`, at least one."""
    if not 0 <= right <= images or not images:
        raise ValueError(f"expected some of at least one image, found {right} of {images}")
    p, z = right / images, QUANTILE
    middle = (p + z * z / (2 * images)) / (1 + z * z / images)
    half = z / (1 + z * z / images) * sqrt(p * (1 - p) / images + z * z / (4 * images * images))
    return Interval(p, min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half)))


def paired(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> Interval:
    """How much more of the same images is right after than before; (N,) each, at least one image.

    Newcombe 1998, "Improved confidence intervals for the difference between binomial proportions based on paired data",
    Statistics in Medicine 17, method 10: the two score intervals, with the correlation of what is right in both.
    """
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected the same images twice, at least one, found {before.shape} and {after.shape}")
    n = before.size
    both, gained = int((after & before).sum()), int((after & ~before).sum())
    lost = int((before & ~after).sum())
    new, old = share(both + gained, n), share(both + lost, n)
    phi = _correlation(both, gained, lost, n - both - gained - lost)
    difference = (gained - lost) / n

    def reach(one: float, other: float) -> float:
        return sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    low = difference - reach(new.mean - new.low, old.high - old.mean)
    high = difference + reach(new.high - new.mean, old.mean - old.low)
    return Interval(difference, max(-1.0, low), min(1.0, high))


def paired_means(before: NDArray[np.float64], after: NDArray[np.float64]) -> Interval:
    """How much higher the mean of the same images' shares is after than before; (N,) each, in [0, 1], at least one.

    A share is that of the cases, such as corruptions, in which an image is right: cases of one image are not
    independent, images are. Agresti and Min 2005, "Simple improved confidence intervals for comparing matched
    proportions", Statistics in Medicine 24, add half an image to each cell of the table of pairs; so does this: half of
    one that only the one has wholly right, half of one that only the other has, and one that makes no difference.
    """
    if before.shape != after.shape or before.ndim != 1 or not before.size:
        raise ValueError(f"expected the same images twice, at least one, found {before.shape} and {after.shape}")
    differences = after - before
    n = differences.size + 2
    middle = float(differences.sum()) / n
    half = QUANTILE * sqrt(((float((differences**2).sum()) + 1) / n - middle * middle) / n)
    mean = float(differences.mean())
    return Interval(mean, max(-1.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)))


def _correlation(both: int, gained: int, lost: int, neither: int) -> float:
    """Of what is right before and after; a positive one with Newcombe's correction for continuity."""
    product = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if not product:
        return 0.0
    covariance = float(both * neither - gained * lost)
    if covariance > 0:
        covariance = max(0.0, covariance - (both + gained + lost + neither) / 2)
    return covariance / sqrt(product)


Range = Annotated[tuple[float, float], Field(description="Between these the accuracy lies: a 95 % score interval.")]


class Confusion(BaseModel):
    """How many images of one class were taken for another."""

    target: str
    answer: str
    images: int


class ClassScore(BaseModel):
    """Accuracy of one class."""

    images: int
    right: int
    top1: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_interval(self) -> Range | None:
        """What other images of the class might have given; None without images."""
        return rounded_interval(self.right, self.images)


class Score(BaseModel):
    """Accuracy of a model. Accuracies are shares between 0 and 1 of the images that could be read."""

    images: int
    right: int
    right5: int | None
    top1: float
    top5: float | None
    loss: float
    images_per_second: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def top1_interval(self) -> Range | None:
        """What other images might have given."""
        return rounded_interval(self.right, self.images)


class Evaluation(Printed, Score):
    """Accuracy of a model with counts, scores per class and unreadable files."""

    per_class: dict[str, ClassScore]
    confusions: list[Confusion] = []
    """What was taken for what, the most frequent first; answers that are not finite are not among them."""
    unreadable: list[str]
    unreadable_count: int

    def __str__(self) -> str:
        """Accuracy with its interval, loss and speed on one line."""
        between = "" if self.top1_interval is None else f" ({self.top1_interval[0]:.1%} to {self.top1_interval[1]:.1%})"
        top5 = "" if self.top5 is None else f", top-5 {self.top5:.2%}"
        unreadable = f", {self.unreadable_count} more unreadable" if self.unreadable_count else ""
        return (
            f"top-1 {self.top1:.2%}{between}{top5}, loss {self.loss:.4f}, {some(self.images, 'image')}{unreadable}, "
            f"{self.images_per_second:.0f} images/s"
        )


def rounded_interval(right: int, images: int) -> tuple[float, float] | None:
    """The limits of `share`, rounded as results have them; None without images."""
    if not images:
        return None
    found = share(right, images)
    return round(found.low, 6), round(found.high, 6)


def confusions(targets: NDArray[np.int64], predicted: NDArray[np.int64], names: Sequence[str]) -> list[Confusion]:
    """What was taken for what, most often first; of (N,) classes, by their names; predicted −1 is no answer."""
    wrong = (targets != predicted) & (predicted >= 0)
    pairs, images = np.unique(np.stack([targets[wrong], predicted[wrong]], 1), axis=0, return_counts=True)
    order = np.argsort(-images, kind="stable")[:NAMED_CONFUSIONS]
    return [Confusion(target=names[pairs[i][0]], answer=names[pairs[i][1]], images=int(images[i])) for i in order]
