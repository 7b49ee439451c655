"""Networks that are no timm models, and what tests ask of models without tcnn's own measurements: states, errors,
what is selected of them, whether they come back from a file.
"""

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import tcnn
from tcnn.checkpoints import checkpoint
from tcnn.config import ConversionConfig
from tcnn.conversion.selection import Selection, select
from tcnn.models.trace import Step, trace
from tcnn.zoo.sources import without_data


class PlainNet(nn.Module):
    """A CNN without `feature_info`: two convolutions at full, two at half and three at quarter resolution."""

    def __init__(self, in_channels: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=1)
        self.down1 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.down2 = nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 16, (3, 5), padding=(1, 2), dilation=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=16)
        self.point = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(self.stem(x).relu()).relu()
        x = self.mid(self.down1(x).relu()).relu()
        x = self.norm(self.down2(x)).relu()
        x = self.depthwise(self.last(x).relu()).relu()
        return self.head(self.point(x).mean((2, 3)))


LAST_STAGE = ["down2", "last", "depthwise"]
"""The convolutions of `PlainNet` that work at its final resolution, in running order."""


class Tied(nn.Module):
    """One convolution under two names, run twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = self.first
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x).relu()).relu()
        return self.head(self.second(x).mean((2, 3)))


class ReadsValues(nn.Module):
    """A CNN whose forward pass branches on what it sees, so that it cannot run without data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        scale = 2.0 if x.float().mean().item() > 0 else 1.0
        return self.conv(x).mean((2, 3)) * scale


def meta_model(name: str, **options: object) -> nn.Module:
    """A timm model whose parameters take no memory and no time to draw."""
    with without_data():
        return timm.create_model(name, **options)


def seeded_model(name: str, seed: int = 0, **options: object) -> nn.Module:
    """A timm model with the same random weights every time."""
    torch.manual_seed(seed)
    return timm.create_model(name, **options)


def spatial_convolutions(model: nn.Module, *prefixes: str) -> list[str]:
    """Every k×k convolution (k > 1) whose name begins with one of the prefixes, in the order of definition."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.kernel_size != (1, 1) and name.startswith(prefixes)
    ]


@torch.no_grad()
def with_random_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every normalisation layer and residual gain random values: fresh ones hide whole branches."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    for parameter in model.parameters():
        if bool((parameter == 0).all()):
            parameter.copy_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return model


def image(size: tuple[int, int], channels: int = 3, batch: int = 1, seed: int = 0, double: bool = False) -> Tensor:
    """Standard normal noise, (batch, channels, *size)."""
    drawn = torch.randn(batch, channels, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn if double else drawn.float()


def relative_error(expected: Tensor, found: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖ in L2, in float64; the reference must not be silent."""
    assert expected.shape == found.shape
    norm = expected.double().norm().item()
    assert norm > 0
    return (found.double() - expected.double()).norm().item() / norm


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """A copy of every parameter and buffer, non-persistent ones included."""
    return {name: tensor.detach().clone() for name, tensor in _tensors(model)}


def same_state(model: nn.Module, before: dict[str, Tensor]) -> bool:
    """Whether every parameter and buffer still has the same bits."""
    now = dict(_tensors(model))
    return now.keys() == before.keys() and all(_same_bits(now[name], tensor) for name, tensor in before.items())


def _same_bits(a: Tensor, b: Tensor) -> bool:
    same_kind = a.shape == b.shape and a.dtype == b.dtype
    return same_kind and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan())


def _tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return (*model.named_parameters(), *model.named_buffers())


@torch.no_grad()
def comes_back(model: nn.Module, folder: Path) -> None:
    """Assert that a folded model is the same after saving and loading, bit for bit."""
    tcnn.save(model, folder / "folded.safetensors")
    again = tcnn.load(folder / "folded.safetensors")
    assert same_state(again, snapshot(model))
    x = image((64, 64))
    assert torch.equal(again(x), model(x))


def choose(model: nn.Module, size: tuple[int, int] | None = None, **options: Any) -> Selection:
    """What `select` chooses on a trace at `size`."""
    return select(model, trace(model, size), ConversionConfig(**options))


@cache
def traced(name: str) -> tuple[nn.Module, list[Step]]:
    """A timm model without data, and its trace; both are only read."""
    model = meta_model(name)
    return model, trace(model)


def choose_timm(name: str, **options: Any) -> Selection:
    """What `select` chooses of a timm model."""
    model, steps = traced(name)
    return select(model, steps, ConversionConfig(**options))


def written_with(model: nn.Module, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A file of the model whose report somebody changed: `save` itself writes what the layers are."""
    tensors, metadata = checkpoint.contents(model)
    report = json.loads(metadata["conversion"])
    change(report)
    metadata["conversion"] = json.dumps(report)
    metadata["digest"] = checkpoint.digest(tensors, metadata)
    return checkpoint.write((tensors, metadata), path, force=True)


class Difference(nn.Module):
    """Differential attention of three heads, with one weight for the second map."""

    fused_attn = True

    def __init__(self, attn: Any) -> None:
        super().__init__()
        self.first: nn.Linear = attn.qkv
        self.second: nn.Linear = deepcopy(attn.qkv)
        nn.init.normal_(self.second.weight)

    def forward(self, x: Tensor, **_: object) -> Tensor:
        maps = []
        for layer in (self.first, self.second):
            query, key, value = layer(x).unflatten(2, (3, 3, -1)).permute(2, 0, 3, 1, 4)
            maps.append(nn.functional.scaled_dot_product_attention(query, key, value))
        return (maps[0] - 0.5 * maps[1]).transpose(1, 2).flatten(2)
