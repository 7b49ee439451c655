"""Plot attention maps of every head for one query, over the image (Transformed CNNs, Fig. 5 and 8).

A page is one pair of axes whose units are inches, so that its hundreds of maps need no layout to be searched for.
"""

import base64
import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from tcnn.analysis.plots import style
from tcnn.analysis.records import LayerMaps, Picture
from tcnn.data.decode import open_image

Part = Literal["combined", "content", "positional"]
Pixels = NDArray[numpy.uint8]

HEADS_PER_ROW = 9
"""Heads per row, unless they form a larger square."""
MAX_ROWS = 12
"""Largest number of rows of a page."""
CELL, FIRST = 1.05, 1.4
"""Width of a head's map and of the image, in inches."""
GAP, EDGE, TITLE, LINE, BAR = 0.13, 0.12, 0.42, 0.19, 0.85
NARROWEST = 5.6
DENSITY = 160
"""Resolution of the maps in pixels per inch."""


def maps(picture: Picture, part: Part = "combined") -> list[Figure]:
    """Plot all heads of every layer that has this part (total, content or positional), on several pages."""
    layers = [layer for layer in picture.layers if getattr(layer, part) is not None and _heads(layer, part)]
    image = numpy.asarray(open_image(io.BytesIO(base64.b64decode(picture.png))).convert("RGB"))
    return [_page(picture.name, image, page, part) for page in _pages(layers, part)]


def _heads(layer: LayerMaps, part: Part) -> list[int]:
    """The heads that have this part: a content head has no positional one, and no gate."""
    gates = [] if layer.gates is None or part != "positional" else layer.gates
    return [head for head in range(len(layer.combined)) if not gates or gates[head] is not None]


def _pages(layers: Sequence[LayerMaps], part: Part) -> Iterator[list[LayerMaps]]:
    page: list[LayerMaps] = []
    for layer in layers:
        longer = [*page, layer]
        if page and sum(_rows(each, part, _across(longer, part)) for each in longer) > MAX_ROWS:
            yield page
            longer = [layer]
        page = longer
    if page:
        yield page


def _across(layers: Sequence[LayerMaps], part: Part) -> int:
    """Heads per row: nine for a 3×3 kernel as in the paper; larger square kernels keep their shape."""
    heads = max(len(_heads(layer, part)) for layer in layers)
    side = math.isqrt(heads)
    return side if side * side == heads and heads > HEADS_PER_ROW else min(HEADS_PER_ROW, heads)


def _rows(layer: LayerMaps, part: Part, across: int) -> int:
    return math.ceil(len(_heads(layer, part)) / across)


def _page(name: str, image: Pixels, layers: Sequence[LayerMaps], part: Part) -> Figure:
    across = _across(layers, part)
    gated = any(layer.gates is not None for layer in layers)
    width = max(2 * EDGE + FIRST + across * (CELL + GAP) + (BAR if gated else 0), NARROWEST)
    words = {"combined": "Attention", "content": "Content alone", "positional": "Position alone"}
    title = f"{words[part]}, every head, one query"
    note = textwrap.wrap(_note(layers, gated), int(15 * width))
    heights = [
        max(FIRST * _ratio(layer), _rows(layer, part, across) * (CELL * _ratio(layer) + LINE + GAP / 2))
        for layer in layers
    ]
    height = TITLE + sum(heights) + (LINE + GAP) * len(layers) + LINE * len(note) + EDGE
    made = style.figure(width, height)
    made.set_layout_engine("none")
    ax = made.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    _text(ax, EDGE, 0.26, f"{title}: {style.label(name, max(12, int(9 * width) - len(title)))}", style.LARGE)
    y = TITLE
    for layer, needed in zip(layers, heights, strict=True):
        _text(ax, EDGE, y + 0.13, style.label(layer.layer, 18), style.SMALL)
        _image(ax, image, layer, y + LINE)
        for place, head in enumerate(_heads(layer, part)):
            down, right = divmod(place, across)
            left = EDGE + FIRST + GAP + right * (CELL + GAP)
            top = y + LINE + down * (CELL * _ratio(layer) + LINE + GAP / 2)
            _head(ax, image, layer, part, head, (left, top))
        y += needed + LINE + GAP
    for number, line in enumerate(note):
        _text(ax, EDGE, y + 0.12 + number * LINE, line, style.SMALL, style.GREY)
    if gated:
        _gate_scale(ax, width - BAR + 0.1, TITLE + LINE, min(2.6, height - TITLE - 2 * LINE - EDGE))
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    return made


def _note(layers: Sequence[LayerMaps], gated: bool) -> str:
    above = "its largest weight · its gate (colour of the frame)" if gated else "its largest weight"
    padded = " Striped: padding." if any(any(layer.padding) for layer in layers) else ""
    return f"Box: the query. Orange: attention, relative to the head's largest weight. Above each map: {above}.{padded}"


def _image(ax: Axes, image: Pixels, layer: LayerMaps, top: float) -> None:
    """Draw the image as the layer has it, with its padding."""
    box = (EDGE, top, FIRST, FIRST * _ratio(layer))
    _raster(ax, _padded(image, layer, round(FIRST * DENSITY)), box)
    _query(ax, layer, box)


def _head(ax: Axes, image: Pixels, layer: LayerMaps, part: Part, head: int, corner: tuple[float, float]) -> None:
    weights = numpy.asarray(getattr(layer, part)[head], dtype=float)
    box = (corner[0], corner[1] + LINE, CELL, CELL * _ratio(layer))
    _raster(ax, overlaid(image, layer, weights, round(CELL * DENSITY)), box)
    _query(ax, layer, box)
    gate = None if layer.gates is None else layer.gates[head]
    colour, thick = (style.FAINT, 0.8) if gate is None else (style.GATE(gate), 2.2)
    ax.add_patch(Rectangle(box[:2], *box[2:], fill=False, edgecolor=colour, linewidth=thick))
    words = _short(float(weights.max())) + ("" if gate is None else f" · {gate:.2f}")
    _text(ax, corner[0] + CELL / 2, corner[1] + 0.13, words, 6.5, ha="center")


def overlaid(image: Pixels, layer: LayerMaps, weights: NDArray[numpy.float64], width: int) -> Pixels:
    """Overlay a head's weights on the grey image, `width` pixels wide, as the attention viewer does."""
    grey = numpy.repeat(image.mean(axis=2, keepdims=True).astype(numpy.uint8), 3, axis=2)
    below = _padded(grey, layer, width).astype(float)
    share = weights / (weights.max() or 1.0)
    opaque = Image.fromarray((255 * 0.9 * share).astype(numpy.uint8))
    size = (below.shape[1], below.shape[0])
    above = 255 * numpy.array(to_rgb(style.ATTENTION))
    alpha = numpy.asarray(opaque.resize(size, Image.Resampling.NEAREST), dtype=float)[..., None] / 255
    mixed: Pixels = (alpha * above + (1 - alpha) * below).astype(numpy.uint8)
    return mixed


def _padded(image: Pixels, layer: LayerMaps, width: int) -> Pixels:
    """The image on the padded map, `width` pixels wide, with stripes on the padding."""
    rows, columns = _size(layer)
    height = max(1, round(width * rows / columns))
    down, right = numpy.indices((height, width))
    stripes = numpy.where((down + right) % 10 < 2, 176, 236).astype(numpy.uint8)
    canvas = Image.fromarray(numpy.repeat(stripes[..., None], 3, axis=2))
    left, rightmost, top, bottom = layer.padding
    x0, x1 = (round(column / columns * width) for column in (left, columns - rightmost))
    y0, y1 = (round(row / rows * height) for row in (top, rows - bottom))
    canvas.paste(Image.fromarray(image).resize((max(1, x1 - x0), max(1, y1 - y0)), Image.Resampling.BILINEAR), (x0, y0))
    return numpy.asarray(canvas)


def _raster(ax: Axes, pixels: Pixels, box: tuple[float, float, float, float]) -> None:
    x, y, wide, high = box
    ax.imshow(pixels, extent=(x, x + wide, y + high, y), aspect="auto", interpolation="nearest")


def _query(ax: Axes, layer: LayerMaps, box: tuple[float, float, float, float]) -> None:
    rows, columns = _size(layer)
    x, y, wide, high = box
    (row, column), across, down = layer.query, wide / columns, high / rows
    for colour, thick in (("white", 2.4), (style.QUERY, 1.2)):
        ax.add_patch(
            Rectangle(
                (x + column * across, y + row * down), across, down, fill=False, edgecolor=colour, linewidth=thick
            )
        )


def _gate_scale(ax: Axes, x: float, y: float, high: float) -> None:
    strip = (255 * style.GATE(numpy.linspace(1, 0, 128))[:, None, :3]).astype(numpy.uint8)
    _raster(ax, strip, (x, y, 0.12, high))
    for gate in (0.0, 0.5, 1.0):
        _text(ax, x + 0.17, y + (1 - gate) * high + 0.04, f"{gate:g}", style.SMALL)
    ax.text(x + 0.45, y + high / 2, "gate σ(λ/τ): 0 content, 1 position", fontsize=6.5, color=style.INK, rotation=90,
            ha="left", va="center")  # fmt: skip


def _text(ax: Axes, x: float, y: float, words: str, size: float, colour: str = style.INK, ha: str = "left") -> None:
    ax.text(x, y, words, fontsize=size, color=colour, ha=ha, va="baseline")


def _size(layer: LayerMaps) -> tuple[int, int]:
    return len(layer.combined[0]), len(layer.combined[0][0])


def _ratio(layer: LayerMaps) -> float:
    """Height of a map in units of its width; very long strips are squeezed."""
    rows, columns = _size(layer)
    return min(max(rows / columns, 0.3), 3.0)


def _short(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"
