"""The hard limit: while no head looks anywhere but at its own tap, the layer is a convolution and is computed as one.

So a converted model costs what its CNN costs until training moves it. In that limit the gradients of everything that
moves attention vanish as well: a gate of exactly 1 has the slope g(1 − g) = 0, content has the weight 1 − g = 0, and a
positional softmax that is one-hot to the last bit does not change with α or Δ.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers import positions
from tcnn.layers.positions import Geometry

STRENGTH = 40.0
"""α/τ from which a pixel beside the tap weighs less than half a unit in the last place of float64: e⁻⁴⁰ = 4e-18."""


@torch.no_grad()
def is_hard(gate: Tensor, strength: Tensor, centres: Tensor, geometry: Geometry) -> bool:
    """Whether every head looks at its own tap alone, to the last bit.

    Args:
        gate: σ(λ/τ), (K,). strength: α/τ, in 1/pixel², (K,). centres: Δ, (K, 2), pixels.
    """
    taps = _taps(geometry).to(centres)
    return bool(((gate == 1) & (strength >= STRENGTH) & (centres == taps).all(dim=1)).all())


_taps = cache(positions.tap_offsets)


def filter_of(proj: Tensor, geometry: Geometry) -> Tensor:
    """W_out, (C_out, K·C_in/G), as a filter, (C_out, C_in/G, kh, kw), contiguous."""
    taps = proj.unflatten(1, (geometry.heads, -1)).transpose(1, 2)
    return taps.unflatten(2, geometry.kernel_size).contiguous()


def convolve(
    x: Tensor,
    geometry: Geometry,
    value: Tensor | None,
    kernel: Tensor,
    bias: Tensor | None,
    groups: int,
    still: tuple[Tensor, ...],
) -> Tensor:
    """The layer in the hard limit, (B, C_out, Ho, Wo).

    Args:
        x: (B, C_in, h, w), not padded.
        value: W_val, (C_in, C_in); None where it is folded into the kernel.
        kernel: `filter_of` the layer's W_out.
        still: the parameters that have no say here; their gradients are zeros, not missing.
    """
    if value is not None:
        x = F.conv2d(x, value[:, :, None, None])
    left, right, top, bottom = positions.padding_of(x.shape[-2:], geometry)
    padding = (0, 0)
    if geometry.padding_mode == "zeros" and (left, top) == (right, bottom):
        padding = (top, left)
    else:
        x = positions.pad(x, geometry)
    y = F.conv2d(x, kernel, bias, geometry.stride, padding, geometry.dilation, groups)
    moving = [parameter for parameter in still if parameter.requires_grad]
    return _Still.apply(y, *moving) if moving and torch.is_grad_enabled() else y


class _Still(torch.autograd.Function):
    """Its first argument as it is; to the others it gives zeros for gradients."""

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, *still: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.shapes = [(parameter.shape, parameter.dtype, parameter.device) for parameter in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.shapes)
        return gradient, *zeros
