"""What a person should know of a replacement beside its numbers: the notes of a conversion's report."""

from collections.abc import Mapping

from torch import nn

from tcnn.conversion.report import STANDARDISATION_ENDED
from tcnn.layers.filters import is_standardised
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Pair
from tcnn.layers.terms.scopes import GLOBAL, Scope
from tcnn.models.trace import Step


def notes(conv: nn.Module, layer: GPSA2d, size: Pair | None, tied: Mapping[str, str]) -> list[str]:
    """Of the `layer` that takes the place of `conv`, on maps of `size` (h, w) where that is known.

    Args:
        tied: which of its parameters is one with which other of the model.
    """
    found = [STANDARDISATION_ENDED] if is_standardised(conv) else []
    if layer.scope.kind != "global" and size is not None:
        left, right, top, bottom = positions.padding_of(size, layer.geometry)
        height, width = top + size[0] + bottom, left + size[1] + right
        if layer.scope.covers((height, width), size):
            whole = GLOBAL if layer.scope.padding else Scope(padding=False)
            found.append(f"content {layer.content} acts as {whole}: the map is {height}×{width}, padding included")
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
