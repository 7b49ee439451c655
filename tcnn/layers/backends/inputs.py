"""`AttentionInputs`: what every backend computes attention from.

Shapes: B batch, C channels, h×w map, H×W padded map, Ho×Wo output map, K heads.
"""

from typing import NamedTuple

from torch import Tensor

from tcnn.layers.terms import positions
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.positions import Factors, Geometry, Pair
from tcnn.layers.terms.scopes import Scope


class AttentionInputs(NamedTuple):
    """A feature map and the layer that attends to it."""

    x: Tensor
    """The map, (B, C_in, h, w)."""
    geometry: Geometry
    scope: Scope
    factors: Factors
    """Of the positional attention on the padded map."""
    parameters: Parameters

    @property
    def size(self) -> Pair:
        """Size (H, W) of the padded map."""
        return positions.padded_size(self.x.shape[-2:], self.geometry)

    @property
    def padded(self) -> Tensor:
        """The map after `positions.pad`, (B, C_in, H, W): computed when it is asked for, which few backends do."""
        return positions.pad(self.x, self.geometry)
