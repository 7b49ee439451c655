"""Pictures of an experiment, as the paper has them: accuracy through training, gates and spans (Fig. 4), the gain under
corruptions (Fig. 3), accuracy against test resolution (Fig. 7); and of several, the
gain of one recipe by budget.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from tcnn.analysis.plots import robustness, style, training
from tcnn.analysis.reading.evaluations import EvaluatedRow

Result = dict[str, Any]
"""What `results.Results` has written."""
Drawing = tuple[str, Callable[[], Figure | None]]
"""What it shows, and how it is drawn."""


def pictures(result: Result) -> dict[str, Drawing]:
    """The pictures that an experiment has something for, by the names of their files."""
    name, reference = result["experiment"]["name"], result["experiment"]["reference"]
    rows, arms = result["rows"], [entry["arm"] for entry in result["summary"]]
    label = {entry["arm"]: entry["label"] for entry in result["summary"]}
    found: dict[str, Drawing] = {}
    if any(len(row.get("epochs", {}).get("top1", ())) > 1 for row in rows):
        found[f"results-{name}-epochs"] = ("Accuracy after every epoch", lambda: accuracy(result))
    for row in rows:
        if row.get("heads") and moved(row["heads"]):
            what = f"Gates and spans of {label[row['arm']]}"
            found[f"results-{name}-gates-{row['arm']}"] = (what, _drawn(training.gates_and_spans, row["heads"]))
    if reference in arms:
        before, named = evaluated(result, reference, label[reference]), {name: name for name in label.values()}
        for arm in arms:
            control = result["experiment"]["arms"][arm]["control"]
            if control and (after := evaluated(result, arm, label[arm])).corruptions:
                what = f"Gain of {label[arm]} under corruptions"
                found[f"results-{name}-gain-{arm}"] = (what, _drawn(robustness.improvement, before, after, named))
    for root, points in lengths(result).items():
        what = f"Gain of {label[root].partition(',')[0]} by the length of training"
        found[f"results-{name}-length-{root}"] = (what, _drawn(gain_by_length, what, points))
    if result["experiment"]["sizes"]:
        sized = [row for arm in arms for row in at_sizes(result, arm, label[arm])]
        found[f"results-{name}-resolution"] = ("Accuracy against test resolution", _drawn(robustness.resolution, sized))
    return found


def moved(epochs: list[Result]) -> bool:
    """Whether a gate or a span is another than the others: where taps stay a convolution none is."""
    kept = {value for epoch in epochs for kind in ("gates", "spans") for own in epoch[kind].values() for value in own}
    return len(kept) > 1


def draw(result: Result, directory: Path) -> None:
    """Write the pictures of an experiment in place of older ones."""
    for name, (_, made) in pictures(result).items():
        figure = made()
        if figure is not None:
            style.write(figure, directory / name, ("png",), force=True)


def accuracy(result: Result) -> Figure:
    """Top-1 after every epoch of every arm, means over seeds; at the same place all have done the same updates.

    Where an epoch is not as long in every arm, as on a part of the images, updates are counted instead.
    """
    curves = {entry["label"]: mean_curve(result, entry["arm"]) for entry in result["summary"]}
    curves = {label: curve for label, curve in curves.items() if curve}
    step = {entry["label"]: entry["updates"] / len(curves[entry["label"]]) for entry in result["summary"]
            if entry["label"] in curves}  # fmt: skip
    along = "updates"
    if len({round(updates) for updates in step.values()}) == 1:
        step, along = dict.fromkeys(step, 1), "epochs trained"
    made = style.figure(7.5, 3.8)
    ax = style.axes(made.subplots(), "Accuracy after every epoch", along, "top-1 (%)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles = [
        ax.plot([step[label] * (at + 1) for at in range(len(curve))], [100 * value for value in curve],
                color=colour, marker="o", markersize=3.5, linewidth=1.6,
                linestyle=style.DASHES[number % len(style.DASHES)])[0]
        for number, ((label, curve), colour) in enumerate(zip(curves.items(), style.colours(len(curves)), strict=True))
    ]  # fmt: skip
    style.legend(made, handles, list(curves), loc="outside right upper")
    return made


def lengths(result: Result) -> dict[str, list[Result]]:
    """Arms that differ in how long they are trained, by the arm they are like: each with its gain over its control."""
    arms, families = result["experiment"]["arms"], dict[str, list[Result]]()
    for entry in result["summary"]:
        control, root = arms[entry["arm"]]["control"], entry["arm"]
        if control is None or control not in entry.get("against", {}):
            continue
        while arms[root].get("like") is not None:
            root = arms[root]["like"]
        families.setdefault(root, []).append({"updates": entry["updates"], **entry["against"][control]})
    several = {root: sorted(found, key=lambda one: one["updates"]) for root, found in families.items()}
    return {root: found for root, found in several.items() if len({one["updates"] for one in found}) > 1}


def gain_by_length(title: str, points: list[Result]) -> Figure:
    """Percentage points above the CNN that had the same updates, with their 95 % intervals."""
    made = style.figure(6.0, 3.6)
    ax = style.axes(made.subplots(), title, "updates", "percentage points")
    kinds = [kind for kind in ("clean", "corrupted") if any(kind in one for one in points)]
    handles = gains(ax, {k: [(one["updates"], one[k]) for one in points if k in one] for k in kinds})
    style.legend(made, list(handles.values()), list(handles), loc="outside right upper")
    return made


def gains(ax: Axes, series: dict[str, list[tuple[float, Result]]]) -> dict[str, Artist]:
    """Draw differences (`mean`, `interval`) against updates, a line for each name; returns what a legend shows."""
    ax.axhline(0, color=style.GREY, linewidth=1)
    ax.set_xscale("log")
    updates = sorted({at for points in series.values() for at, _ in points})
    ax.set_xticks(updates, [f"{number:,.0f}" for number in updates])
    ax.xaxis.set_minor_locator(NullLocator())
    handles: dict[str, Artist] = {}
    for number, ((name, points), colour) in enumerate(zip(series.items(), style.colours(len(series)), strict=True)):
        beside = 1.03 ** (2 * number - len(series) + 1)  # so that bars do not lie on each other
        means = [100 * found["mean"] for _, found in points]
        ends = [[100 * abs(found["mean"] - found["interval"][end]) for _, found in points] for end in (0, 1)]
        bars = ax.errorbar(
            [at * beside for at, _ in points], means, ends, color=colour, marker="o", markersize=4, linewidth=1.6,
            capsize=3, linestyle=style.DASHES[number % len(style.DASHES)],
        )  # fmt: skip
        handles[name] = bars.lines[0]
    return handles


def mean_curve(result: Result, arm: str) -> list[float]:
    """Accuracy after every epoch, mean over seeds."""
    curves = [row["epochs"]["top1"] for row in result["rows"] if row["arm"] == arm and "epochs" in row]
    return [statistics.mean(values) for values in zip(*curves, strict=True)]


def evaluated(result: Result, arm: str, label: str) -> EvaluatedRow:
    """An arm's corruption accuracy, means over seeds, in the form of `tcnn evaluate`."""
    by: dict[str, dict[int, list[float]]] = {}
    rows = [row for row in result["rows"] if row["arm"] == arm]
    for row in rows:
        for case, value in row["accuracy"].get("corrupted", {}).items():
            name, _, severity = case.partition("/")
            by.setdefault(name, {}).setdefault(int(severity), []).append(value)
    images = rows[0]["images"].get("corrupted", 0)
    corruptions = {}
    for name, severities in by.items():
        means = {severity: statistics.mean(values) for severity, values in severities.items()}
        scores = {severity: {"images": images, "top1": top1} for severity, top1 in means.items()}
        corruptions[name] = {"top1": statistics.mean(means.values()), "severities": scores}
    side = rows[0]["size"][0]
    return EvaluatedRow.model_validate({"model": label, "height": side, "width": side, "corruptions": corruptions})


def at_sizes(result: Result, arm: str, label: str) -> list[EvaluatedRow]:
    """An arm's clean accuracy at every size that it was measured at, means over seeds."""
    rows = [row for row in result["rows"] if row["arm"] == arm]
    found: dict[int, list[float]] = {}
    for row in rows:
        found.setdefault(row["size"][0], []).append(row["top1"])
        for side, value in row["accuracy"].get("sizes", {}).items():
            found.setdefault(int(side), []).append(value)
    images = rows[0]["images"]["clean"]
    return [
        EvaluatedRow.model_validate(
            {
                "model": label,
                "height": side,
                "width": side,
                "clean": {"images": images, "top1": statistics.mean(values)},
            }
        )
        for side, values in sorted(found.items())
    ]


def _drawn(make: Callable[..., Figure | None], *given: Any) -> Callable[[], Figure | None]:
    return lambda: make(*given)


BUDGET_PICTURE = "results-budget"
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
"""Of the preset `cifar` with the last stage's stride kept, by learning rate, in the order of their budget: the T-CNN
less the CNN of the same learning rate and updates."""


class BudgetPoint(NamedTuple):
    """What one of them found."""

    rate: str
    images: str
    updates: float
    seeds: int
    gains: dict[str, Any]


def budget_points(results: dict[str, Result]) -> list[BudgetPoint]:
    """Those that have been measured, given the experiments by name."""
    found = []
    for rate, runs in RUNS.items():
        for run in runs:
            result = results.get(run.experiment, {"summary": []})
            for entry in result["summary"]:
                found_gains = entry.get("against", {}).get(run.control)
                if entry["arm"] == run.arm and found_gains:
                    images = result["experiment"]["train_images"]
                    images = "all" if images is None else f"{images:,}"
                    found.append(BudgetPoint(rate, images, entry["updates"], found_gains["seeds"], found_gains))
    return found


def budget_picture(found: list[BudgetPoint]) -> Figure:
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
