"""Plot attention centres, with circles of 50 % and 90 % of the positional attention: on the kernel's grid, or animated.

Cordonnier et al. 2020, Fig. 4 of a T-CNN, and Fig. 3 and 4 of an attentional network while it is trained.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Ellipse, Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image

from tcnn.analysis.plots import style
from tcnn.analysis.records import Head, Layer
from tcnn.data.decode import open_image
from tcnn.errors import RequestError
from tcnn.files import replacing

COLUMNS = 4
PANEL = 2.7
"""Side of a panel in inches."""
FRAME_COLUMNS = 3
FRAME_REACH = 8.0
"""Pixels from the query to the edge of a panel: half a map of 16."""
SHARES = ((0.5, "-"), (0.9, ":"))
"""The share of a Gaussian that lies in each circle, as the paper draws them."""
FRAME_MS, LAST_MS = 400, 2000


def centres(layers: Sequence[Layer]) -> Figure | None:
    """Plot the centres of every layer, one panel each; None where no layer has centres."""
    shown = [layer for layer in layers if any(head.centre is not None for head in layer.heads)]
    if not shown:
        return None
    columns = min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    made = style.figure(max(columns * PANEL + 1.0, 5.0), rows * (PANEL + 0.25) + 0.7)
    panels = made.subplots(rows, columns, squeeze=False).ravel()
    for ax, layer in zip(panels, shown, strict=False):
        _panel(ax, layer)
    for ax in panels[len(shown) :]:
        ax.set_visible(False)
    style.gate_bar(made, list(panels), rows * (PANEL + 0.25))
    handles = [
        Line2D([], [], color=style.INK, marker="s", linestyle="", markersize=5),
        Line2D([], [], color=style.INK, marker="o", linestyle="", markersize=4),
        Line2D([], [], color=style.INK, linewidth=1.1),
        Line2D([], [], color=style.INK, linewidth=1.1, linestyle=":"),
    ]
    names = ["query", "a head's centre Δ", "50 % of its attention", "90 %"]
    style.legend(made, handles, names, loc="outside lower center", ncols=4 if columns > 1 else 2)
    return made


def _outline(head: Head, radius: float, **style_of: Any) -> Patch:
    """The circle of so many pixels around a head's centre, or the ellipse of its area where the head has two widths."""
    assert head.centre is not None  # noqa: S101 - it is drawn
    row, column = head.centre
    if head.precision is None:
        return Circle((column, row), radius, fill=False, linewidth=1.1, **style_of)
    (down, both), (_, right) = head.precision
    # Of M in (column, row) order: its eigenvalues are the inverse squares of the half axes, up to the area.
    spread, tilt = math.hypot((right - down) / 2, both), math.atan2(2 * both, right - down) / 2
    narrow, wide = (right + down) / 2 + spread, max((right + down) / 2 - spread, 1e-9)
    stretch = (narrow / wide) ** 0.25
    return Ellipse(
        (column, row), 2 * radius / stretch, 2 * radius * stretch, angle=math.degrees(tilt), fill=False, linewidth=1.1,
        **style_of,
    )  # fmt: skip


def _panel(ax: Axes, layer: Layer) -> None:
    style.axes(ax, "", "columns from the query (pixels)", "rows (pixels)")
    ax.set_title(style.label(layer.name, 22), fontsize=style.NORMAL, color=style.INK, loc="left")
    ax.grid(False)
    reach = 0.8
    for head in layer.heads:
        if head.tap_offset is not None:
            row, column = head.tap_offset
            ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#B0B0B0", linewidth=0.8))
            reach = max(reach, abs(row) + 0.6, abs(column) + 0.6)
    for head in layer.heads:
        if head.centre is None or not all(map(math.isfinite, head.centre)):
            continue
        row, column = head.centre
        colour = style.GREY if head.gate is None else style.GATE(head.gate)
        if head.tap_offset is not None:
            ax.plot([head.tap_offset[1], column], [head.tap_offset[0], row], color=colour, linewidth=0.7)
        for radius, line in ((head.radius_50, "-"), (head.radius_90, ":")):
            if radius is not None and math.isfinite(radius):
                ax.add_patch(_outline(head, radius, edgecolor=colour, linestyle=line))
        ax.plot(column, row, "o", color=colour, markersize=3.2)
        reach = max(reach, *(abs(place) + min(head.radius_90 or 0, 3) + 0.2 for place in (row, column)))
    ax.plot(0, 0, "s", color=style.INK, markersize=4.5, zorder=0)
    reach = min(reach, max(layer.map))  # a centre that ran away would shrink all others to a point
    ax.set_xlim(-reach, reach)
    ax.set_ylim(reach, -reach)  # rows go down, as in an image
    ax.set_aspect("equal")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=5, integer=True))


def frames(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """One figure for every epoch of metrics.jsonl that says where heads look: a panel a layer, a colour a head.

    Raises: `RequestError` where none does.
    """
    seen = [row for row in rows if row.get("looking")]
    if not seen:
        raise RequestError("this run recorded no centres: expected a run of an attentional network (cordonnier_*)")
    return [_frame(row) for row in seen]


def animate(rows: Sequence[dict[str, Any]], file: Path, force: bool = False) -> Path:
    """Write the frames as a GIF that repeats; raises `RequestError`, `OutputError`."""
    images = [_image(figure) for figure in frames(rows)]
    with replacing(file, force) as temporary:
        images[0].save(
            temporary, format="GIF", save_all=True, append_images=images[1:], loop=0,
            duration=[FRAME_MS] * (len(images) - 1) + [LAST_MS],
        )  # fmt: skip
    return file


def _frame(row: dict[str, Any]) -> Figure:
    layers: dict[str, Any] = row["looking"]
    columns = min(FRAME_COLUMNS, len(layers))
    made = style.figure(2.4 * columns, 2.55 * math.ceil(len(layers) / columns) + 0.4)
    panels = made.subplots(math.ceil(len(layers) / columns), columns, squeeze=False).ravel()
    made.suptitle(f"after epoch {row['epoch'] + 1}", fontsize=style.NORMAL, color=style.INK)
    for number, (ax, layer) in enumerate(zip(panels, layers.values(), strict=False), 1):
        style.axes(ax, "", "", "")
        ax.set_title(f"layer {number}", fontsize=style.NORMAL, color=style.INK, loc="left")
        ax.grid(False)
        ax.plot(0, 0, "s", color=style.INK, markersize=4.5, zorder=0)
        for head, ((down, right), strength) in enumerate(zip(layer["centres"], layer["strengths"], strict=True)):
            colour = f"C{head}"
            for share, line in SHARES:
                radius = math.sqrt(-math.log1p(-share) / max(strength, 1e-9))
                ax.add_patch(Circle((right, down), radius, fill=False, edgecolor=colour, linestyle=line, linewidth=0.9))
            ax.plot(right, down, "o", color=colour, markersize=3)
        ax.set_xlim(-FRAME_REACH, FRAME_REACH)
        ax.set_ylim(FRAME_REACH, -FRAME_REACH)  # rows go down, as in an image
        ax.set_aspect("equal")
    for ax in panels[len(layers) :]:
        ax.set_visible(False)
    return made


def _image(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return open_image(buffer).convert("P", palette=Image.Palette.ADAPTIVE)
