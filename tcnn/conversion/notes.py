"""Notes on a replacement for the report: what a person should know of it beside its numbers."""

from collections.abc import Mapping

from torch import nn

from tcnn.conversion.report import STANDARDISATION_ENDED
from tcnn.layers.filters import is_standardised
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Geometry, Pair
from tcnn.layers.terms.scopes import GLOBAL, Scope
from tcnn.models.trace import Step


def notes(conv: nn.Module, geometry: Geometry, scope: Scope, size: Pair | None, tied: Mapping[str, str]) -> list[str]:
    """Of the layer that takes the place of `conv`: standardisation ended, a content scope that is the whole map, ties.

    Args:
        geometry, scope: of the layer. size: (h, w) of the largest map that it gets, where that is known.
        tied: which of its parameters is one with which other of the model.
    """
    found = [STANDARDISATION_ENDED] if is_standardised(conv) else []
    if scope.kind != "global" and size is not None:
        left, right, top, bottom = positions.padding_of(size, geometry)
        height, width = top + size[0] + bottom, left + size[1] + right
        if scope.covers((height, width), size):
            whole = GLOBAL if scope.padding else Scope(padding=False)
            found.append(f"content {scope} acts as {whole}: the map is {height}×{width}, padding included")
    found += [f"its {own} is {other} as well, as it was before" for own, other in tied.items()]
    return found


def map_sizes(steps: list[Step]) -> dict[str, Pair]:
    """(h, w) of the largest map that each layer gets in one forward pass, by dotted name."""
    sizes: dict[str, Pair] = {}
    for step in steps:
        if step.input_shape is not None and len(step.input_shape) >= 3:
            size = step.input_shape[-2], step.input_shape[-1]
            sizes[step.name] = max(size, sizes.get(step.name, size), key=max)
    return sizes
