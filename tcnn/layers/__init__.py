"""The GPSA layer and the pure functions it is made of."""

from tcnn.layers.gpsa import AttentionMaps, GPSA2d

__all__ = ["AttentionMaps", "GPSA2d"]
