"""What in a model is not as the architecture of its name has it: modules of another kind, with other settings, or of
other shapes. timm's records say how a model was built, and nothing of what was done to it since.

What is compared is what the function depends on in evaluation mode: dropout is no module there, stochastic depth and
momentum are no settings, an activation is the same under each of timm's classes for it, a batch norm if it is frozen.
A forward hook that returns nothing is taken for one that watches.
"""

import dis
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
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
_PASSES = frozenset(kind.forward for kind in (
    nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
    DropPath, DropBlock2d, PatchDropout,
))  # fmt: skip
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
_NOT_OF_FORWARD = re.compile(
    r"(?!forward$)(" + "|".join(dir(nn.Module)) + r")|no_weight_decay|group_matcher|get_classifier|fuse|reparameterize|"
    r"switch_to_deploy|_?(set|reset|init|load|prune)_.*"
)
"""Methods that no forward pass calls: PyTorch's, and those by which timm builds, trains and changes models."""
_HOOKS = {"_forward_pre_hooks": "forward pre-hooks", "_forward_hooks": "forward hooks"}
_WATCHING = re.compile(r"(tcnn|wandb|torch\.distributed)(\..*)?")
"""Modules whose hooks return what they were given, or something else that changes no output."""
OWN = "of its own"
_MISSING = object()
SHAPE = "'s shape"


def edits(model: nn.Module, plain: nn.Module) -> Edits:
    """What `model` has, module by module, where `plain`, the architecture as its name builds it, has something else."""
    found: Edits = {}
    ours, theirs = (dict(one.named_modules(remove_duplicate=False)) for one in (model, plain))
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
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, expected in recorded.items():
        found = describe(modules.get(name))
        if differs := {key: found.get(key) for key, value in expected.items() if found.get(key) != value}:
            yield name, differs


def describe(module: nn.Module | None) -> Description:
    """The description of one module, without what is in it."""
    if module is None:
        return {"module": NOTHING}
    if type(module).forward in _PASSES:
        return {"module": NOTHING} | _of_its_own(module)
    told: Description = {"module": _kind(module)}
    for key, value in vars(module).items():
        if not _OF_TRAINING.fullmatch(key) and (plain := _plain(value)) is not _MISSING:
            told[key] = plain
    if isinstance(module, ConvolutionShaped):
        told |= {key: _plain(getattr(module.geometry, key)) for key in GEOMETRY} | {"content": str(module.scope)}
    told |= _of_its_own(module)
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
    if any(str(one.get("module")).startswith("peft.") for one in found.values()):
        return "; call merge_and_unload() of peft's model before saving, and its layers are PyTorch's again"
    if any(key in _HOOKS.values() for one in found.values() for key in one):
        return "; if a hook only watches, remove it before saving, or let it return nothing"
    return ""


def _words(one: Description) -> str:
    kind = one.get("module")
    if kind is not None:  # by its last part alone somebody's `Linear` would be PyTorch's
        return str(kind).rpartition(".")[2] if str(kind).startswith("torch.nn.modules.") else str(kind)
    told = []
    for key, value in one.items():
        if key.endswith(SHAPE):
            size = "×".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value
            told.append(f"{key.removesuffix(SHAPE)} {size}")
        elif key in _HOOKS.values():
            told.append(key if value else f"no {key}")
        else:
            told.append(
                f"{key} {value or 'of its class'}" if key == "forward" or key.endswith("()") else f"{key}={value}"
            )
    return ", ".join(told)


def _compared(own: Description, other: Description, plain: nn.Module | None) -> Iterator[str]:
    """The keys that count: all of tensors, and of settings those of both; what somebody attached beside is harmless."""
    for key in {**own, **other}:
        if key.endswith(SHAPE) or (key in own and key in other) or OWN in (own.get(key), other.get(key)):
            yield key
        elif key in own and _plain(getattr(plain, key, _MISSING)) is not _MISSING:
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
        name += str(getattr(module, "approximate", "none")).removeprefix("none")  # a class of its own in timm: GELUTanh
        return "silu" if name == "swish" else name
    name = f"{kind.__module__}.{kind.__qualname__}"
    return _SYNCHRONISED.get(kind.__name__) or _FROZEN.get(name, name)


def _of_its_own(module: nn.Module) -> Description:
    """What on a module itself changes the forward pass of its class: methods in the place of others, and hooks."""
    own = ((key, _method(module, key)) for key, value in vars(module).items() if callable(value))
    told: Description = {key if key == "forward" else f"{key}()": value for key, value in own if value is not None}
    for table, name in _HOOKS.items():
        if any(map(_changes, vars(module).get(table, {}).values())):
            told[name] = OWN
    return told


def _method(module: nn.Module, key: str) -> str | None:
    """What stands on a module in the place of a method of its class: another of its methods, or `OWN`, or nothing.

    A wrapper of the method is nothing. What takes one away, as Accelerate does, leaves the class's own behind.
    """
    of_class = getattr(type(module), key, None)
    if not callable(of_class) or _NOT_OF_FORWARD.fullmatch(key):
        return None
    own = vars(module)[key]
    inside = getattr(own, "__func__", own)
    if hasattr(inside, "__wrapped__") or hasattr(own, "_torchdynamo_orig_callable"):
        return None
    if getattr(own, "__self__", module) is module:
        name = getattr(inside, "__name__", "")
        if inside is of_class:
            return None
        if getattr(type(module), name, None) is inside:
            return name
    return OWN


def _changes(hook: Callable[..., object]) -> bool:
    """Whether a forward hook may return something, which then takes the place of what it was given."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    function: Any = inspect.unwrap(getattr(hook, "__func__", hook))
    if _WATCHING.fullmatch(getattr(function, "__module__", None) or ""):
        return False
    code = next((one.__code__ for one in (function, type(function).__call__) if hasattr(one, "__code__")), None)
    return code is None or any(
        one.argval is not None
        if one.opname == "RETURN_CONST"
        else one.opname == "RETURN_VALUE" and not _is_none(before)
        for before, one in pairwise(dis.get_instructions(code))
    )


def _is_none(instruction: dis.Instruction) -> bool:
    return instruction.opname == "LOAD_CONST" and instruction.argval is None


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
