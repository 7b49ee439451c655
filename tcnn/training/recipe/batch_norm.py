"""Batch normalisation in training: re-estimate its statistics, which average over an earlier τ; what it refuses."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module, exclude: Iterable[str] = ()) -> list[_BatchNorm]:
    """The batch normalisation layers of a model that keep running statistics, except those inside some modules."""
    passed = {id(module) for name in exclude for module in model.get_submodule(name).modules()}
    found = (module for module in model.modules() if id(module) not in passed)
    return [module for module in found if isinstance(module, _BatchNorm) and module.track_running_stats]


def is_single_value(error: ValueError) -> bool:
    """Whether this is batch normalisation's refusal of one value per channel: one image, of which one pixel is left."""
    return "more than 1 value per channel" in str(error)


@torch.no_grad()
def reestimate_batch_norm(model: nn.Module, batches: Iterable[Tensor], exclude: Iterable[str] = ()) -> None:
    """Replace all running means and variances by their averages over batches of images, (B, C, H, W) each.

    Layers in the modules named in `exclude`, which are frozen, keep theirs. All other modules are in evaluation mode
    meanwhile, as when the statistics are used: without dropout and stochastic depth. Every module's mode is restored.
    """
    norms = batch_norms(model, exclude)
    training = [module for module in model.modules() if module.training]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch's word for a mean that gives every batch the same weight
        norm.train()
    try:
        for images in batches:
            model(images)
    finally:
        model.eval()
        for module in training:
            module.training = True
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
