"""Plot non-locality by layer (ConViT, Eq. 8 and Fig. 5), of one model or several."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tcnn.analysis.plots import style
from tcnn.analysis.records import Layer, Measure

PARTS = {"total": style.INK, "content": style.VERMILLION, "positional": style.BLUE}
MAX_NAMES = 24
"""Largest number of layers that are named along the axis; more are numbered."""


def non_locality(layers: Sequence[Layer]) -> Figure:
    """Plot non-locality and entropy of every layer: dots for heads, lines for means, also of both parts."""
    made = style.figure(10, 4.2)
    far, wide = made.subplots(1, 2)
    style.axes(far, "Non-locality", "", "mean query–key distance (map pixels)")
    style.axes(wide, "Entropy", "", "nats per query")
    handles: dict[str, object] = {}
    for ax, measure in ((far, "non_locality"), (wide, "entropy")):
        for number, (part, colour) in enumerate(PARTS.items()):
            shift = 0.1 * (number - 1)
            means = [(at + shift, getattr(getattr(layer, measure), part)) for at, layer in enumerate(layers)]
            means = [(at, value) for at, value in means if value is not None]
            if not means:
                continue
            for at, layer in enumerate(layers):
                values: list[Measure] = [getattr(head, measure) for head in layer.heads]
                heads = [value for value in (getattr(v, part) for v in values) if value is not None]
                ax.plot([at + shift] * len(heads), heads, "o", color=colour, markersize=2.6, alpha=0.5, linewidth=0)
            handles[part] = ax.plot(*zip(*means, strict=True), color=colour, linewidth=2, marker="D", markersize=4,
                                    linestyle=style.DASHES[number])[0]  # fmt: skip
        ax.set_ylim(bottom=0)
        _layers_axis(ax, [layer.name for layer in layers])
    style.legend(made, list(handles.values()), list(handles), loc="outside right upper")
    style.note(made, "Small dots: heads. Lines: means over a layer.")
    return made


def compared(models: Sequence[tuple[str, Sequence[Layer]]]) -> Figure | None:
    """Plot several models' non-locality against depth, as a share of the map's side, because their maps differ in size.

    Args:
        models: the layers of each, after its name. None is drawn where nothing was measured.
    """
    made = style.figure(7.5, 3.8)
    ax = style.axes(
        made.subplots(), "Non-locality through the layers", "attention layer, from first to last",
        "mean query–key distance (% of the map's side)",
    )  # fmt: skip
    handles, names = [], []
    for number, (name, layers) in enumerate(models):
        values = [relative(layer) for layer in layers]
        points = [(at, value) for at, value in zip(_depths(len(layers)), values, strict=True) if value is not None]
        if points:
            handles.append(
                ax.plot(*zip(*points, strict=True), color=style.PALETTE[number % len(style.PALETTE)], marker="o",
                        linewidth=1.8, markersize=4, linestyle=style.DASHES[number % len(style.DASHES)])[0]
            )  # fmt: skip
            names.append(name)
    if not handles:
        return None
    ax.set_ylim(bottom=0)
    ax.set_xticks([0, 1], ["first", "last"])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    style.legend(made, handles, names, loc="outside right upper")
    return made


def relative(layer: Layer) -> float | None:
    """Non-locality in per cent of the mean side of the layer's unpadded map."""
    if layer.non_locality.total is None:
        return None
    left, right, top, bottom = layer.padding
    side = (layer.map[0] - top - bottom + layer.map[1] - left - right) / 2
    return 100 * layer.non_locality.total / side


def _depths(count: int) -> list[float]:
    return [0.5] if count == 1 else [index / (count - 1) for index in range(count)]


def _layers_axis(ax: Axes, names: Sequence[str]) -> None:
    ax.set_xlim(-0.5, len(names) - 0.5)
    if len(names) <= MAX_NAMES:
        turned = 12 if len(names) <= 4 else 90
        ax.set_xticks(range(len(names)), [style.label(name, 22) for name in names], rotation=turned)
    else:
        ax.set_xlabel(f"layer: {style.label(names[0], 22)} … {style.label(names[-1], 22)}", fontsize=style.SMALL)
