"""Report of an initialisation: where the heads or filters of every layer look, and how well they do."""

from typing import Literal

from tcnn.config.base import Record
from tcnn.formatting import Printed
from tcnn.layers.terms.positions import Pair

Initialisation = Literal["impulse", "mimetic", "convolution", "random", "default"]
Positions = Literal["fourier", "keep"]
MOST = 16
"""Offsets of a layer that are printed."""


class InitialisedLayer(Record):
    """One layer: where its heads look, in patches (y, x), and how well they do."""

    name: str
    offsets: tuple[tuple[int | float, int | float], ...]
    hits: float
    """Share of patches, over heads and images, that attend most to what lies at the offset."""
    weight: float
    """Mean attention weight there."""


class InitialisationReport(Printed, Record):
    """What `tcnn.initialise` did."""

    model: str
    initialisation: Initialisation
    positions: Positions
    grid: Pair
    prefix_tokens: int
    seed: int
    layers: tuple[InitialisedLayer, ...]
    notes: tuple[str, ...] = ()
    """What else is to be known, such as pixels that no patch holds."""

    def __str__(self) -> str:
        """Where the heads of every layer look, a line each; then what was made."""
        lines = []
        for layer in self.layers:
            offsets = " ".join(f"({y:+g},{x:+g})" for y, x in layer.offsets[:MOST])
            offsets += f" … {len(layer.offsets)} in all" if len(layer.offsets) > MOST else ""
            lines.append(f"{layer.name}: {offsets}  hit {layer.hits:.1%}, weight {layer.weight:.2f}")
        grid = "×".join(map(str, self.grid))
        lines.append(f"{self.model}: {self.initialisation}, {grid} patches, positions {self.positions}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
