"""What in a model is not as the architecture of its name has it: modules of another kind, with other settings, or of
other shapes. timm's records say how a model was built, and nothing of what was done to it since.

What is compared is what the function depends on in evaluation mode: dropout is no module there, stochastic depth and
momentum are no settings, an activation is the same under each of timm's classes for it, a batch norm if it is frozen.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from timm.layers import DropBlock2d, DropPath, PatchDropout
from torch import nn

from tcnn.errors import shorten
from tcnn.layers.exposed import AttentionPoint
from tcnn.layers.shaped import ConvolutionShaped

GEOMETRY = ("kernel_size", "stride", "dilation", "padding", "padding_mode")
"""Settings of a layer that attends, which are in its geometry."""
Description = dict[str, Any]
"""Of one module: its kind as `module`, its settings, and `NAME's shape` of its tensors; plain values."""
Edits = dict[str, Description]
"""What a model has of its own, by the dotted names of modules."""

NOTHING = "nothing"
"""The kind of a module that is not there, or that does nothing in evaluation mode."""
_PASSES = (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    DropPath, DropBlock2d, PatchDropout,
)  # fmt: skip
_OF_TRAINING = re.compile(
    r"_.*|.*drop.*|training|inplace|momentum|num_classes|grad_checkpointing|fused_attn|known_hard|training_record|"
    r"coreml_exportable"
)
"""Attributes that change nothing in evaluation mode, are for people, or only say how something is computed."""
_ACTIVATIONS = re.compile(r"torch\.nn\.modules\.activation|timm\.layers\.activations\w*")
_SYNCHRONISED = {"SyncBatchNorm": "torch.nn.modules.batchnorm.BatchNorm2d",
                 "SyncBatchNormAct": "timm.layers.norm_act.BatchNormAct2d"}  # fmt: skip
_FROZEN = {"torchvision.ops.misc.FrozenBatchNorm2d": "torch.nn.modules.batchnorm.BatchNorm2d",
           "timm.layers.norm_act.FrozenBatchNormAct2d": "timm.layers.norm_act.BatchNormAct2d"}  # fmt: skip
_MISSING = object()
SHAPE = "'s shape"


def edits(model: nn.Module, plain: nn.Module) -> Edits:
    """What `model` has, module by module, where `plain`, the architecture as its name builds it, has something else."""
    found: Edits = {}
    ours, theirs = dict(model.named_modules()), dict(plain.named_modules())
    for name in {**ours, **theirs}:
        own, other = describe(ours.get(name)), describe(theirs.get(name))
        if own["module"] != other["module"]:
            found[name] = own
        elif differs := {key: own.get(key) for key in _compared(own, other, theirs.get(name)) if own.get(key)
                         != other.get(key)}:  # fmt: skip
            found[name] = differs
    return found


def unlike(model: nn.Module, recorded: Edits) -> Iterator[tuple[str, Description]]:
    """The modules, by name, that are not as recorded, and what they are in the model."""
    modules = dict(model.named_modules())
    for name, expected in recorded.items():
        found = describe(modules.get(name))
        if differs := {key: found.get(key) for key, value in expected.items() if found.get(key) != value}:
            yield name, differs


def describe(module: nn.Module | None) -> Description:
    """The description of one module, without what is in it."""
    if module is None or isinstance(module, _PASSES):
        return {"module": NOTHING}
    told: Description = {"module": _kind(module)}
    for key, value in vars(module).items():
        if not _OF_TRAINING.fullmatch(key) and (plain := _plain(value)) is not _MISSING:
            told[key] = plain
    if isinstance(module, ConvolutionShaped):
        told |= {key: _plain(getattr(module.geometry, key)) for key in GEOMETRY} | {"content": str(module.scope)}
    if _has_forward_of_its_own(module):
        told["forward"] = "of its own"
    without = module._non_persistent_buffers_set | {"num_batches_tracked"}  # which a frozen batch norm does not have
    for key, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None and key not in without:
            told[f"{key}{SHAPE}"] = list(tensor.shape)
    return told


def in_words(found: Mapping[str, Description], most: int = 3) -> str:
    """Edits in words: `maxpool: nothing; bn1: eps=0.1; fc: weight 4×512`. Classes that are not PyTorch's in full."""
    parts = [f"{name or 'the model itself'}: {_words(one)}" for name, one in found.items()]
    more = f"; and {len(parts) - most} more" if len(parts) > most else ""
    return shorten("; ".join(parts[:most]), 240) + more


def remedy(found: Mapping[str, Description]) -> str:
    """What to do before saving a model with these edits, as the end of a message; empty where nothing is known."""
    adapted = any(str(one.get("module")).startswith("peft.") for one in found.values())
    return (
        "; call merge_and_unload() of peft's model before saving, and its layers are PyTorch's again" if adapted else ""
    )


def _words(one: Description) -> str:
    kind = one.get("module")
    if kind is not None:  # by its last part alone somebody's `Linear` would be PyTorch's
        return str(kind).rpartition(".")[2] if str(kind).startswith("torch.nn.modules.") else str(kind)
    told = []
    for key, value in one.items():
        if key.endswith(SHAPE):
            size = "×".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
            told.append(f"{key.removesuffix(SHAPE)} {size}")
        else:
            told.append(f"forward {value or 'of its class'}" if key == "forward" else f"{key}={value}")
    return ", ".join(told)


def _compared(own: Description, other: Description, plain: nn.Module | None) -> Iterator[str]:
    """The keys that count: all of tensors, and of settings those of both; what somebody attached beside is harmless."""
    for key in {**own, **other}:
        if key.endswith(SHAPE) or (key in own and key in other):
            yield key
        elif key in own and (key == "forward" or _plain(getattr(plain, key, _MISSING)) is not _MISSING):
            yield key  # of the class until then


def _kind(module: nn.Module) -> str:
    """The name of a module's class; one for all classes that compute the same."""
    kind = type(module)
    if kind is AttentionPoint:  # there if attention is not fused, which is how something is computed
        return NOTHING
    if isinstance(module, torch.fx.GraphModule):
        return "torch.fx.GraphModule"  # each has a class of its own
    if kind.__module__.startswith("tcnn."):  # a faster way to compute what a class of timm or torch does
        kind = next((one for one in kind.__mro__ if not one.__module__.startswith("tcnn.")), kind)
        kind = type(module) if kind is nn.Module else kind
    if _ACTIVATIONS.fullmatch(kind.__module__):
        name = re.sub(r"(Me|Jit)$", "", kind.__name__).lower()
        return "silu" if name == "swish" else name
    name = f"{kind.__module__}.{kind.__qualname__}"
    return _SYNCHRONISED.get(kind.__name__) or _FROZEN.get(name, name)


def _has_forward_of_its_own(module: nn.Module) -> bool:
    """Whether someone set another forward pass on it than that of its class, and no wrapper of the one that it has.

    What takes a wrapper away, as Accelerate does, leaves the class's own behind as an attribute.
    """
    own = vars(module).get("forward")
    inside = getattr(own, "__func__", own)
    if own is None or (inside is type(module).forward and getattr(own, "__self__", module) is module):
        return False
    return not hasattr(inside, "__wrapped__") and not hasattr(own, "_torchdynamo_orig_callable")


def _plain(value: object) -> Any:
    """A setting as a plain value, a pair of equal numbers as one of them; `_MISSING` for what is no setting."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        if any(part is _MISSING for part in parts):
            return _MISSING
        return parts[0] if len(parts) == 2 and parts[0] == parts[1] else parts
    if isinstance(value, functools.partial):
        return _plain([value.func, *value.args, *(f"{key}={part}" for key, part in value.keywords.items())])
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return value.__qualname__
    return _MISSING
