"""Freeze the trunk: train only the converted stage and what runs after it. Or freeze spatial filters.

The modules before the stage keep their weights and batch normalisation statistics and run in evaluation mode, so a step
needs neither their gradients nor their activations. A CNN's trunk is that of the T-CNN which it would become.
"""

from collections.abc import Iterable, Mapping

from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.selection import select
from tcnn.conversion.stages import is_spatial
from tcnn.errors import RequestError
from tcnn.models.trace import Span, spans, trace
from tcnn.training.recipe.optim import gpsa_layers
from tcnn.vit.impulse import spatial_filters


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
