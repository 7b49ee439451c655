"""The page of `tcnn verify --explain`: why two models differ, with plots, a file without network access or scripts."""

import math
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tcnn.analysis.pages.page import pictures, template
from tcnn.analysis.plots import style
from tcnn.analysis.plots.gallery import NamedPlot
from tcnn.files import write_atomically
from tcnn.verification.explanation import DECADES, Explanation
from tcnn.version import __version__

FLOOR = 1e-18
"""What an error of zero is drawn at."""
CEILING = 1e3


def page(found: Explanation, reference: str, candidate: str) -> str:
    """The page, as a string; the models by their names."""
    output = "the first diverging output" if any(one.first for one in found.passes) else "the models' outputs"
    drawn = [
        NamedPlot("by-layer", "Relative error of every layer's output in both precisions.", by_layer(found)),
        NamedPlot("histogram", f"Number of elements of {output} by the size of the difference.", histogram(found)),
    ]
    return template("explanation.html").render(
        title=f"{candidate} against {reference}",
        found=found,
        output=output,
        pictures=pictures(drawn),
        made_by=__version__,
    )


def write(found: Explanation, reference: str, candidate: str, file: Path, force: bool = False) -> None:
    """Write the page to a file; raises `OutputError` and `StorageError`."""
    write_atomically(file, page(found, reference, candidate), force)


def by_layer(found: Explanation) -> Figure:
    """Relative error of every layer's output: with all that came before it, and what the layer adds itself."""
    made = style.figure(10, 3.4)
    panels = made.subplots(1, len(found.passes), squeeze=False)[0]
    for ax, one in zip(panels, found.passes, strict=True):
        style.axes(ax, one.dtype, "layers in order of execution", "relative error")
        ax.set_yscale("log")
        ax.set_ylim(FLOOR / 3, CEILING)
        places = range(1, len(one.layers) + 1)
        whole = [_drawn(layer.error.worst) for layer in one.layers]
        own = [_drawn(layer.own.worst) if layer.own is not None else math.nan for layer in one.layers]
        (line,) = ax.plot(places, whole, color=style.BLUE, linewidth=1.4)
        (dots,) = ax.plot(places, own, color=style.VERMILLION, linestyle="", marker="o", markersize=3)
        bound = ax.axhline(one.tolerance, color=style.GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        names = ["with all layers before it", "the layer alone", f"tolerance {one.tolerance:.0e}"]
        style.legend(ax, [line, dots, bound], names, loc="upper left")
    return made


def histogram(found: Explanation) -> Figure:
    """How many elements of the departing output differ by how much of its largest."""
    made = style.figure(7, 2.6)
    ax = style.axes(made.subplots(), "", "difference relative to the largest value", "elements")
    counts: Mapping[int, int] = found.histogram
    ax.bar(list(DECADES), [counts.get(power, 0) for power in DECADES], color=style.BLUE, width=0.9, align="edge")
    ax.set_yscale("symlog")
    ax.set_ylim(bottom=0)
    ticks = list(DECADES)[::3]
    ax.set_xticks(ticks, ["0" if power == DECADES.start else f"1e{power}" for power in ticks])
    return made


def _drawn(error: float) -> float:
    return min(max(error, FLOOR), CEILING / 2)
