"""The difference between T-CNN and CNN by budget: what several experiments say of one recipe, as table and picture.

The preset `cifar` with the last stage's stride kept: the T-CNN less the CNN of the same learning rate and updates.
"""

from typing import Any, NamedTuple

from figures import Result, gains
from matplotlib.figure import Figure

from tcnn.analysis.plots import style

PICTURE = "results-budget"
KINDS = ("clean", "corrupted")


class Run(NamedTuple):
    """An arm of an experiment, and the CNN that it is set beside."""

    experiment: str
    arm: str
    control: str


RUNS: dict[str, tuple[Run, ...]] = {
    "5e-4": (Run("cifar10_preset", "t-cnn", "cnn"), Run("cifar10_full", "t-cnn", "cnn")),
    "2e-3": (
        Run("cifar10_rates", "t-cnn-2e-3", "cnn-2e-3"),
        Run("cifar10_tuned", "t-cnn-ema", "cnn-ema"),
        Run("cifar10_tuned", "t-cnn-ema-20", "cnn-ema-20"),
    ),
}
"""By learning rate, in the order of their budget."""


class Point(NamedTuple):
    """What one of them found."""

    rate: str
    images: str
    updates: float
    seeds: int
    gains: dict[str, Any]


def points(results: dict[str, Result]) -> list[Point]:
    """Those that have been measured, given the experiments by name."""
    found = []
    for rate, runs in RUNS.items():
        for run in runs:
            result = results.get(run.experiment, {"summary": []})
            for entry in result["summary"]:
                gains = entry.get("against", {}).get(run.control)
                if entry["arm"] == run.arm and gains:
                    images = result["experiment"]["train_images"]
                    images = "all" if images is None else f"{images:,}"
                    found.append(Point(rate, images, entry["updates"], gains["seeds"], gains))
    return found


def picture(found: list[Point]) -> Figure:
    """Percentage points above the CNN against updates, clean and corrupted, with 95 % intervals."""
    made = style.figure(7.5, 3.2)
    rates, handles = list(dict.fromkeys(point.rate for point in found)), {}
    sides = made.subplots(1, len(KINDS), sharex=True, sharey=True)
    for ax, kind in zip(sides, KINDS, strict=True):
        style.axes(ax, kind, "updates", "percentage points" if kind == KINDS[0] else "")
        series = {
            f"learning rate {rate}": [(p.updates, p.gains[kind]) for p in found if p.rate == rate and kind in p.gains]
            for rate in rates
        }
        handles |= gains(ax, series)
    style.legend(made, list(handles.values()), list(handles), loc="outside right upper")
    return made
