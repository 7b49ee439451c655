"""Plot the shape bias of models by category, as in Fig. 4 of Geirhos et al. 2019: texture at the left, shape right."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from tcnn.analysis.plots import style
from tcnn.evaluation.shape_bias import ShapeBias

MARKERS = "osD^vP*X"


def shape_bias(rows: Sequence[ShapeBias]) -> Figure:
    """A line for each category, a marker for each model, and a dashed line at every model's bias over all images."""
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
    style.legend(plot, handles, [row.model for row in rows], loc="best")
    return made
