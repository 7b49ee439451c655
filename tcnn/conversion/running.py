"""Running models so that what comes out can be compared: in one dtype, at one τ."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tcnn.conversion.outputs import flat
from tcnn.errors import RequestError
from tcnn.layers.gpsa import GPSA2d


def replacements(model: nn.Module) -> dict[str, GPSA2d]:
    """The GPSA layers of a converted model by dotted name; raises `RequestError` if it has none."""
    found = {name: module for name, module in model.named_modules() if isinstance(module, GPSA2d)}
    if not found:
        raise RequestError(f"{type(model).__name__} has no GPSA layer: nothing to verify")
    return found


def temperatures(model: nn.Module) -> dict[str, float]:
    """τ of every GPSA layer; raises `RequestError` for one at which there is no attention."""
    found = {name: float(layer.temperature) for name, layer in replacements(model).items()}
    for name, temperature in found.items():
        if not 0 < temperature < torch.inf:
            raise RequestError(
                f"{name}: expected a temperature above 0, found {temperature:g}; fill its `temperature` with one, "
                "1/46 for the convolution or 1 for the paper's start"
            )
    return found


@contextmanager
def at_temperature(model: nn.Module, temperature: float) -> Iterator[None]:
    """Set τ of every GPSA layer for a while."""
    layers = list(replacements(model).values())
    before = [layer.temperature.clone() for layer in layers]
    try:
        for layer in layers:
            layer.temperature.fill_(temperature)
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.temperature.copy_(value)


def in_dtype(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model itself if it has the dtype already, else a copy in it that never duplicates the originals."""
    if all(p.dtype == dtype for p in model.parameters() if p.is_floating_point()):
        return model
    memo: dict[int, object] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        twin = tensor.detach().to(dtype) if tensor.is_floating_point() else tensor.clone()
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copy.deepcopy(model, memo)


def logits_of(model: nn.Module, batch: Tensor, dtype: torch.dtype) -> Tensor:
    """What a model that has this dtype says to a batch (B, C, H, W) on any device, (B, …)."""
    device = next(model.parameters()).device
    # One image at a time in float64: its activations, not its weights, would set the memory that a conversion takes.
    parts = batch.split(1) if dtype == torch.float64 else (batch,)
    return torch.cat([flat(model(part.to(device=device, dtype=dtype)), len(part)) for part in parts])


@contextmanager
def watching(
    model: nn.Module, names: Iterable[str], call: Callable[[str, nn.Module, Tensor, Tensor], None]
) -> Iterator[None]:
    """``call(name, layer, input, output)`` for a while, whenever one of these layers has run."""
    handles = [
        model.get_submodule(name).register_forward_hook(lambda m, args, out, name=name: call(name, m, args[0], out))
        for name in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
