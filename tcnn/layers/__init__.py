"""The GPSA layers (gated positional self-attention) and the functions that compute them."""

from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.attention import AttentionMaps

__all__ = ["AttentionMaps", "GPSA2d"]
