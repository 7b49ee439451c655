"""The GPSA layer and the pure functions it is made of."""

from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.attention import AttentionMaps

__all__ = ["AttentionMaps", "GPSA2d"]
