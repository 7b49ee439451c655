"""Verification that a converted model is equivalent to its source, independent of the conversion code."""
