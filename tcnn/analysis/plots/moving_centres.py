"""Animate where the heads of an attentional network look while it is trained (Cordonnier et al. 2020, Fig. 3 and 4)."""

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Circle
from PIL import Image

from tcnn.analysis.plots import style
from tcnn.errors import RequestError
from tcnn.files import replacing

COLUMNS = 3
REACH = 8.0
"""Pixels from the query to the edge of a panel: half a map of 16."""
SHARES = ((0.5, "-"), (0.9, ":"))
"""The share of a Gaussian that lies in each circle, as the paper draws them."""
FRAME_MS, LAST_MS = 400, 2000


def frames(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """One figure for every epoch of metrics.jsonl that says where heads look: a panel a layer, a colour a head.

    Raises: `RequestError` where none does.
    """
    seen = [row for row in rows if row.get("looking")]
    if not seen:
        raise RequestError("this run says nothing of centres: expected one of an attentional network (cordonnier_*)")
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
    columns = min(COLUMNS, len(layers))
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
        ax.set_xlim(-REACH, REACH)
        ax.set_ylim(REACH, -REACH)  # rows go down, as in an image
        ax.set_aspect("equal")
    for ax in panels[len(layers) :]:
        ax.set_visible(False)
    return made


def _image(figure: Figure) -> Image.Image:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE)
