"""What an error of a forward pass says: that the model does not take images of this size, or something else."""

from collections.abc import Sequence

import torch
from torch import nn

from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, out_of_memory, shorten

REFUSALS = (RuntimeError, AssertionError, ValueError, IndexError, RequestError)
"""What is raised on a size that is not taken.

PyTorch raises RuntimeError where shapes do not fit, ValueError where too little is left to normalise, and IndexError
beyond a table of positions; timm asserts the size of its patches; `EmptyMapError` is ours.
"""
OTHERS = (NotImplementedError, RecursionError, torch.OutOfMemoryError)
"""Kinds of RuntimeError that have nothing to do with shapes."""


def refuses_size(error: Exception) -> bool:
    """Whether an error may be a model's refusal of a size."""
    return isinstance(error, REFUSALS) and not isinstance(error, OTHERS) and not out_of_memory(error)


def failure(model: nn.Module, shape: Sequence[int], error: Exception, advice: str) -> TcnnError:
    """What to raise for an error of a model on images of `shape`, (C, H, W): in one line, with the cause.

    Args:
        advice: what to do where the size is refused.
    """
    name, size = type(model).__name__, "×".join(map(str, shape))
    first = next(iter(str(error).strip().splitlines()), "")
    told = shorten(first, 160) or type(error).__name__
    if out_of_memory(error):
        return EnvironmentFailure(f"out of memory: {name} on an image of {size}; choose a smaller size")
    if refuses_size(error):
        return RequestError(f"{name} does not run on an image of {size} ({told}); {advice}")
    return RequestError(
        f"{name}: expected a model that runs on a batch of images, found that its forward pass on {size} ends in "
        f"{type(error).__name__} ({told}), which no other size would mend"
    )
