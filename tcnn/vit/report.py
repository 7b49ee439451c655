"""Report of an initialisation: where the heads or filters of every layer look, and how well they do."""

from typing import Literal

from tcnn.config.base import Record
from tcnn.layers.terms.positions import Pair

Initialisation = Literal["impulse", "mimetic", "convolution", "random", "default"]
Positions = Literal["fourier", "keep"]


class InitialisedLayer(Record):
    """One layer: where its heads look, in patches (y, x), and how well they do."""

    name: str
    offsets: tuple[tuple[int | float, int | float], ...]
    hits: float
    """Share of patches, over heads and images, that attend most to what lies at the offset."""
    weight: float
    """Mean attention weight there."""


class InitialisationReport(Record):
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
