"""Layers computed by the materialised backend, beside the formula as it is written in float64 and plain operations."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.backends import autotune
from tcnn.layers.backends.selection import use_backend

FORMS: dict[str, dict[str, Any]] = {
    "padding": {"padding": True},
    "stride": {"padding": True, "stride": 2},
    "no padding": {},
    "reflected": {"padding": True, "padding_mode": "reflect"},
    "dilated": {"padding": True, "dilation": (1, 2)},
}
"""`padding` of half the kernel on every side."""


class Case(NamedTuple):
    """A layer and its input."""

    form: str = "padding"
    size: tuple[int, int] = (2, 3)
    width: int = 8
    """Of a head."""
    channels: tuple[int, int] = (16, 12)
    images: int = 2
    content_heads: int = 0
    unpadded: bool = False
    """Whether zeros around the map are no keys."""
    dtype: torch.dtype = torch.float32
    kernel: tuple[int, int] = (1, 3)
    """Few heads and few pixels: every query of a head is a program, and one takes the interpreter 10 ms."""


def make(case: Case, seed: int = 0) -> tuple[GPSA2d, Tensor]:
    """The layer, every parameter moved, and an input, both on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        form = FORMS[case.form]
        dilation = form.get("dilation", (1, 1))
        around = tuple(d * (k // 2) for k, d in zip(case.kernel, dilation, strict=True)) if "padding" in form else 0
        conv = nn.Conv2d(*case.channels, case.kernel, **(form | {"padding": around}))
        layer = GPSA2d.from_conv2d(
            conv, temperature=1.0, head_dim=case.width, content_heads=case.content_heads,
            content="global,unpadded" if case.unpadded else "global",
        )  # fmt: skip
        layer.gating_param.normal_(std=0.5)
        layer.query.normal_(std=0.2)
        layer.key.normal_(std=0.2)
        layer.proj.normal_(std=0.2)
        layer.value.add_(0.1 * torch.randn_like(layer.value))
        layer.attention_centers.add_(0.3 * torch.randn_like(layer.attention_centers))
        layer.locality_raw.add_(0.3 * torch.randn_like(layer.locality_raw))
    x = torch.randn(case.images, case.channels[0], *case.size, generator=generator)
    return layer.to(case.dtype), x.to(case.dtype)


def found_by(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.detach().requires_grad_()
    y = layer(x)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    named = dict(layer.named_parameters())
    found = torch.autograd.grad(y, [x, *named.values()], upstream)
    return {"y": y.detach(), "x": found[0], **dict(zip(named, found[1:], strict=True))}


def relative(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Relative L2 errors, in float64 on the CPU; NaN anywhere is infinite."""

    def error(name: str) -> float:
        one, other = found[name].cpu().double(), expected[name].cpu().double()
        assert one.shape == other.shape, name
        return float((one - other).norm() / other.norm().clamp_min(1e-30)) if one.isfinite().all() else math.inf

    return {name: error(name) for name in expected}


@contextmanager
def materialised() -> Iterator[list[str]]:
    """Context in which the materialised backend is chosen wherever it can be; gives what there was to choose from."""
    seen: list[str] = []

    def choose(implementations: dict[str, object], inputs: object, timer: object = None) -> str:
        seen.append(" ".join(implementations))
        return "materialised" if "materialised" in implementations else next(iter(implementations))

    with patch.object(autotune, "fastest", choose):
        yield seen


class Found(NamedTuple):
    errors: dict[str, float]
    plain: dict[str, float]
    """Of plain operations in the same dtype."""
    same: bool
    """Whether a second run agrees in every bit."""
    chosen_from: list[str]


def compare(case: Case, device: str = "cpu") -> Found:
    """Output and gradients of the layer by the materialised backend, twice, and by plain operations."""
    layer, x = make(case)
    with use_backend("reference"):
        expected = found_by(copy.deepcopy(layer).double(), x.double())
    layer, x = layer.to(device), x.to(device)
    with materialised() as seen:
        found, again = found_by(layer, x), found_by(layer, x)
    with use_backend("dense"):
        plain = found_by(layer, x)
    same = all(torch.equal(found[name], again[name]) for name in found)
    return Found(relative(found, expected), relative(plain, expected), same, seen)


def tuned(layer: nn.Module, x: Tensor) -> dict[str, str]:
    """What the tuner chooses for a layer, by what there was to choose from; warnings are errors of the caller."""
    autotune.clear_cache()
    layer(x)
    return {" ".join(kind[0]): name for kind, name in autotune._cache.items()}  # type: ignore[index]
