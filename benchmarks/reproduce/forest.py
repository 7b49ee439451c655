"""Every comparison together: T-CNN less CNN of each experiment on CIFAR-10, and their mean, as table and forest plot.

One comparison is an arm and the CNN of the same geometry, learning rate and updates. All whose answers to every image
are kept are there, whatever they showed; `LEFT_OUT` names those that are no comparison of their own. In a mean, arms
beside the same trainings of a CNN are one comparison, and each of these trainings counts once.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from bootstrap import Compared, Interval, interval, pooled
from matplotlib.figure import Figure
from measuring import unpacked

from tcnn.analysis.plots import style
from tcnn.config import FinetuneConfig
from tcnn.data.parts import balanced_places

PICTURE = "results-forest"
KINDS = ("clean", "corrupted")
CLASSES, IMAGES = 10, 5_000
"""Of the validation images, of which every class has equally many, in order."""

USUAL_RATE = FinetuneConfig().lr
"""Of rows that tell no other."""

GROUPS: dict[str, tuple[str, ...]] = {
    "content heads, all images": ("cifar10_full", "cifar10_tuned"),
    "content heads, fewer images": (
        "cifar10_preset", "cifar10_rates", "cifar10_quick", "cifar10_quick_averaged", "cifar10_value_rate",
    ),
    "content heads; fitted before, or the last stage alone": ("cifar10", "cifar10_dilated"),
    "τ raised to 1, fewer images": ("positions", "cifar10_relative", "cifar10_quick_relative", "positions_tuned"),
    "content heads, another network, from ImageNet, fewer images": ("cifar10_transfer",),
}  # fmt: skip
"""What learns, on how many images: the experiments, by name. With content heads, taps stay a convolution, as with the
presets `cifar` and `quick`. The first two and the fourth train a whole ResNet-20."""
WHOLE = tuple(GROUPS)[:2]
TRAINED = (*WHOLE, tuple(GROUPS)[3])
POOLED: dict[str, tuple[str, ...]] = {
    **{group: (group,) for group in GROUPS},
    "content heads, the whole ResNet-20": WHOLE,
    "content heads or τ raised to 1, the whole ResNet-20": TRAINED,
    "all": tuple(GROUPS),
}
"""What is pooled, of which groups."""
LEFT_OUT = {
    ("cifar10_quick", "t-cnn-5e-4"): "the recipe and seeds of cifar10_value_rate, in 16 bits",
    ("cifar10_quick_averaged", "t-cnn"): "trainings of cifar10_value_rate, with an average",
    ("cifar10_tuned", "t-cnn"): "the trainings of t-cnn-ema, without the average",
    ("cifar10_tuned", "t-cnn-1e-3"): "its CNN has twice its learning rate",
}


class Comparison(NamedTuple):
    """An arm less its control."""

    group: str
    control: tuple[str, str]
    """The experiment, and the CNN's arm in it."""
    images: str
    """That the arms learned from."""
    rate: float
    label: str
    seeds: tuple[int, ...]
    values: dict[str, Compared]
    """By kind, as far as it was measured."""

    def interval(self, kind: str) -> Interval:
        return interval(self.values[kind].values)


def comparisons(results: Mapping[str, dict[str, Any]], directory: Path) -> list[Comparison]:
    """All of them, in the groups' order; `results` by their experiments' names, their images lie in `directory`."""
    found = []
    for group, names in GROUPS.items():
        for name in names:
            if name in results:
                with numpy.load(directory / f"{name}.npz") as right:
                    found += _of(group, results[name], right)
    return found


def together(found: Iterable[Comparison], groups: tuple[str, ...], kind: str) -> tuple[int, int, Interval]:
    """How many comparisons and trainings of a CNN these groups have of a kind, and the mean gain over all of these."""
    beside: dict[tuple[str, str], list[Comparison]] = {}
    for one in found:
        if one.group in groups and kind in one.values:
            beside.setdefault(one.control, []).append(one)
    merged = [_merged(arms, kind) for arms in beside.values()]
    return len(merged), sum(len(one.values) for one in merged), pooled(merged, IMAGES)


def _merged(arms: Sequence[Comparison], kind: str) -> Compared:
    """Arms beside the same trainings of a CNN as one comparison: in each seed the mean of the arms that have it."""
    seeds: dict[int, list[numpy.ndarray]] = {}
    for one in arms:
        for seed, own in zip(one.seeds, one.values[kind].values, strict=True):
            seeds.setdefault(seed, []).append(own)
    return Compared(arms[0].values[kind].places, numpy.array([numpy.mean(own, 0) for own in seeds.values()]))


def picture(found: list[Comparison]) -> Figure:
    """A forest plot: a line for each comparison with its 95 % interval, a diamond for each mean over several."""
    rows: list[tuple[str, bool, dict[str, Interval]]] = []
    for group in GROUPS:
        own = [one for one in found if one.group == group]
        rows += [(described(one), False, {kind: one.interval(kind) for kind in one.values}) for one in own]
        rows.append((f"{group}: mean", True, _means(found, (group,))))
    rows += [(f"{name}: mean", True, _means(found, POOLED[name])) for name in list(POOLED)[len(GROUPS) :]]
    made = style.figure(9.0, 0.24 * len(rows) + 1.0)
    sides = made.subplots(1, len(KINDS), sharey=True)
    for ax, kind in zip(sides, KINDS, strict=True):
        style.axes(ax, f"{kind}, T-CNN less CNN", "percentage points", "")
        ax.axvline(0, color=style.GREY, linewidth=1)
        for place, (_, mean, told) in enumerate(rows):
            if kind not in told:
                continue
            one = told[kind]
            colour, marker, size = (style.VERMILLION, "D", 6) if mean else (style.BLUE, "o", 3.5)
            ends = [[100 * (one.mean - one.low)], [100 * (one.high - one.mean)]]
            ax.errorbar(
                [100 * one.mean], [place], xerr=ends, color=colour, marker=marker, markersize=size, capsize=2,
                linewidth=1.4,
            )  # fmt: skip
    sides[0].set_yticks(range(len(rows)), [name for name, *_ in rows])
    sides[0].set_ylim(len(rows) - 0.4, -0.6)
    return made


def _means(found: Iterable[Comparison], groups: tuple[str, ...]) -> dict[str, Interval]:
    return {kind: together(found, groups, kind)[2] for kind in KINDS}


def described(one: Comparison) -> str:
    """In a few words: arm, images, learning rate, seeds."""
    rate = f"{one.rate:.0e}".replace("e-0", "e-")
    return f"{one.label.replace(f', {rate}', '')}, {one.images}, {rate} ({len(one.seeds)})"


def _of(group: str, result: dict[str, Any], right: Any) -> list[Comparison]:
    experiment, found = result["experiment"], []
    rows = {(row["arm"], row["seed"]): row for row in result["rows"]}
    for arm, said in experiment["arms"].items():
        control = said["control"]
        seeds = sorted(seed for own, seed in rows if own == arm and (control, seed) in rows)
        if control is None or not seeds or (experiment["name"], arm) in LEFT_OUT:
            continue
        one = rows[arm, seeds[0]]
        values = {}
        for kind in (kind for kind in KINDS if kind in one["images"]):
            count = one["images"][kind]
            mine, theirs = (
                numpy.array([unpacked(right[f"{name}/{seed}/{kind}"], count).mean(0) for seed in seeds])
                for name in (arm, control)
            )
            values[kind] = Compared(_places(count), mine - theirs)
        images = experiment["train_images"]
        told = "all images" if images is None else f"{images:,} images"
        of, rate = (experiment["name"], control), one["settings"].get("lr", USUAL_RATE)
        found.append(Comparison(group, of, told, rate, said["label"], tuple(seeds), values))
    return found


def _places(count: int) -> numpy.ndarray:
    """Which of the validation images were measured, as `measuring.chosen` chooses them."""
    if count == IMAGES:
        return numpy.arange(IMAGES)
    targets = torch.arange(CLASSES).repeat_interleave(IMAGES // CLASSES)
    return balanced_places(targets, count / IMAGES, 1).numpy()
