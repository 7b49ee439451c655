"""The layer in every form that it can take: what tests of PyTorch's features run over."""

from collections.abc import Callable, Collection

import pytest
import torch
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.terms import kinds

Form = Callable[[], nn.Module]

REORDERED = 1e-13
"""Relative L2 in float64 where only the order of operations may differ. Measured: at most 2e-15."""


def layer(temperature: float, **options: object) -> GPSA2d:
    """A layer with matrices as after training, float64."""
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1).double()
    made = GPSA2d.from_conv2d(conv, temperature=temperature, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for name in ("query", "key", "value"):
            getattr(made, name).add_(0.3 * torch.randn_like(getattr(made, name)))
        if temperature > 0.1:
            for name in ("gating_param", *kinds.parameters_of(made.position, made.positional_term)):
                getattr(made, name).add_(0.3 * torch.randn_like(getattr(made, name)))
    return made


def folded() -> nn.Module:
    kinds = ["convolution", "content", "attention"] * 3
    return FoldedGPSA2d.from_gpsa2d(layer(0.7), kinds, [h if k == "convolution" else None for h, k in enumerate(kinds)])  # type: ignore[arg-type]


def fused(temperature: float, **options: object) -> nn.Module:
    return FusedGPSA2d(layer(temperature, **options))


def exposed(temperature: float, **options: object) -> nn.Module:
    """Whose maps pass its submodule `attn`."""
    made = layer(temperature, **options)
    made.fused_attn = False
    return made


FORMS: dict[str, Form] = {
    "hard": lambda: layer(1 / 46),
    "soft": lambda: layer(0.7),
    "window": lambda: layer(0.7, content="window:3"),
    "pooled": lambda: layer(0.7, content="pooled:2"),
    "folded": folded,
    "fused": lambda: fused(0.7),
    "fused hard": lambda: fused(1 / 46),
    "fused window": lambda: fused(0.7, content="window:3"),
}
EXPOSED: dict[str, Form] = {
    "exposed": lambda: exposed(0.7),
    "exposed window": lambda: exposed(0.7, content="window:3", content_heads=1),
    "exposed, by content": lambda: exposed(0.7, position="relative-content"),
}
TRAINED = [name for name in FORMS if not name.startswith("fused")]


def parametrized(names: Collection[str], slow: Collection[str] = ()) -> pytest.MarkDecorator:
    """`form` is each of these in turn, those in `slow` only where slow tests run."""
    marks = {name: pytest.mark.slow if name in slow else () for name in names}
    return pytest.mark.parametrize("form", [pytest.param(FORMS[n], id=n, marks=m) for n, m in marks.items()])


every_form = parametrized(FORMS)
every_trained_form = parametrized(TRAINED)


def image(*size: int, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 4, *(size or (7, 6)), dtype=torch.float64, generator=generator)
