"""How sure a difference is: paired intervals by resampling images and seeds.

Every arm classifies the same images, after training on the same batches for every seed, so a difference is taken image
by image and seed by seed before anything is averaged: what is hard for both cancels. All seeds see the same images, so
the two are crossed, not nested: images are resampled from the means over seeds, seeds from the means over images, and
the two deviations are added (two of the three terms of Owen 2007, "The pigeonhole bootstrap", Ann. Appl. Stat. 1).

What belongs to neither, one image under one seed, is in both terms, which makes the interval somewhat too wide. Drawing
S of S seeds would find only (S − 1)/S of their variance, with three of them two thirds, so S − 1 are drawn (Rao & Wu
1988, "Resampling inference with complex survey data", JASA 83); still, where seeds differ more than images do, three
cover the truth in 89 of 100 cases instead of 95. One seed says nothing about others: then only images are drawn.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
FEWEST = 3
"""Seeds of which an interval over seeds alone is told, and comparisons of which one over comparisons is."""
CELLS = 4_000_000
"""Draws at a time, for the memory's sake."""


class Interval(NamedTuple):
    """A mean, and between what it lies."""

    mean: float
    low: float
    high: float


def interval(values: NDArray[numpy.float64], level: float = LEVEL, resamples: int = RESAMPLES) -> Interval:
    """The mean of `values`, (S seeds, N images), and its percentile interval over other images and seeds.

    For a difference give right(arm) − right(control): each cell is −1, 0 or 1, or a mean of such. The same values give
    the same interval.
    """
    if values.ndim != 2 or not values.size:
        raise ValueError(f"expected values of at least one seed and image, found {values.shape}")
    generator = numpy.random.default_rng(0)
    mean = values.mean()
    deviations = _resampled(values.mean(0) - mean, values.shape[1], resamples, generator)
    if len(values) > 1:
        deviations += _resampled(values.mean(1) - mean, len(values) - 1, resamples, generator)
    low, high = numpy.quantile(mean + deviations, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(mean), float(low), float(high))


class Compared(NamedTuple):
    """One comparison: an arm less its control, in S seeds, on N of all images."""

    places: NDArray[numpy.int64]
    """Which images, (N,)."""
    values: NDArray[numpy.float64]
    """(S, N), as `interval` takes them."""


def pooled(comparisons: Sequence[Compared], images: int, level: float = LEVEL, resamples: int = RESAMPLES) -> Interval:
    """The mean over the pairs of all comparisons, and its interval over other images and comparisons.

    Whole comparisons are resampled, with all of their seeds: the seeds of one have more in common than those of two. An
    image that several have measured is one image; each comparison may have its own. `images` counts all of them: their
    mean is drawn as a normal one, as of thousands it is. Raises `ValueError` for fewer than `FEWEST` comparisons.
    """
    if len(comparisons) < FEWEST:
        raise ValueError(f"expected at least {FEWEST} comparisons, found {len(comparisons)}")
    generator = numpy.random.default_rng(0)
    pairs = numpy.array([len(one.values) for one in comparisons])
    means = numpy.array([one.values.mean() for one in comparisons])
    mean = float((pairs * means).sum() / pairs.sum())
    influence = numpy.zeros(images)  # of an image on the mean, times `images`
    for one, own, count in zip(comparisons, means, pairs, strict=True):
        influence[one.places] += (one.values.mean(0) - own) / len(one.places) * count / pairs.sum() * images
    deviations = generator.normal(0, influence.std() / math.sqrt(images), resamples)
    drawn = generator.integers(len(comparisons), size=(resamples, len(comparisons) - 1))
    deviations += (pairs * means)[drawn].sum(1) / pairs[drawn].sum(1) - mean
    low, high = numpy.quantile(mean + deviations, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def over_seeds(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of one value a seed, and its interval over other seeds on the same images, by Student's t.

    Raises `ValueError` for fewer than `FEWEST` seeds, of which nobody can tell how they spread.
    """
    from scipy.stats import t

    if len(values) < FEWEST:
        raise ValueError(f"expected values of at least {FEWEST} seeds, found {len(values)}")
    mean = statistics.mean(values)
    reach = t.ppf((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def _resampled(
    values: NDArray[numpy.float64], count: int, resamples: int, generator: numpy.random.Generator
) -> NDArray[numpy.float64]:
    """Means of `count` of the values, drawn with replacement, (resamples,)."""
    chunk = max(1, CELLS // count)
    parts = [min(chunk, resamples - start) for start in range(0, resamples, chunk)]
    return numpy.concatenate([values[generator.integers(len(values), size=(part, count))].mean(1) for part in parts])
