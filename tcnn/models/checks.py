"""Check what an operation is given: a model without its wrappers, and neither folded nor fused, without values, or in
another dtype where that is refused; a batch of images, all of whose values are numbers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tcnn.errors import RequestError
from tcnn.layers.base import TEMPERATURES, AttentionLayer
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.shards import is_sharded
from tcnn.layers.terms.kinds import PARAMETERS
from tcnn.state import is_plain, parts

PREPARED: dict[type[nn.Module], str] = {FoldedGPSA2d: "folded", FusedGPSA2d: "fused"}
"""The kinds of layers for inference only, and what was done to the GPSA layer in their place."""
WRAPPERS = {"OptimizedModule": "_orig_mod", "AveragedModel": "module", "ModelEmaV2": "module", "ModelEmaV3": "module"}
"""Modules of torch and timm around a model, and where it is in them: by name, as a class takes seconds to import."""

NOT_IN_FILES = (torch.complex32, torch.complex128)
"""Dtypes of PyTorch's that safetensors does not have."""
TENSORS = frozenset(("weight", "query", "key", "value", "proj", "bias", "gating_param", *PARAMETERS, *TEMPERATURES))
"""Names that a GPSA or folded layer has for its tensors: a file's are loaded into a layer that has no others."""


def unwrapped(model: nn.Module, only_run: bool = False) -> nn.Module:
    """The module in what `torch.compile`, data parallelism or an average of weights wrapped, or the model itself.

    A wrapper has the same tensors under names with `_orig_mod.` or `module.` before them, which no file of the model
    knows. The compiler's would compile whatever is hooked to its layers; that of several processes would wait for the
    others.

    Args:
        only_run: whether the model is run as a whole, which TorchScript will do, too.

    Raises `RequestError` for anything that is no module, and for a compiled one whose layers are none of Python's.
    """
    while True:
        if not isinstance(model, nn.Module):
            raise no_module(model)
        inside = WRAPPERS.get(type(model).__name__)
        if inside is not None and isinstance(getattr(model, inside, None), nn.Module):
            model = model.get_submodule(inside)
        elif isinstance(model, nn.DataParallel | DistributedDataParallel):
            model = model.module
        else:
            break
    if _is_exported(model):
        raise _of_another_language("model", "a program of torch.export")
    if isinstance(model, torch.jit.ScriptModule) and not only_run:
        raise _of_another_language("model", "one of TorchScript")
    return model


def refuse_scripted(model: nn.Module) -> None:
    """Raise `RequestError` for a model with a part of TorchScript: no hook can watch its layers."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise _of_another_language(name or "model", "one of TorchScript")


def _of_another_language(name: str, found: str) -> RequestError:
    return RequestError(f"{name}: expected a module with layers of Python, found {found}; give what it was made from")


def _is_exported(model: nn.Module) -> bool:
    """Whether this is what `ExportedProgram.module()` returns: it cannot be put into another mode."""
    return isinstance(model, torch.fx.GraphModule) and "eval" in vars(model)


def no_module(value: object) -> RequestError:
    """What is said of anything that stands where a module should."""
    with_report = isinstance(value, tuple) and isinstance(getattr(value, "model", None), nn.Module)
    advice = "take its .model" if with_report else "load it by tcnn.load or timm.create_model"
    if isinstance(getattr(value, "best", None), str):  # what a training returned
        advice = "take its .best, or tcnn.load of that"
    if isinstance(value, torch.export.ExportedProgram):
        advice = "give the module that it was made from"
    return RequestError(f"model: expected a module, found {named(value)}; {advice}")


def not_converted(model: nn.Module, before: str = "") -> RequestError:
    """What is said of a model without the record of a conversion: another may be inside, or layers without a record.

    Args:
        before: the beginning of the message.
    """
    kind, modules = type(model).__name__, list(model.named_modules())
    inside = next((name for name, module in modules[1:] if "conversion_report" in vars(module)), None)
    if inside is not None:
        return RequestError(f"{before}expected a T-CNN, found a {kind} around one; give that alone, its {inside!r}")
    attends = next((name for name, module in modules if isinstance(module, AttentionLayer)), None)
    if attends is not None:
        return RequestError(
            f"{before}expected what tcnn.convert or tcnn.load returned, found a {kind} with a GPSA layer, "
            f"{attends!r}, but without the record of a conversion; convert its CNN by tcnn.convert"
        )
    return RequestError(f"{before}{kind} was not converted by tcnn; call tcnn.convert first")


def named(value: object) -> str:
    """What stands where a module should: names as they are, anything else, such as a state dict, by its type."""
    return repr(value) if isinstance(value, str | type) else f"a value of type {type(value).__name__}"


def refuse_prepared(model: nn.Module, verb: str, but: tuple[type[nn.Module], ...] = ()) -> None:
    """Raise `RequestError` for a model with layers that are for inference only.

    Args:
        verb: the refused operation.
        but: kinds of layers that it supports.
    """
    for name, module in model.named_modules():
        for kind, done in PREPARED.items():
            if isinstance(module, kind) and kind not in but:
                raise RequestError(
                    f"{name or type(model).__name__}: was {done}, for inference only; {verb} the model that it was "
                    f"{done} from"
                )


def refuse_without_shapes(model: nn.Module) -> None:
    """Raise `RequestError` for a model with a lazy module: whoever runs it first draws its weights, in the model."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            layer = name.rpartition(".")[0] or type(model).__name__
            raise RequestError(
                f"{layer}: its shape is not known before the first forward pass (lazy module); run the model once, as "
                "model(torch.zeros(1, 3, 224, 224))"
            )


def refuse_without_values(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model with a parameter or buffer on the meta device; `verb` is the refused operation.

    A conversion needs no values: this is for what computes with them. Raises as `refuse_without_shapes` and
    `refuse_sharded`, too.
    """
    refuse_without_shapes(model)
    refuse_sharded(model, verb)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise RequestError(
                f"{type(model).__name__}: expected values to {verb}, found none: {name} is on the meta device; build "
                "the model on another device and load its weights"
            )


def refuse_sharded(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model with a DTensor, of which this process has a part; `verb` is what is refused."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_sharded(tensor):
            raise RequestError(
                f"{type(model).__name__}: expected whole tensors to {verb} it, found {name} sharded (DTensor), as "
                "fully_shard leaves it; load get_model_state_dict(model, "
                "options=StateDictOptions(full_state_dict=True)) of torch.distributed.checkpoint.state_dict into a "
                "copy that is not sharded (docs/trainers.md)"
            )


def refuse_inference_tensors(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model of `torch.inference_mode`, whose tensors cannot be changed outside of that."""
    if torch.is_inference_mode_enabled():
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_inference():
            raise RequestError(
                f"{type(model).__name__}: cannot {verb} it, since {name} was made under torch.inference_mode; make the "
                "model outside, or take copy.deepcopy(model)"
            )


def refuse_packed(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model with a state that no file holds: weights that are not dense, objects."""
    state = parts(model.state_dict())
    for name, value in state.extra.items():
        if not is_plain(value):
            raise RequestError(
                f"{type(model).__name__}: expected an extra state of plain values (numbers, strings, lists, tuples, "
                f"dicts) or one tensor to {verb}, found {name}, of type {type(value).__name__}, with something else; "
                "let get_extra_state return plain values"
            )
    for name, value in state.tensors.items():
        if (found := _other_than_dense(value)) is not None:
            raise RequestError(
                f"{type(model).__name__}: expected dense tensors to {verb}, found {name}, {found}; {verb} the model "
                "that it was made from"
            )
        if value.dtype in NOT_IN_FILES:
            raise RequestError(
                f"{type(model).__name__}: expected a dtype that safetensors has to {verb}, found {name}, of "
                f"{value.dtype}; use complex64, or two tensors"
            )


def _other_than_dense(value: object) -> str | None:
    """What a value of a state dict is, where it is not one dense tensor of numbers (or this process's part of it)."""
    if not isinstance(value, Tensor) or _wraps_others(value):
        return f"of type {type(value).__name__}, as quantised layers have"
    if value.is_quantized:
        return f"of {value.dtype}, as quantised layers have"
    if value.layout != torch.strided or value.is_nested:
        return "a nested tensor" if value.is_nested else f"of layout {value.layout}"
    return None


def _wraps_others(value: Any) -> bool:
    """Whether a tensor is one of a class of somebody's that keeps others inside; a DTensor is gathered instead."""
    return not is_sharded(value) and is_traceable_wrapper_subclass(value)


def refuse_computed(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a GPSA layer with tensors beside its own, from which it computes its weights.

    Parametrisations and pruning do that. A file of such a layer could not be read: the layer in the model that is built
    for it has its own tensors only. Another layer is as the source has it, which is given to `tcnn.load`.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, AttentionLayer) and (other := layer.state_dict().keys() - TENSORS):
            raise RequestError(
                f"{name or type(model).__name__}: expected a GPSA layer with its own tensors only to {verb}, found "
                f"{min(other)}, as parametrisations and pruning leave it; bake the weight in first "
                "(torch.nn.utils.parametrize.remove_parametrizations, or torch.nn.utils.prune.remove)"
            )


def refuse_unwritable(model: nn.Module) -> None:
    """Raise `RequestError` for a model whose weights no file takes: without values, no tensors, or computed."""
    refuse_without_values(model, "save")
    refuse_packed(model, "save")
    refuse_computed(model, "save")


def refuse_other_dtypes(model: nn.Module, verb: str) -> None:
    """Raise `RequestError` for a model with a weight that is not in float32; `verb` is the refused operation.

    Raises as `refuse_packed`, too.
    """
    refuse_packed(model, verb)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise RequestError(
                f"{type(model).__name__}: expected weights in float32 to {verb}, found {name} in "
                f"{_dtype(parameter)}; give model.float(), and amp for arithmetic in another dtype"
            )


def refuse_not_finite(images: Tensor) -> None:
    """Raise `RequestError` for images, (B, …), with a value that is NaN or infinite: all that it reaches is so."""
    bad = (~images.isfinite()).flatten(1).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise RequestError(
            f"images: expected finite numbers, found NaN or infinity in {len(bad)} of {len(images)}, first in number "
            f"{bad[0] + 1}; leave these out, or look at how they were made"
        )


def refuse_other_images(images: object) -> None:
    """Raise `RequestError` for what is no batch of model inputs, (B, C, H, W), at least one image.

    They are finite numbers in floating point, as preprocessing makes them: integers are pixels, from 0 to 255, which a
    model answers wrongly and with certainty.
    """
    if not isinstance(images, Tensor) or images.dim() != 4 or not len(images):
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise RequestError(f"images: expected a tensor of shape (B, C, H, W), at least one image, found {found}")
    kinds = {
        "one on the meta device": images.is_meta,
        f"one of {_dtype(images)}": images.is_quantized or images.is_complex(),
        "a sparse one": images.layout != torch.strided,
    }
    other = next((kind for kind, is_one in kinds.items() if is_one), None)
    if other is not None:
        raise RequestError(f"images: expected a dense tensor of real numbers, found {other}; give one in float32")
    if not images.is_floating_point():
        raise RequestError(
            f"images: expected model inputs (floating point, normalised), found {_dtype(images)}; preprocess the "
            "images for the model, or give tcnn.predict and tcnn.inspect images of PIL or arrays"
        )
    refuse_not_finite(images)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
