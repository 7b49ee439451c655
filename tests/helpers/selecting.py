"""Selection on a trace, for the tests that look at what is chosen."""

from functools import cache
from typing import Any

from nets import meta_model
from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.selection import Selection, select
from tcnn.models.trace import Step, trace


def choose(model: nn.Module, size: tuple[int, int] | None = None, **options: Any) -> Selection:
    """What `select` chooses on a trace at `size`."""
    return select(model, trace(model, size), ConversionConfig(**options))


@cache
def traced(name: str) -> tuple[nn.Module, list[Step]]:
    """A timm model without data, and its trace; both are only read."""
    model = meta_model(name)
    return model, trace(model)


def choose_timm(name: str, **options: Any) -> Selection:
    """What `select` chooses of a timm model."""
    model, steps = traced(name)
    return select(model, steps, ConversionConfig(**options))
