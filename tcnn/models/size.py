"""The size of a model: its number of parameters, and the FLOPs of one image."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tcnn.layers.backends.selection import use_backend


def parameter_count(module: nn.Module) -> int:
    """Number of parameters of a module and all that it holds; a shared one counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """FLOPs of one image, 2 × multiply-adds of the reference formula with padding; None where torch cannot count.

    On the meta device: no data, and no time.

    Args:
        model: on the meta device.
        shape: of the image, (channels, height, width).
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, use_backend("reference"), torch.no_grad(), torch.device("meta"):
            model(torch.zeros(1, *shape))
    except AssertionError:  # it loses track of a parameter that is expanded without gradients, as CaiT's class token
        return None
    return int(counter.get_total_flops())
