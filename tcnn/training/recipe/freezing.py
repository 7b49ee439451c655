"""What of a model is not trained: the trunk, or spatial filters; and the ablations of the papers, which freeze more.

The modules before the converted stage, the trunk, keep their weights and batch normalisation statistics and run in
evaluation mode, so a step needs neither their gradients nor their activations. A CNN's trunk is that of the T-CNN which
it would become.

Ablations of a T-CNN or a ConViT are random filters, no gating and frozen GPSA layers (Transformed CNNs, Table 5;
ConViT, Table 3).
"""

from collections.abc import Iterable, Mapping

import torch
from timm.models.convit import GPSA
from torch import nn

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.conversion.selection import select
from tcnn.conversion.stages import is_spatial
from tcnn.errors import RequestError
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import Span, spans, trace
from tcnn.vit.impulse import spatial_filters
from tcnn.vit.initialise import initialise


def trunk_of(model: nn.Module, conversion: ConversionConfig, size: tuple[int, int]) -> tuple[str, ...]:
    """The trunk: the outermost modules that have run when the converted stage begins, by dotted name.

    Args:
        model: a T-CNN, or a CNN.
        conversion: which of a CNN's convolutions would be converted.
        size: (height, width) in pixels.

    Raises: `RequestError` where the model does not run at this size, and what selecting convolutions raises.
    """
    layers = gpsa_layers(model) or select(model, trace(model, size), conversion).names
    ran = spans(model, size)
    first = min((name for name in layers if name in ran), key=lambda name: ran[name].begin)
    begin = ran[_stage(model, first, ran)].begin
    before = [name for name, span in ran.items() if span.end < begin]
    return tuple(name for name in before if not any(name.startswith(f"{other}.") for other in before))


def freeze(model: nn.Module, trunk: Iterable[str]) -> int:
    """Freeze the parameters of the trunk; returns their number."""
    parameters = [p for name in trunk for p in model.get_submodule(name).parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    return sum(parameter.numel() for parameter in parameters)


def freeze_spatial(model: nn.Module) -> int:
    """Freeze the filters of depthwise k×k convolutions, so that only channels are mixed anew; returns their number.

    Raises `RequestError` for a model without any.
    """
    filters = [conv for _, conv in spatial_filters(model)]
    if not filters:
        raise RequestError(f"freeze: spatial is of depthwise convolutions, and {type(model).__name__} has none")
    for conv in filters:
        conv.requires_grad_(False)
    return sum(parameter.numel() for conv in filters for parameter in conv.parameters())


def set_trunk_eval(model: nn.Module, trunk: Iterable[str]) -> None:
    """Set the trunk of a model in training to evaluation mode."""
    for name in trunk:
        model.get_submodule(name).eval()


def _stage(model: nn.Module, first: str, ran: Mapping[str, Span]) -> str:
    """The outermost module around the first converted layer in which no other k×k convolution runs before it.

    So 1×1 convolutions and shortcuts of a stage, which are trained with it, are not part of the trunk.
    """
    earlier = [
        name for name, module in model.named_modules()
        if is_spatial(module) and name in ran and ran[name].begin < ran[first].begin
    ]  # fmt: skip
    stage = around = first
    while around := around.rpartition(".")[0]:
        if any(name.startswith(f"{around}.") for name in earlier):
            break
        stage = around if around in ran else stage  # a list of modules is not called
    return stage


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


def initialise_untrained(model: nn.Module, config: FinetuneConfig, trained: bool) -> None:
    """Initialise an untrained network as the configuration says; raises `RequestError` for one that has learnt."""
    if trained:
        kind = type(model).__name__
        raise RequestError(
            f"init: the {kind} has weights, which an initialisation would lose; train random ones with --no-pretrained"
        )
    initialise(model, config.init, seed=config.seed)
