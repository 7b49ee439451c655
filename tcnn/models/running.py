"""Run models whose outputs are compared: in one dtype, at one temperature τ, with hooks on layers; say why one does not
run."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tcnn.errors import EnvironmentFailure, RequestError, TcnnError, one_line, out_of_memory, shorten
from tcnn.formatting import some
from tcnn.layers.base import TEMPERATURES
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.shaped import ConvolutionShaped
from tcnn.models.copying import copied, memo_of
from tcnn.models.outputs import Outputs, joined, separate
from tcnn.models.state import same_start

Result = TypeVar("Result")
REFUSALS = (RuntimeError, AssertionError, ValueError, IndexError, RequestError)
"""What is raised on a size that is not taken.

PyTorch raises RuntimeError where shapes do not fit, ValueError where too little is left to normalise, and IndexError
beyond a table of positions; timm asserts the size of its patches; `EmptyMapError` is ours.
"""
OTHERS = (NotImplementedError, RecursionError, torch.OutOfMemoryError)
"""Kinds of RuntimeError that have nothing to do with shapes."""
OF_FLOAT64 = re.compile("double|float64", re.IGNORECASE)
"""What PyTorch's errors of numbers that are not of one precision name, in many wordings, where one is float64."""
COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
"""Complex numbers of a precision."""


def gpsa_layers(model: nn.Module) -> dict[str, GPSA2d]:
    """The GPSA layers of a model by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, GPSA2d)}


def replacements(model: nn.Module) -> dict[str, GPSA2d]:
    """`gpsa_layers` of a converted model; raises `RequestError` if it has none."""
    found = gpsa_layers(model)
    if not found:
        raise RequestError(f"{type(model).__name__} has no GPSA layer: nothing to verify")
    return found


def temperatures(model: nn.Module) -> dict[str, float]:
    """Temperature τ of every GPSA layer, or of its gates and positions by buffer name where these differ.

    Raises `RequestError` for one that is not a number above 0.
    """
    found: dict[str, float] = {}
    for name, layer in replacements(model).items():
        own = {buffer: float(getattr(layer, buffer)) for buffer in TEMPERATURES}
        for buffer, temperature in own.items():
            if not 0 < temperature < torch.inf:
                raise RequestError(
                    f"{name}: expected a {buffer} above 0, found {temperature:g}; give `set_temperature` one, "
                    "1/46 for the convolution or 1 for the paper's start"
                )
        if len(set(own.values())) == 1:
            found[name] = own[TEMPERATURES[0]]
        else:
            found |= {f"{name}.{buffer}".lstrip("."): temperature for buffer, temperature in own.items()}
    return found


@contextmanager
def at_temperature(model: nn.Module, temperature: float) -> Iterator[None]:
    """Context that sets τ of gates and positions of every GPSA layer; afterwards each has its own again."""
    buffers = [getattr(layer, name) for layer in gpsa_layers(model).values() for name in TEMPERATURES]
    before = [buffer.clone() for buffer in buffers]
    try:
        for buffer in buffers:
            buffer.fill_(temperature)
        yield
    finally:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


def weights_dtype(model: nn.Module) -> torch.dtype:
    """The dtype of a model's weights, in which it takes its images; float32 where it has none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def architecture_name(model: nn.Module) -> str:
    """The name by which timm builds the model; its class's where it has none."""
    return str((getattr(model, "pretrained_cfg", None) or {}).get("architecture") or type(model).__name__)


def place_of(model: nn.Module) -> torch.device:
    """The device of a model's weights; the CPU where it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def usable_device(name: torch.device | str) -> torch.device:
    """The device of this name (`auto` is a GPU if there is one); raises `EnvironmentFailure` if it is not available."""
    if not isinstance(name, str | torch.device):
        raise EnvironmentFailure(f"--device {shorten(repr(name), 60)}: not usable here (no name of a device); use cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()  # the meta device fails here
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise EnvironmentFailure(f"--device {name}: not usable here ({one_line(error)}); use cpu") from error
    return device


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model itself if it has the dtype already, else a copy in that dtype, complex numbers in that precision."""
    if all(p.dtype == dtype for p in model.parameters() if p.is_floating_point()):
        return model
    memo = memo_of(model)
    for tensor in (*model.parameters(), *model.buffers()):
        own = dtype if tensor.is_floating_point() else COMPLEX.get(dtype) if tensor.is_complex() else None
        twin = tensor.clone() if own is None else tensor.detach().to(own)
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copied(model, memo)


def logits_of(model: nn.Module, batch: Tensor, dtype: torch.dtype) -> Outputs:
    """Outputs of a model for a batch (B, C, H, W) on any device, in its dtype, (B, …); the model is as it was, then."""
    device = place_of(model)
    # One image at a time in float64: its activations, not its weights, would set the memory that a conversion takes.
    parts = batch.split(1) if dtype == torch.float64 else (batch,)
    with same_start(model):
        return joined([separate(model(part.to(device=device, dtype=dtype)), len(part)) for part in parts])


def first_of(args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The first input of a call, positional or by its name, as in ``conv(input=x)``; None of a call without inputs."""
    return next(iter((*args, *named.values())), None)


def where_it_runs(call: Callable[[bool], Result]) -> Result:
    """`call(float64)` with True, or where a model does not run in that, with False."""
    try:
        return call(True)
    except NotInFloat64:
        return call(False)


@contextmanager
def watch_layers(
    model: nn.Module, names: Iterable[str], call: Callable[[str, nn.Module, Tensor, Tensor], None]
) -> Iterator[None]:
    """Context that calls ``call(name, layer, input, output)`` whenever one of these layers has run."""
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda m, args, named, out, name=name: call(name, m, first_of(args, named), out), with_kwargs=True
        )
        for name in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def refuses_size(error: Exception) -> bool:
    """Whether an error may be a model's refusal of a size."""
    return isinstance(error, REFUSALS) and not isinstance(error, OTHERS) and not out_of_memory(error)


def failure(model: nn.Module, shape: Sequence[int], error: Exception, advice: str) -> TcnnError:
    """What to raise for an error of a model on images of `shape`, (C, H, W): in one line, with the cause.

    Args:
        model: the one that ran, in which a layer is named. advice: what to do where the size is refused.
    """
    name, size = type(model).__name__, "×".join(map(str, shape))
    first = next(iter(str(error).strip().splitlines()), "")
    told = shorten(first, 160) or type(error).__name__
    if out_of_memory(error):
        return EnvironmentFailure(f"out of memory: {name} on an image of {size}; choose a smaller size")
    if refuses_size(error):
        return RequestError(f"{name} does not run on an image of {size} ({told}); {advice}")
    if isinstance(error, AttributeError) and isinstance(layer := error.obj, ConvolutionShaped):
        places = (f"the convolution {place!r}" for place, module in model.named_modules() if module is layer and place)
        return RequestError(
            f"{name}: its forward pass reads {error.name!r} of {next(places, 'a convolution')}, which "
            f"{type(layer).__name__} in its place has not; give a target without that layer"
        )
    return RequestError(
        f"{name}: expected a model that runs on a batch of images, found that its forward pass on {size} ends in "
        f"{type(error).__name__} ({told}), which no other size would mend"
    )


def size_advice(error: Exception, channels: int) -> str:
    """What to do where a model does not run on an image of so many channels, of which a convolution may speak."""
    found = r"weight of size \[([\d, ]+)\].* to have (\d+) channels, but got (\d+) channels instead"
    refused = re.search(found, str(error))
    if refused is None:
        return "choose another input size"
    weight, wanted, got = refused.groups()
    if weight.count(",") == 4:
        return "expected a network of images, (B, C, H, W), found an nn.Conv3d, of which there is no attention"
    if int(got) == channels:
        return f"if it is for images of {some(int(wanted), 'channel')}, set model.in_chans = {wanted}"
    return f"if it is for images of other than {some(channels, 'channel')}, set model.in_chans to their number"


class NotInFloat64(RequestError):
    """A model does not run in float64: its forward pass makes numbers of another precision, as `.float()` does."""


@contextmanager
def told_in_one_line(model: nn.Module, batch: Tensor, dtype: torch.dtype | None = None) -> Iterator[None]:
    """Context in which an error of a model on a batch (B, C, H, W) is raised as `failure` tells it.

    Args:
        dtype: in which the model is run, if it is not its own. Raises `NotInFloat64` where that is the cause.
    """
    try:
        yield
    except TcnnError:
        raise
    except Exception as error:
        if dtype == torch.float64 and isinstance(error, RuntimeError) and OF_FLOAT64.search(str(error)):
            raise NotInFloat64(
                f"{type(model).__name__} does not run in float64 ({shorten(one_line(error), 160)}), since its forward "
                "pass makes numbers of another precision; give float64=False to compare in float32 only"
            ) from error
        raise failure(model, batch.shape[1:], error, "give a size, or images, that it takes") from error
