"""Statistics of batch normalisation, taken anew: running means remember an earlier τ and earlier weights."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module, but: Iterable[str] = ()) -> list[_BatchNorm]:
    """The layers of a model that keep running statistics over batches, but for those in some of its modules."""
    passed = {id(module) for name in but for module in model.get_submodule(name).modules()}
    found = (module for module in model.modules() if id(module) not in passed)
    return [module for module in found if isinstance(module, _BatchNorm) and module.track_running_stats]


@torch.no_grad()
def reestimate(model: nn.Module, batches: Iterable[Tensor], but: Iterable[str] = ()) -> None:
    """Replace all running means and variances by their plain means over batches of images, (B, C, H, W) each.

    But for those in the modules named in `but`, which are frozen.

    All but the normalisation is in evaluation mode, as it will be where the statistics are used: without dropout and
    stochastic depth. Every module's mode is left as it was.
    """
    norms = batch_norms(model, but)
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
