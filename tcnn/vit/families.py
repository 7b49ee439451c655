"""Which initialisations the models of a family take: known from a timm name, without making the model."""

from collections.abc import Mapping

TAKEN_BY: Mapping[str, tuple[str, ...]] = {
    "vision_transformer": ("impulse", "mimetic"),
    "deit": ("impulse", "mimetic"),
    "convit": ("convolution", "random"),
    "convmixer": ("impulse",),
}
"""By timm's family; all take `default`. A model of one may still be refused, as one without positional embedding is."""
