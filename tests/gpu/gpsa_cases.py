"""Layers as training leaves them, in every geometry and scope, and what they compute in float64 on the CPU."""

import copy
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.config import HARD_TEMPERATURE
from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend

RelativeError = Callable[[Tensor, Tensor], float]
"""The `relative_error` fixture."""

CHANNELS, OUT, HEADS = 32, 48, 9
SHAPE = (4, CHANNELS, 18, 17)
"""B, C, H, W: neither square nor even, and more than one part where maps are cut into parts."""


class Case(NamedTuple):
    """How a layer is made: τ, what its content part sees, and the convolution that it stands for."""

    temperature: float = 1.0
    held: bool = False
    """Whether a trainer vouches for the hard limit, as a GPU is not asked for it in every call."""
    content: str = "global"
    stride: int = 1
    groups: int = 1


CASES = {
    "hard": Case(HARD_TEMPERATURE, held=True),
    "hard, stride and groups": Case(HARD_TEMPERATURE, held=True, stride=2, groups=2),
    "hard, as attention": Case(HARD_TEMPERATURE),
    "soft, τ = 0.3": Case(0.3),
    "soft, τ = 1": Case(),
    "window": Case(content="window:7"),
    "window that covers the map": Case(content="window:20"),
    "pooled": Case(content="pooled:4"),
    "stride": Case(stride=2),
    "groups": Case(groups=2),
}
ARITHMETIC = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 3e-2, "autocast": 3e-2}
"""Relative L2 of outputs and gradients. Measured on a CPU: at most 1e-6, 1e-3, 1e-2 and 1e-2."""


@cache
def layer_of(name: str) -> GPSA2d:
    """The layer in float32 on the CPU; where it is soft, every parameter has moved."""
    case = CASES[name]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        conv = nn.Conv2d(CHANNELS, OUT, 3, case.stride, 1, groups=case.groups)
        layer = GPSA2d.from_conv2d(conv, temperature=case.temperature, content=case.content)
        layer.value.add_(0.1 * torch.randn(CHANNELS, CHANNELS))
        if case.temperature != HARD_TEMPERATURE:
            layer.gating_param.copy_(0.5 * torch.randn(HEADS))
            layer.attention_centers.add_(0.3 * torch.randn(HEADS, 2))
            layer.locality_raw.add_(0.1 * torch.randn(HEADS))
            layer.query.mul_(10)
            layer.key.mul_(10)
    return layer


def dtype_of(arithmetic: str) -> torch.dtype:
    """Of parameters and input; autocast leaves them in float32."""
    return torch.float32 if arithmetic == "autocast" else getattr(torch, arithmetic)


def on(device: torch.device, name: str, arithmetic: str = "float32") -> tuple[GPSA2d, Tensor]:
    """A layer of one's own in training, and an input that wants its gradient."""
    layer = copy.deepcopy(layer_of(name)).to(device, dtype_of(arithmetic)).train()
    if CASES[name].held:
        layer.set_temperature(HARD_TEMPERATURE, hold=True)
    return layer, drawn(SHAPE, 1).to(device, dtype_of(arithmetic)).requires_grad_()


def drawn(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@cache
def expected(name: str, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients by the formula as it is written, of weights and input that were rounded to `dtype`."""
    layer = copy.deepcopy(layer_of(name)).to(dtype).double()
    x = drawn(SHAPE, 1).to(dtype).double().requires_grad_()
    with use_backend("reference"):
        y = layer(x)
    y.backward(drawn(tuple(y.shape), 2).to(dtype).double())
    return y.detach(), gradients(layer, x)


def gradients(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Of the input and of every parameter."""
    tensors = {"x": x, **dict(layer.named_parameters())}
    found = {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}
    assert found.keys() == tensors.keys()
    return found
