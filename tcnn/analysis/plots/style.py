"""Common style of all plots: a colour-blind safe palette, sizes, text, and reproducible PNG and SVG files.

It uses neither matplotlib's pyplot nor any global setting, and drawing is done by one thread at a time, so that a
server may use it.
"""

import io
import textwrap
import threading
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tcnn.analysis.charts.bundle import attention, palette
from tcnn.characters import visible
from tcnn.files import write_atomically

Format = Literal["png", "svg"]

PALETTE = palette()
"""That of the pages: Okabe & Ito's hues."""
BLUE, VERMILLION, GREEN = PALETTE[:3]
INK, GREY, FAINT = "#222222", "#767676", "#D9D9D9"
ATTENTION, QUERY = attention()
"""Colours of attention over an image and of the pixel that asks: the attention viewer's."""
GATE = LinearSegmentedColormap.from_list("gate", (VERMILLION, "#8C8C8C", BLUE))
"""Colour map of gates, from content (0) through grey to position (1)."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
"""Dash patterns, so that lines differ in more than colour."""
MAX_NAMED = 10
"""Largest number of lines with a legend; more are distinguished by a colour scale."""
DPI = 144
SMALL, NORMAL, LARGE = 7.5, 9.0, 10.5
"""Font sizes in points."""

_DRAWING = threading.Lock()  # matplotlib's caches of fonts and texts are not made for several threads
mpl.rcParams["svg.hashsalt"] = "tcnn"  # else the names inside of an SVG are drawn by lot


def figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, with constrained layout."""
    room = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04)
    made = Figure(figsize=(width, height), dpi=DPI, layout=room, facecolor="white")
    FigureCanvasAgg(made)
    return made


def axes(ax: Axes, title: str = "", x: str = "", y: str = "") -> Axes:
    """Style axes: title and labels."""
    ax.set_title(title, fontsize=LARGE, color=INK, loc="left")
    ax.set_xlabel(x, fontsize=NORMAL, color=INK)
    ax.set_ylabel(y, fontsize=NORMAL, color=INK)
    ax.tick_params(labelsize=SMALL, colors=INK)
    ax.grid(True, color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    return ax


def label(text: object, width: int = 40) -> str:
    """A name from outside as plot text: on one line, shortened, and without markup."""
    joined = (c for c in visible(str(text)) if unicodedata.category(c) != "Cf")  # no letters are joined in a plot
    plain = "".join(c if ord(c) in _glyphs() else "?" for c in " ".join("".join(joined).split()))
    if len(plain) > width:  # the end of a path or of a dotted name tells more than its start
        plain = "…" + plain[1 - width :]
    return (" " if plain.startswith("_") else "") + plain.replace("$", r"\$")


@cache
def _glyphs() -> frozenset[int]:
    """Code points that the font of the plots has."""
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def colours(count: int) -> list[str]:
    """One colour for each of `count` things: from the palette, or shades from early to late if there are more."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    scale = mpl.colormaps["viridis"]
    return [to_hex(scale(0.92 * index / (count - 1))) for index in range(count)]


def legend(at: Any, handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Add a legend to axes or a figure."""
    at.legend(handles, [label(name) for name in names], fontsize=SMALL, frameon=False, labelcolor=INK, **options)


def gate_bar(made: Figure, beside: Sequence[Axes], height: float) -> None:
    """Add the colour scale of gates, which has the size of a legend on a figure of any height."""
    long = min(3.0, 0.85 * height)
    bar = made.colorbar(
        ScalarMappable(Normalize(0, 1), GATE), ax=list(beside), ticks=[0, 0.5, 1], pad=0.02,
        shrink=long / height, aspect=long / 0.12, anchor=(0.0, 1.0),
    )  # fmt: skip
    bar.set_label("gate σ(λ/τ): 0 content, 1 position", fontsize=SMALL, color=INK)
    bar.ax.tick_params(labelsize=SMALL, colors=INK)


def png(made: Figure) -> bytes:
    """The figure as a PNG file, the same bytes every time."""
    return _drawn(made, "png")


def svg(made: Figure) -> str:
    """The figure as an SVG document, letters as outlines: it looks the same everywhere."""
    return _drawn(made, "svg").decode()


def _drawn(made: Figure, kind: Format) -> bytes:
    """The file, drawn once: `savefig` would draw twice, the first time for a place that is known by then."""
    buffer, canvas, dpi = io.BytesIO(), made.canvas, made.dpi
    with _DRAWING:
        try:
            if kind == "svg":
                FigureCanvasSVG(made).print_svg(buffer, metadata={"Date": None, "Creator": "tcnn"})
            else:
                FigureCanvasAgg(made).print_png(buffer, metadata={"Software": "tcnn"})
        finally:
            made.dpi = dpi  # an SVG has 72 of its own
            made.set_canvas(canvas)
        made.set_layout_engine("none")  # everything has its place now: a second file of it need not search again
    return buffer.getvalue()


def write(made: Figure, path: Path, kinds: Sequence[Format] = ("png", "svg"), force: bool = False) -> list[Path]:
    """Write a figure in several formats, `path` with each suffix; raises `OutputError` and `StorageError`."""
    written = []
    for kind in kinds:
        file = path.with_name(f"{path.name}.{kind}")
        write_atomically(file, _drawn(made, kind), force)
        written.append(file)
    return written


def note(made: Figure, text: str) -> None:
    """Add a note below the figure that explains how to read it."""
    words = textwrap.fill(text, int(15 * made.get_figwidth()))
    made.supxlabel(words, fontsize=SMALL, color=GREY, x=0.01, ha="left")
