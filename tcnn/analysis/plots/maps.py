"""What every head attends to from one query, over the image (Transformed CNNs, Fig. 5 and 8)."""

import base64
import io
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from tcnn.analysis.plots import style
from tcnn.analysis.records import LayerMaps, Map, Picture

Part = Literal["combined", "content", "positional"]

ACROSS = 9
"""Heads side by side, unless they form a larger square."""
MOST_ROWS = 12
"""Rows of a page."""
CELL = 1.12
"""Inches."""


def maps(picture: Picture, part: Part = "combined") -> list[Figure]:
    """Pages with every head of every layer; only layers that have this part."""
    layers = [layer for layer in picture.layers if getattr(layer, part) is not None]
    return [_page(picture, page, part) for page in _pages(layers)]


def _pages(layers: Sequence[LayerMaps]) -> Iterator[list[LayerMaps]]:
    page: list[LayerMaps] = []
    for layer in layers:
        longer = [*page, layer]
        if page and sum(_rows(each, _across(longer)) for each in longer) > MOST_ROWS:
            yield page
            longer = [layer]
        page = longer
    if page:
        yield page


def _across(layers: Sequence[LayerMaps]) -> int:
    """Nine heads in a row show a 3×3 kernel as the paper does; larger square kernels keep their shape."""
    heads = max(len(layer.combined) for layer in layers)
    side = math.isqrt(heads)
    return side if side * side == heads and heads > ACROSS else min(ACROSS, heads)


def _rows(layer: LayerMaps, across: int) -> int:
    return math.ceil(len(layer.combined) / across)


def _page(picture: Picture, layers: Sequence[LayerMaps], part: Part) -> Figure:
    across = _across(layers)
    rows = sum(_rows(layer, across) for layer in layers)
    sides = [len(layer.combined[0]) / len(layer.combined[0][0]) for layer in layers]
    height = rows * (CELL * min(max(*sides, 0.6), 2.0) + 0.24) + 0.75
    gated = any(layer.gates is not None for layer in layers)
    made = style.figure(max((across + 1.35) * CELL + 0.9, 6.5), height)
    grid = GridSpec(rows, across + 1, figure=made, width_ratios=[1.35, *([1.0] * across)])
    image = numpy.asarray(Image.open(io.BytesIO(base64.b64decode(picture.png))).convert("RGB"))
    cells: list[Axes] = []
    row = 0
    for layer in layers:
        first = made.add_subplot(grid[row, 0])
        _image(first, image, layer)
        first.set_title(style.label(layer.layer, 20), fontsize=style.SMALL, color=style.INK, loc="left")
        cells.append(first)
        for head, weights in enumerate(getattr(layer, part)):
            ax = made.add_subplot(grid[row + head // across, 1 + head % across])
            _head(ax, image, layer, weights, head)
            cells.append(ax)
        row += _rows(layer, across)
    if gated:
        style.gate_bar(made, cells, height)
    words = {"combined": "attention", "content": "attention by content alone", "positional": "positional part alone"}
    title = f"{words[part].capitalize()} of every head from one query: {style.label(picture.name, 36)}"
    made.suptitle(title, fontsize=style.LARGE, color=style.INK, x=0.01, ha="left")
    above = "its largest weight · its gate, which colours the frame" if gated else "its largest weight"
    padded = " Hatched: padding." if any(any(layer.padding) for layer in layers) else ""
    style.note(made, f"Box: the query. Yellow: a head's largest weight. Above each map: {above}.{padded}")
    return made


def _image(ax: Axes, image: NDArray[numpy.uint8], layer: LayerMaps) -> None:
    _frame(ax, layer, layer.combined[0])
    ax.imshow(image, extent=_extent(layer, layer.combined[0]), interpolation="bilinear")
    _query(ax, layer)


def _head(ax: Axes, image: NDArray[numpy.uint8], layer: LayerMaps, weights: Map, head: int) -> None:
    values = numpy.asarray(weights, dtype=float)
    top = values.max()
    share = values / top if top > 0 else values
    _frame(ax, layer, weights)
    grey = image.mean(axis=2)
    ax.imshow(grey, cmap="gray", vmin=0, vmax=255, extent=_extent(layer, weights), interpolation="bilinear")
    overlay = colormaps[style.MAPS](share)
    overlay[..., 3] = 0.4 + 0.5 * share
    rows, columns = values.shape
    ax.imshow(overlay, extent=(-0.5, columns - 0.5, rows - 0.5, -0.5), interpolation="nearest")
    _query(ax, layer)
    if layer.gates is not None:
        for spine in ax.spines.values():
            spine.set_color(style.GATE(layer.gates[head]))
            spine.set_linewidth(2.4)
    gate = "" if layer.gates is None else f" · {layer.gates[head]:.2f}"
    ax.set_title(f"{_short(top)}{gate}", fontsize=6.5, color=style.INK, pad=3)


def _short(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def _frame(ax: Axes, layer: LayerMaps, weights: Map) -> None:
    """Room for the padded map, hatched where it is no image."""
    rows, columns = len(weights), len(weights[0])
    ax.set_xlim(-0.5, columns - 0.5)
    ax.set_ylim(rows - 0.5, -0.5)
    ax.set_aspect("equal")
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_color(style.FAINT)
    if any(layer.padding):
        ax.add_patch(
            Rectangle(
                (-0.5, -0.5),
                columns,
                rows,
                facecolor="#EEEEEE",
                edgecolor="#BBBBBB",
                hatch="////",
                linewidth=0,
                zorder=-1,
            )
        )


def _extent(layer: LayerMaps, weights: Map) -> tuple[float, float, float, float]:
    """Where the image lies in the padded map: left, right, bottom, top."""
    left, right, top, bottom = layer.padding
    rows, columns = len(weights), len(weights[0])
    return left - 0.5, columns - right - 0.5, rows - bottom - 0.5, top - 0.5


def _query(ax: Axes, layer: LayerMaps) -> None:
    row, column = layer.query
    for colour, width in (("white", 2.4), (style.VERMILLION, 1.3)):
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=width))
