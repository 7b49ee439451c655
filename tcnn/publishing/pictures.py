"""Pictures of a model card: where heads look, how far, and attention maps on images."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from tcnn.analysis.extra import has_plots
from tcnn.analysis.inspect import inspect
from tcnn.errors import NoAttentionError

SHOWN = 2
"""Pictures whose attention maps are drawn."""


class Drawn(NamedTuple):
    """A picture in a repository."""

    file: str
    caption: str


def draw(model: nn.Module, images: str | Path | None, folder: Path) -> Sequence[Drawn]:
    """Draw a model's heads into a folder; unless images are given, none without attention, or without matplotlib.

    Raises: `EnvironmentFailure` for images without matplotlib, `NoAttentionError` for images without attention,
    `RequestError` for images that cannot be read.
    """
    if images is None and not has_plots():
        return ()
    from tcnn.analysis.extra import require_plots

    require_plots()
    from tcnn.analysis.plots import style
    from tcnn.analysis.plots.gallery import inspection_plots

    try:
        found = inspect(model, images, shown=SHOWN)
    except NoAttentionError:
        if images is not None:
            raise
        return ()
    drawn = []
    for plot in inspection_plots(found):
        if plot.name.startswith("attention-") and "combined" not in plot.name:
            continue
        style.write(plot.figure, folder / plot.name, ("png",))
        drawn.append(Drawn(f"{plot.name}.png", plot.caption))
    return drawn
