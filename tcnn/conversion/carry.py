"""Copy a model with some layers replaced, and keep everything else: hooks, attributes, shared parameters, modes.

`copy.deepcopy` alone forgets the hooks and attributes of parameters, and unties what a replaced layer shares with
others. What cannot be carried over is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tcnn.conversion.ties import BECOMES
from tcnn.errors import UnsupportedLayerError
from tcnn.layers.base import AttentionLayer
from tcnn.layers.exposed import AttentionPoint
from tcnn.layers.filters import ALWAYS_SAME, STANDARDISED, hooks_of
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.copying import Memo, copied, copied_part, memo_of

Part = Callable[[Any], Any]
"""Copies what the model holds somewhere else than in its modules."""

with torch.device("meta"):
    _LAYER = GPSA2d(1, 1, 1)
    _FRESH = (
        *(kind(1, 1, 1) for kind in (nn.Conv2d, *STANDARDISED, *ALWAYS_SAME)),
        *(_LAYER, FoldedGPSA2d(1, 1, _LAYER.geometry, 1, True, 1, ["attention"])),
    )
OF_KIND = {type(layer): frozenset((*dir(type(layer)), *vars(layer))) for layer in _FRESH}
"""Attributes that layers of these kinds have themselves: what matters of them is in the filter and the geometry."""


def copy_with(model: nn.Module, swaps: Mapping[str, nn.Module]) -> nn.Module:
    """A deep copy of `model` with the layers in `swaps`, by dotted name, in their places, wherever it refers to them.

    A swap becomes part of the copy, unless it shares parameters with the model. Parameters keep their hooks and
    attributes, and a convolution's own attributes go to the layer in its place.

    Raises: `UnsupportedLayerError` for a layer whose hooks, parameters or attributes its replacement cannot have.
    """
    modules = dict(model.named_modules())
    shared = {id(parameter) for parameter in model.parameters()}
    # Pre-seeding deepcopy's memo: a replaced layer is never copied, and one that two parents share stays shared.
    replaced = {id(modules[name]) for name in swaps}
    memo: Memo = memo_of(model) | _fakes([*(m for m in model.modules() if id(m) not in replaced), *swaps.values()])
    for name, swap in swaps.items():
        lost = {*hooks_of(modules[name]), *put_into(modules[name])} - set(hooks_of(swap))
        if lost:
            raise UnsupportedLayerError(f"{name}: it has {' and '.join(sorted(lost))}, which a replacement would lose")
        new = any(id(parameter) not in shared for parameter in swap.parameters())
        memo[id(modules[name])] = swap if new else copied(swap, memo)
    made = copied(model, memo)
    part = partial(copied_part, of=model, memo=memo)
    for parameter in model.parameters():
        if id(parameter) in memo:
            _carry_parameter(parameter, memo[id(parameter)], part)
    for name in swaps:
        _carry_layer(name, modules[name], memo, part)
    for name, module in made.named_modules():  # torchvision's traced graphs are always copied in training mode
        if name in modules and module.training != modules[name].training:
            module.train(modules[name].training)
    return made


def _fakes(modules: Iterable[nn.Module]) -> Memo:
    """Copies of these modules' fake tensors: deepcopy would copy their mode, and a storage that they do not have."""
    memo: Memo = {}
    for module in modules:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if isinstance(tensor, FakeTensor) and id(tensor) not in memo:
                twin = tensor.detach().clone()
                parameter = isinstance(tensor, nn.Parameter)
                memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if parameter else twin
    return memo


def _carry_layer(name: str, old: nn.Module, memo: Memo, part: Part) -> None:
    """Give a replacement the parameters that other layers share with the old one, and the old one's attributes."""
    new: nn.Module = memo[id(old)]
    if not isinstance(new, FusedGPSA2d):  # which has no parameters, and nothing that trains away from what shared them
        _carry_shared(name, old, new, memo)
    if isinstance(old, nn.Conv2d) and isinstance(new, nn.Conv2d):
        return
    found = attributes_of(old)
    if clash := taken(found, new):
        raise UnsupportedLayerError(
            f"{name}: its attribute {clash!r} is one that {type(new).__name__} has itself; rename it"
        )
    for key, value in found.items():
        setattr(new, key, part(value))
    if not isinstance(old, nn.Conv2d):
        return
    for key, parameter in old.named_parameters(recurse=False):
        twin = getattr(new, BECOMES.get(key, key), None)
        if vars(parameter) and twin is None:
            raise UnsupportedLayerError(f"{name}: its {key} has attributes, and what takes its place has no {key}")
        _carry_attributes(parameter, twin, part)


def put_into(layer: nn.Module) -> list[str]:
    """What was put into the forward pass of an attention layer, beside hooks on itself, each as a noun.

    That is what its attention weights pass where they are not fused: hooks on the modules of `attn`, and others in
    their places; and a forward pass in place of its class's. Dropout does nothing in evaluation mode.
    """
    if not isinstance(layer, AttentionLayer):
        return []
    kind = GPSA2d if isinstance(layer, GPSA2d) else FoldedGPSA2d
    found = ["a forward of its own"] if _other_forward(layer, kind) else []
    for name, module in layer.named_modules():
        if name.partition(".")[0] == "attn":
            found += [f"{hooks} on {name}" for hooks in hooks_of(module)]
            dropout = type(module) is nn.Dropout and (layer.training or not module.training)
            if not (type(module) in (AttentionPoint, nn.Identity) or dropout):
                found.append(f"{name} of another class, {type(module).__name__}")
            elif _other_forward(module, type(module)):
                found.append(f"{name} with a forward of its own")
    return found


def _other_forward(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module's forward pass is not that of its kind, nor a wrapper of it, as Accelerate's."""
    own: Any = module.forward
    of_kind = getattr(own, "__func__", None) is kind.forward and own.__self__ is module
    return not of_kind and not hasattr(own, "__wrapped__")


def attributes_of(layer: nn.Module) -> dict[str, Any]:
    """What somebody set on a convolution or an attention layer, as a gain that the forward pass reads; else nothing."""
    own = [names for kind, names in OF_KIND.items() if isinstance(layer, kind)]
    return {key: value for key, value in vars(layer).items() if own and not any(key in names for names in own)}


def taken(attributes: Iterable[str], new: nn.Module) -> str | None:
    """One of these attributes that a replacement has itself, if there is one."""
    own = [names for kind, names in OF_KIND.items() if isinstance(new, kind)]
    names = frozenset().union(*own) if isinstance(new, nn.Conv2d) else frozenset(dir(new))
    return min(names.intersection(attributes), default=None)


def _carry_shared(name: str, old: nn.Module, new: nn.Module, memo: Memo) -> None:
    """Give a replacement the parameters that something else in the model shares with the old one."""
    for key, parameter in old.named_parameters(recurse=False):
        twin = memo.get(id(parameter))
        if twin is None or twin is getattr(new, key, None):
            continue
        if key != "bias":
            raise UnsupportedLayerError(
                f"{name}: something else in the model holds its {key}, and what takes its place has none; leave this "
                "layer out (target), or give the other a copy"
            )
        setattr(new, key, twin)


def _carry_parameter(old: nn.Parameter, new: nn.Parameter, part: Part) -> None:
    """Copy a parameter's hooks and attributes, which `copy.deepcopy` forgets."""
    _carry_attributes(old, new, part)
    hooks, after = dict(old._backward_hooks or {}), dict(old._post_accumulate_grad_hooks or {})
    if not (hooks or after):
        return
    trainable = new.requires_grad
    new.requires_grad_()  # one that was frozen since keeps its hooks, but takes none
    for hook in hooks.values():
        new.register_hook(part(hook))
    for hook in after.values():
        new.register_post_accumulate_grad_hook(part(hook))
    new.requires_grad_(trainable)


def _carry_attributes(old: nn.Parameter, new: Any, part: Part) -> None:
    """Copy what was set on a parameter, such as a learning rate's scale."""
    for key, value in vars(old).items():
        if key not in vars(new):
            setattr(new, key, part(value))
