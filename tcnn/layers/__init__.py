"""The GPSA layer and the pure functions it is made of."""

from tcnn.layers.attention import AttentionMaps
from tcnn.layers.gpsa import GPSA2d

__all__ = ["AttentionMaps", "GPSA2d"]
