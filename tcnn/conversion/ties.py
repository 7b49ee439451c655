"""Tied weights: which parameters shared by several layers stay shared in a conversion, and which cannot.

The filter of two convolutions stays one parameter, the ``proj`` of both GPSA layers; a bias stays tied to whatever it
was tied to. A filter that a layer outside the conversion uses as well cannot: in a GPSA layer it has another layout.
"""

from collections.abc import Collection, Mapping

from torch import nn

from tcnn.conversion.report import LayerReport
from tcnn.layers.filters import is_standardised

Owner = tuple[str, str]
"""A layer's dotted name, and its own name for a parameter."""
BECOMES = {"weight": "proj", "bias": "bias"}
"""What a convolution's parameters are called in the GPSA layer."""


def owners(model: nn.Module) -> dict[int, list[Owner]]:
    """Who holds each parameter, by its identity; a layer that stands in two places is one."""
    found: dict[int, list[Owner]] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            found.setdefault(id(parameter), []).append((name, key))
    return found


def inseparable(model: nn.Module, names: Collection[str]) -> dict[str, str]:
    """The convolutions among `names` that cannot be converted for the parameters that they share, with the reason."""
    holders = owners(model)
    reasons: dict[str, str] = {}
    while True:
        kept = [name for name in names if name not in reasons]
        found = {name: reason for name in kept if (reason := _reason(model, name, kept, holders))}
        if not found:
            return reasons
        reasons |= found


def ties(model: nn.Module, names: Collection[str]) -> dict[str, dict[str, str]]:
    """For every convolution that is converted, which of its new parameters is which other one, by full name.

    Of a group the first is the one that the others name; a parameter of a layer that stays comes before those.
    """
    holders = owners(model)
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for name in names:
        for key, parameter in model.get_submodule(name).named_parameters(recurse=False):
            others = holders[id(parameter)]
            if key not in BECOMES or len(others) == 1:
                continue
            first, own = next(((n, k) for n, k in others if n not in found), others[0])
            if first != name:
                found[name][BECOMES[key]] = f"{first}.{BECOMES[own] if first in found else own}".lstrip(".")
    return found


def tie(model: nn.Module, tied: Mapping[str, Mapping[str, str]]) -> None:
    """Share parameters between layers, in place, as `ties` says."""
    for name, own in tied.items():
        layer = model.get_submodule(name)
        for key, other in own.items():
            setattr(layer, key, model.get_parameter(other))


def still_tied(model: nn.Module, layer: LayerReport) -> dict[str, str]:
    """The ties of a converted layer that still hold: somebody may have parted them, or removed what it was tied to."""
    there = dict(model.named_parameters(remove_duplicate=False)) if layer.tied else {}
    return {own: other for own, other in layer.tied.items() if there[f"{layer.name}.{own}"] is there.get(other)}


def _reason(model: nn.Module, name: str, chosen: Collection[str], holders: dict[int, list[Owner]]) -> str | None:
    """Why a convolution cannot be converted together with those `chosen`, for what it shares; None if it can."""
    conv = model.get_submodule(name)
    for key, parameter in conv.named_parameters(recurse=False):
        others = [owner for owner in holders[id(parameter)] if owner[0] != name]
        if key == "bias" or not others:
            continue
        other = ".".join(filter(None, others[0]))
        if is_standardised(conv):
            return f"it shares its {key} with {other}, and standardisation would end for it alone"
        if any(layer not in chosen or own != "weight" for layer, own in others):
            return f"it shares its {key} with {other}, which stays as it is"
    return None
