"""The size of a model: its number of parameters."""

from torch import nn


def parameter_count(module: nn.Module) -> int:
    """Number of parameters of a module and all that it holds; a shared one counts once."""
    return sum(parameter.numel() for parameter in module.parameters())
