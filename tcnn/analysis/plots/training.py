"""Plot training: accuracy, loss and τ (Transformed CNNs, Fig. 4A); attention spans and gates (Fig. 4B and C)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from tcnn.analysis.plots import style

Rows = Sequence[Mapping[str, Any]]
"""Lines of metrics.jsonl."""


def epochs(rows: Rows) -> list[Mapping[str, Any]]:
    """The rows of whole epochs."""
    return [row for row in rows if row.get("kind") == "epoch" and isinstance(row.get("epoch"), int)]


def progress(rows: Rows) -> Figure | None:
    """Plot accuracy, loss and temperature over training; None where no epoch was recorded."""
    done = epochs(rows)
    if not done:
        return None
    made = style.figure(10, 3.2)
    accuracy, loss, temperature = made.subplots(1, 3)
    style.axes(accuracy, "Accuracy on validation images", "epochs trained", "accuracy (%)")
    style.axes(loss, "Loss (cross-entropy)", "epochs trained", "nats per image")
    style.axes(temperature, "Temperature", "epochs trained", "τ (1/46: the CNN, 1: the T-CNN)")
    top1 = _line(accuracy, done, lambda row: _share(row, "top1"), style.BLUE, 0)
    top5 = _line(accuracy, done, lambda row: _share(row, "top5"), style.VERMILLION, 1)
    _legend(accuracy, {"top-1": top1, "top-5": top5})
    train = _line(loss, done, lambda row: row.get("train_loss"), style.GREY, 0)
    val = _line(loss, done, lambda row: (row.get("val") or {}).get("loss"), style.BLUE, 1)
    _legend(loss, {"training": train, "validation": val})
    positions = _line(temperature, done, lambda row: row.get("temperature"), style.GREEN, 0)
    if apart(done):
        gates = _line(temperature, done, lambda row: row.get("gate_temperature"), style.VERMILLION, 1)
        _legend(temperature, {"positions": positions, "gates": gates})
    temperature.set_yscale("log")
    drawn = [tau for line in temperature.lines for tau in map(float, line.get_ydata()) if math.isfinite(tau)]
    temperature.set_ylim(min([1 / 60, *(tau / 1.3 for tau in drawn)]), max([1.4, *(tau * 1.3 for tau in drawn)]))
    temperature.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    temperature.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    temperature.yaxis.set_minor_locator(NullLocator())
    for ax in (accuracy, loss, temperature):
        _epoch_axis(ax, done)
    return made


def apart(done: Rows) -> bool:
    """Whether the gates have another τ than the positions; the charts of pages ask the same (`apart` in curves.js)."""
    taus = [(row.get("gate_temperature"), row.get("temperature")) for row in done]
    return any(not math.isclose(gate, tau, rel_tol=1e-6) for gate, tau in taus if gate is not None and tau is not None)


def gates_and_spans(rows: Rows) -> Figure | None:
    """Plot attention span 1/α and gate σ(λ/τ) of every head, and their means, by layer; None where none was recorded.

    Thin lines are heads, thick lines the mean of a layer.
    """
    done = [row for row in epochs(rows) if isinstance(row.get("gates"), dict) and row["gates"]]
    if not done:
        return None
    names = list(dict.fromkeys(name for row in done for name in row["gates"]))
    made = style.figure(10, 3.8)
    spans, gates = made.subplots(1, 2)
    style.axes(spans, "Attention span", "epochs trained", "1/α (pixels² at τ = 1)")
    style.axes(gates, "Gate", "epochs trained", "σ(λ/τ): 0 content, 1 position")
    handles = []
    for number, (name, colour) in enumerate(zip(names, style.colours(len(names)), strict=True)):
        dashes = style.DASHES[number % len(style.DASHES)] if len(names) <= style.MAX_NAMED else "-"
        for ax, key in ((spans, "spans"), (gates, "gates")):
            drawn = _heads(ax, done, key, name, colour, dashes)
        handles.append(drawn)
    gates.set_ylim(-0.03, 1.03)
    for ax in (spans, gates):
        _epoch_axis(ax, done)
    if len(names) <= style.MAX_NAMED:
        style.legend(made, handles, names, loc="outside right upper", title="layer", title_fontsize=style.SMALL)
    else:
        _depth(made, names, [spans, gates])
    style.note(made, "Thin lines: heads. Thick lines: means over a layer.")
    return made


def _heads(ax: Axes, done: Rows, key: str, name: str, colour: str, dashes: Any) -> Any:
    """Draw a thin line for every head, and a thick one for their mean, which is returned."""
    known = [row for row in done if isinstance((row.get(key) or {}).get(name), list) and row[key][name]]
    at = [row["epoch"] + 1 for row in known]
    values = [row[key][name] for row in known]
    for head in range(max((len(row) for row in values), default=0)):
        line = [row[head] if head < len(row) else float("nan") for row in values]
        ax.plot(at, line, color=colour, linewidth=0.6, alpha=0.45)
    means = [sum(row) / len(row) for row in values]
    marker = "o" if len(at) == 1 else None
    return ax.plot(at, means, color=colour, linewidth=2.4, linestyle=dashes, marker=marker, markersize=4)[0]


def _line(ax: Axes, done: Rows, value: Any, colour: str, dashes: int) -> Any:
    """Draw a value of every epoch, with a gap where it is not finite and a dot where one stands alone; or nothing."""
    at, values = [row["epoch"] + 1 for row in done], [_finite(value(row)) for row in done]
    there = [not math.isnan(one) for one in values]
    if not any(there):
        return None
    around = zip([False, *there], there, [*there[1:], False], strict=False)
    alone = [place for place, (before, own, after) in enumerate(around) if own and not (before or after)]
    return ax.plot(at, values, color=colour, linewidth=1.8, linestyle=style.DASHES[dashes],
                   marker="o" if alone else None, markevery=alone, markersize=4)[0]  # fmt: skip


def _finite(value: Any) -> float:
    """The value as a plot takes it: NaN where there is none, or one that is not finite."""
    return value if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _share(row: Mapping[str, Any], name: str) -> float | None:
    value = (row.get("val") or {}).get(name)
    return 100 * value if isinstance(value, int | float) else None


def _legend(ax: Axes, lines: Mapping[str, Any]) -> None:
    there = {name: line for name, line in lines.items() if line is not None}
    style.legend(ax, list(there.values()), list(there), loc="best")


def _epoch_axis(ax: Axes, done: Rows) -> None:
    last = max(row["epoch"] for row in done) + 1
    ax.set_xlim(0, last + max(0.25, 0.02 * last))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _depth(made: Figure, names: Sequence[str], beside: Sequence[Axes]) -> None:
    """Add a colour scale from the first layer to the last, where there are too many for a legend."""
    scale = ListedColormap(style.colours(len(names)))
    shown = ScalarMappable(BoundaryNorm([i - 0.5 for i in range(len(names) + 1)], scale.N), scale)
    bar = made.colorbar(shown, ax=list(beside), ticks=[0, len(names) // 2, len(names) - 1], pad=0.02)
    bar.ax.set_yticklabels([style.label(names[i]) for i in (0, len(names) // 2, len(names) - 1)], fontsize=style.SMALL)
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)
    bar.ax.invert_yaxis()
