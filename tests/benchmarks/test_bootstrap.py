"""Intervals of paired differences, against closed forms and against what a 95 % interval promises."""

import numpy
import pytest
from bootstrap import Compared, interval, over_seeds, pooled
from sampled import sampled

NORMAL = 1.959964
"""Of the standard normal distribution 95 % lie between minus and plus this."""


def half(values: numpy.ndarray, **options: float) -> float:
    _, low, high = interval(values, **options)
    return (high - low) / 2


def test_images_alone_give_the_normal_interval() -> None:
    """One seed, many images: ± 1.96 standard errors around the mean."""
    values = numpy.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=(1, 1000), p=[0.05, 0.85, 0.1])
    mean, low, high = interval(values)
    error = values.std(ddof=1) / numpy.sqrt(1000)
    assert mean == pytest.approx(values.mean(), abs=1e-12)
    assert (high - low) / 2 == pytest.approx(NORMAL * error, rel=0.04)
    assert (low + high) / 2 == pytest.approx(mean, abs=0.1 * error)
    assert half(values, level=0.6827) == pytest.approx(error, rel=0.04)


def test_seeds_alone_give_the_normal_interval_of_many_and_stay_among_few() -> None:
    """Images that all agree, seeds that do not: ± 1.96 s/√S, s² the unbiased variance."""
    effects = numpy.random.default_rng(1).normal(0, 0.01, 40)
    values = numpy.repeat(effects[:, None], 50, 1)
    assert half(values) == pytest.approx(NORMAL * effects.std(ddof=1) / numpy.sqrt(40), rel=0.05)
    few = effects[:3]
    mean, low, high = interval(values[:3])
    assert few.min() - 1e-12 <= low < mean < high <= few.max() + 1e-12
    # Of three only two are drawn, so that the extremes come up in one of nine draws: they are the interval's ends.
    assert (low, high) == (pytest.approx(few.min()), pytest.approx(few.max()))


def test_what_is_hard_for_both_cancels() -> None:
    """Two arms that are right about the same images up to two in a hundred: a difference is known far better than
    either accuracy."""
    generator = numpy.random.default_rng(2)
    first = numpy.repeat(generator.random((1, 2000)) < 0.8, 3, 0)
    second = first ^ (generator.random((3, 2000)) < 0.02)
    assert half(first - second.astype(float)) < 0.5 * half(first.astype(float))


@pytest.mark.parametrize(
    ("seeds", "effect"), sampled([(1, 0.0), (3, 0.0), (3, 0.009), (5, 0.009)], [(3, 0.009)]), ids=str
)
def test_it_covers_the_truth_as_often_as_it_says(seeds: int, effect: float) -> None:
    """Crossed effects of images, of seeds and of neither: at least about 95 in 100 intervals hold the true mean of 0,
    and the interval is not wide for nothing."""
    generator = numpy.random.default_rng(3)
    runs, images, own, both = 200, 200, 0.1, 0.22
    held, widths = 0, []
    for _ in range(runs):
        values = generator.normal(0, own, images) + generator.normal(0, both, (seeds, images))
        values += generator.normal(0, effect, (seeds, 1))
        _, low, high = interval(values, resamples=1000)
        held += low <= 0 <= high
        widths.append((high - low) / 2)
    true = numpy.sqrt(own**2 / images + effect**2 / seeds + both**2 / seeds / images)
    assert 0.91 <= held / runs <= 1.0, f"{held} of {runs}"
    assert NORMAL * true * 0.9 < numpy.mean(widths) < NORMAL * true * 1.45


def test_the_same_values_give_the_same_interval() -> None:
    values = numpy.random.default_rng(4).normal(size=(3, 100))
    assert interval(values) == interval(values.copy())


def test_no_difference_is_known_exactly() -> None:
    assert interval(numpy.zeros((3, 10))) == (0, 0, 0)


def test_no_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one seed and image, found \(0, 5\)"):
        interval(numpy.zeros((0, 5)))


def test_over_seeds_alone_it_is_students() -> None:
    """Gosset's own ten differences in hours of sleep (Student 1908): mean 1.58, s 1.23, t(9) = 2.262."""
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    mean, low, high = over_seeds(sleep)
    assert mean == pytest.approx(1.58) and (high - low) / 2 == pytest.approx(0.8799, abs=1e-3)
    assert (low + high) / 2 == pytest.approx(mean)
    with pytest.raises(ValueError, match="at least 3 seeds, found 2"):
        over_seeds(sleep[:2])


def test_over_seeds_it_covers_the_truth_as_often_as_it_says() -> None:
    drawn = numpy.random.default_rng(5).normal(0, 1, (1000, 3))
    held = sum(low <= 0 <= high for _, low, high in map(over_seeds, drawn.tolist()))
    assert 0.93 <= held / 1000 <= 0.97


def test_pooled_over_single_seeds_is_the_mean_with_the_intervals_of_images_and_comparisons() -> None:
    """Comparisons of one seed on all images are what seeds are to `interval`."""
    values = numpy.random.default_rng(5).normal(0.2, 1, (6, 300)) + numpy.random.default_rng(6).normal(0, 0.2, (6, 1))
    found = pooled([Compared(numpy.arange(300), one[None]) for one in values], 300)
    same = interval(values)
    assert found.mean == pytest.approx(same.mean, abs=1e-12)
    assert found.high - found.low == pytest.approx(same.high - same.low, rel=0.05)


def test_pooled_counts_pairs_and_an_image_once() -> None:
    """Means are over pairs. What is hard in an image does not average out where all measure it."""
    one, two = Compared(numpy.arange(2), numpy.ones((3, 2))), Compared(numpy.arange(2), numpy.zeros((1, 2)))
    assert pooled([one, two, two], 2).mean == pytest.approx(3 / 5)
    generator = numpy.random.default_rng(7)
    hard = numpy.tile(generator.normal(size=100), (8, 1))
    shared = [Compared(numpy.arange(100), each[None]) for each in hard]
    apart = [Compared(numpy.arange(100) + 100 * at, each[None]) for at, each in enumerate(hard)]
    widths = [found.high - found.low for found in (pooled(shared, 100), pooled(apart, 800))]
    assert widths[0] / widths[1] == pytest.approx(8**0.5, rel=0.1)


@pytest.mark.slow
def test_pooled_covers_the_truth_where_comparisons_differ() -> None:
    """Comparisons with an effect of their own, of one to six seeds, on all images or a part."""
    generator = numpy.random.default_rng(8)
    runs, held = 200, 0
    for _ in range(runs):
        own = generator.normal(0, 0.1, 400)
        some = []
        for seeds in (1, 3, 3, 6, 2, 1, 3, 2, 3, 1):
            places = numpy.arange(400) if seeds > 2 else numpy.sort(generator.permutation(400)[:200])
            values = own[places] + generator.normal(0, 0.22, (seeds, len(places))) + generator.normal(0, 0.01)
            some.append(Compared(places, values))
        _, low, high = pooled(some, 400, resamples=500)
        held += low <= 0 <= high
    assert 0.9 <= held / runs <= 1.0, f"{held} of {runs}"


def test_two_comparisons_are_too_few() -> None:
    with pytest.raises(ValueError, match="at least 3 comparisons, found 2"):
        pooled([Compared(numpy.arange(2), numpy.ones((3, 2)))] * 2, 2)
