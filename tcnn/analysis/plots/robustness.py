"""Plot robustness: gain under corruptions (Transformed CNNs, Fig. 3), accuracy by resolution (Fig. 7), shape bias."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcnn.analysis.plots import style
from tcnn.analysis.reading.evaluations import EvaluatedRow, titles

if TYPE_CHECKING:  # it loads torch
    from tcnn.evaluation.shape_bias import ShapeBias

CATEGORIES: Mapping[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
"""Categories of the corruptions (Hendrycks & Dietterich 2019, Fig. 1)."""
MARKERS = "osD^vP*X"
"""Of models, where a line is a category."""


def gains(before: EvaluatedRow, after: EvaluatedRow) -> dict[str, dict[int, float]]:
    """Percentage points of top-1 gained, by corruption and severity, where both were measured."""
    found = {
        name: {
            severity: 100 * (score.top1 - before.corruptions[name].severities[severity].top1)
            for severity, score in sorted(corruption.severities.items())
            if severity in before.corruptions[name].severities
        }
        for name, corruption in after.corruptions.items()
        if name in before.corruptions
    }
    return {name: values for name, values in found.items() if values}


def improvement(before: EvaluatedRow, after: EvaluatedRow, called: Mapping[str, str], at: str = "") -> Figure | None:
    """Plot the gain by severity and category, and by corruption; None where the two share no corruption.

    Args:
        called: the models' titles.
        at: what the title adds to them: the size, where there are several.
    """
    gained = gains(before, after)
    if not gained:
        return None
    made = style.figure(10, 4.4)
    lines, bars = made.subplots(1, 2, width_ratios=[1, 1.15])
    style.axes(lines, "By severity", "severity of corruption", "gain in top-1 (percentage points)")
    style.axes(bars, "By corruption, mean over severities", "gain in top-1 (percentage points)")
    handles, names = [], []
    for number, (category, members) in enumerate(CATEGORIES.items()):
        curve = _mean_by_severity([gained[name] for name in members if name in gained])
        if curve:
            handles.append(
                lines.plot(list(curve), list(curve.values()), color=style.PALETTE[number], marker="o", markersize=3.5,
                           linewidth=1.5, linestyle=style.DASHES[number % len(style.DASHES)])[0]
            )  # fmt: skip
            names.append(category)
    mean = _mean_by_severity(list(gained.values()))
    handles.append(lines.plot(list(mean), list(mean.values()), color=style.INK, marker="o", linewidth=3)[0])
    lines.axhline(0, color=style.GREY, linewidth=0.9)
    bars.axvline(0, color=style.GREY, linewidth=0.9)
    lines.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend(lines, handles, [*names, "mean"], loc="best")
    order = [name for members in CATEGORIES.values() for name in members if name in gained]
    order += [name for name in gained if name not in order]
    colours = {name: style.PALETTE[n] for n, members in enumerate(CATEGORIES.values()) for name in members}
    means = [sum(gained[name].values()) / len(gained[name]) for name in order]
    bars.barh(range(len(order)), means, color=[colours.get(name, style.GREY) for name in order], height=0.72)
    bars.set_yticks(range(len(order)), [style.label(name.replace("_", " "), 24) for name in order])
    bars.invert_yaxis()
    bars.grid(False, axis="y")
    title = f"{style.label(called[after.model], 38)} vs. {style.label(called[before.model], 38)}{at}"
    made.suptitle(title, fontsize=style.LARGE, color=style.INK, x=0.01, ha="left")
    return made


def _mean_by_severity(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    severities = sorted({severity for curve in curves for severity in curve})
    there = {severity: [curve[severity] for curve in curves if severity in curve] for severity in severities}
    return {severity: sum(values) / len(values) for severity, values in there.items()}


def resolution(rows: Sequence[EvaluatedRow]) -> Figure | None:
    """Plot top-1 on clean images against the side of the test images; None where no model was tested at two sizes."""
    by_model: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.clean is not None:
            side = (row.height * row.width) ** 0.5
            by_model.setdefault(row.model, []).append((side, 100 * row.clean.top1))
    if not any(len({side for side, _ in points}) > 1 for points in by_model.values()):
        return None
    made = style.figure(7.5, 3.8)
    ax = style.axes(made.subplots(), "Accuracy against test resolution", "side of test images (pixels)", "top-1 (%)")
    handles = [
        ax.plot(*zip(*sorted(points), strict=True), color=style.PALETTE[number % len(style.PALETTE)], marker="o",
                linewidth=1.8, markersize=4, linestyle=style.DASHES[number % len(style.DASHES)])[0]
        for number, points in enumerate(by_model.values())
    ]  # fmt: skip
    sides = sorted({side for points in by_model.values() for side, _ in points})
    if len(sides) <= 10:
        ax.set_xticks(sides, [f"{side:.0f}" for side in sides])
    style.legend(made, handles, list(titles(by_model).values()), loc="outside right upper")
    return made


def shape_bias(rows: "Sequence[ShapeBias]") -> Figure:
    """Plot the shape bias by category, as in Fig. 4 of Geirhos et al. 2019: texture at the left, shape at the right.

    A line for each category, a marker for each model, and a dashed line at every model's bias over all images.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.categories))
    made = style.figure(6.4, 1.6 + 0.28 * len(names))
    plot = made.subplots()
    style.axes(plot, "Shape or texture", "share of shape decisions (0 is texture, 1 is shape)", "")
    handles = []
    for number, row in enumerate(rows):
        points = [(row.categories[n].bias, place) for place, n in enumerate(names) if n in row.categories]
        there = [(bias, place) for bias, place in points if bias is not None]
        colour = style.PALETTE[number % len(style.PALETTE)]
        handles += plot.plot(
            [bias for bias, _ in there], [place for _, place in there], color=colour, linestyle="none",
            marker=MARKERS[number % len(MARKERS)], markersize=5,
        )  # fmt: skip
        if row.bias is not None:
            plot.axvline(row.bias, color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
    plot.set_yticks(range(len(names)), names)
    plot.set_xlim(-0.03, 1.03)
    plot.invert_yaxis()
    called = titles(row.model for row in rows)
    style.legend(plot, handles, [called[row.model] for row in rows], loc="best")
    return made
