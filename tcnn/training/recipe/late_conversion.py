"""Convert during training: the CNN becomes a T-CNN after some epochs (Transformed CNNs, §5, Table 3).

The optimizer state of a filter (moments, momentum, step) is carried through the same permutation as the filter itself,
so the first update after the conversion is the one that the CNN would have made.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.conversion.surgery import convert
from tcnn.layers.filters import is_standardised
from tcnn.layers.gpsa import filter_to_proj
from tcnn.training.recipe.optim import create_optimizer, group_counters, memory_of


def convert_in_training(
    model: nn.Module, optimizer: Optimizer, config: FinetuneConfig, conversion: ConversionConfig | None = None
) -> tuple[nn.Module, Optimizer]:
    """Convert a model in training; returns it with an optimizer that has the state of the previous one.

    Raises what `convert` raises. Query, key, value, gates and positions are new and start without state.
    """
    converted, report = convert(model, conversion or config.conversion)
    fresh = create_optimizer(converted, config)
    known = dict(model.named_parameters(remove_duplicate=False))  # a tied one goes by another name in either model
    replaced = {layer.name for layer in report.layers}
    for name, parameter in converted.named_parameters():
        layer, _, own = name.rpartition(".")
        if layer not in replaced or own == "bias":
            moved = _state(optimizer, known[name])
        elif own == "proj" and not is_standardised(model.get_submodule(layer)):
            # A standardised filter is no linear image of its weight, so moments of the one say nothing of the other.
            moved = _permuted(_state(optimizer, known[f"{layer}.weight"]), known[f"{layer}.weight"].shape, parameter)
        else:
            continue
        if moved:
            memory_of(fresh)[parameter] = moved
    for group in fresh.param_groups:  # what LAMB and others count is the same in every group
        group.update(group_counters(optimizer)[0])
    return converted, fresh


def _state(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    held = memory_of(optimizer).get(parameter, {})
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in held.items()}


def _permuted(state: dict[str, Any], shape: torch.Size, proj: Tensor) -> dict[str, Any]:
    """Optimizer state of a filter, permuted to that of W_out; the columns of content heads, the last, start at zero."""
    return {
        key: F.pad(filter_to_proj(value), (0, proj.shape[1] - shape[1:].numel()))
        if isinstance(value, Tensor) and value.shape == shape
        else value
        for key, value in state.items()
    }
