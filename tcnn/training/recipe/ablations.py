"""Initialisation and ablations of the papers: random filters, no gating, frozen GPSA layers, of a T-CNN or a ConViT.

Transformed CNNs, Table 5; ConViT, Table 3.
"""

import torch
from timm.models.convit import GPSA
from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError
from tcnn.training.recipe.optim import gpsa_layers
from tcnn.vit.initialise import initialise


def ablate(model: nn.Module, config: FinetuneConfig) -> None:
    """Ablations of the papers that change a T-CNN, or a ConViT, before training.

    Random filters, no gating (λ = 0, fixed), frozen GPSA layers.
    """
    for gated in (module for module in model.modules() if isinstance(module, GPSA)):
        if not config.gating:
            gated.gating_param.data.fill_(0)
            gated.gating_param.requires_grad_(False)
        if config.freeze_gpsa:
            gated.requires_grad_(False)
    for layer in gpsa_layers(model).values():
        if config.filters == "random":
            with torch.no_grad():
                kept = {name: tensor.clone() for name, tensor in layer.state_dict().items() if name != "proj"}
                layer.reset_parameters(float(layer.position_temperature))
                layer.load_state_dict(kept, strict=False)
        if not config.gating:
            layer.gating_param.data.zero_()
            layer.gating_param.requires_grad_(False)
        if config.freeze_gpsa:
            layer.requires_grad_(False)


def begin(model: nn.Module, config: FinetuneConfig, trained: bool) -> None:
    """Initialise an untrained network as the configuration says; raises `RequestError` for one that has learnt."""
    if trained:
        kind = type(model).__name__
        raise RequestError(
            f"init: the {kind} has weights, which an initialisation would lose; train random ones with --no-pretrained"
        )
    initialise(model, config.init, seed=config.seed)
