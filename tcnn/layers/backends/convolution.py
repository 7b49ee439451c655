"""Convolution backend for the hard limit, where every head attends to its own tap only.

So a converted model costs what its CNN costs until training moves it. In that limit the gradients of everything that
moves attention vanish as well: a gate of exactly 1 has the slope g(1 − g) = 0, content has the weight 1 − g = 0, and a
positional softmax that is one-hot to the last bit does not change with α or Δ.

Shapes: B batch, C channels, G groups, h×w map, Ho×Wo output map, K heads (kernel taps).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms import kinds, positions
from tcnn.layers.terms.parameters import Parameters, value_in_projection
from tcnn.layers.terms.positions import Geometry

HARD_STRENGTH = 40.0
"""Margin of the logits, α/τ, from which a neighbouring pixel weighs less than half a float64 ulp: e⁻⁴⁰ = 4e-18."""


@torch.no_grad()
def is_hard(parameters: Parameters, geometry: Geometry) -> bool:
    """Whether every head with a positional part attends to its own tap only, to the last bit.

    Reads values: the host waits for a GPU.
    """
    p = parameters
    if p.position is None:
        return False
    # Numbers of the host: a handful of heads is compared faster than tensors are.
    return (
        all(gate == 1 for gate in p.gate.tolist()[: p.heads - p.content_heads])
        and all(margin >= HARD_STRENGTH for margin in (p.position.margin() / p.temperature).tolist())
        and p.position.aims_at_taps(geometry)
    )


def filter_of(proj: Tensor, geometry: Geometry) -> Tensor:
    """W_out, (C_out, K·C_in/G), as a convolution filter, (C_out, C_in/G, kh, kw), a view."""
    taps = proj.unflatten(1, (geometry.heads, -1)).transpose(1, 2)
    return taps.unflatten(2, geometry.kernel_size)


def proj_of(weight: Tensor) -> Tensor:
    """A convolution filter (C_out, C_in/G, kh, kw), or a tensor of its shape, as W_out, (C_out, K·C_in/G)."""
    return weight.flatten(2).transpose(1, 2).flatten(1)


def attend(x: Tensor, parameters: Parameters, geometry: Geometry) -> Tensor:
    """The layer as a convolution, (B, C_in, h, w) to (B, C_out, Ho, Wo); gradients that vanish are zeros."""
    p = value_in_projection(parameters, x)
    unaffected = (p.query, p.key, p.gating_param, *kinds.tensors_of(p.position))
    kernel = filter_of(p.plain_proj, geometry).contiguous()
    return convolve(x, geometry, p.value, kernel, with_zero_gradients(p, unaffected), p.groups)


def convolve(
    x: Tensor, geometry: Geometry, value: Tensor | None, kernel: Tensor, bias: Tensor | None, groups: int
) -> Tensor:
    """Convolution after W_val, (B, C_out, Ho, Wo).

    Args:
        x: (B, C_in, h, w), not padded.
        value: W_val, (C_in, C_in); None where it is folded into the kernel.
        kernel: (C_out, C_in/G, kh, kw).
    """
    if value is not None:
        x = F.conv2d(x, value[:, :, None, None])
    left, right, top, bottom = positions.padding_of(x.shape[-2:], geometry)
    padding = (0, 0)
    if geometry.padding_mode == "zeros" and (left, top) == (right, bottom):
        padding = (top, left)
    else:
        x = positions.pad(x, geometry)
    return F.conv2d(x, kernel, bias, geometry.stride, padding, geometry.dilation, groups)


def with_zero_gradients(parameters: Parameters, unaffected: tuple[object, ...]) -> Tensor | None:
    """The bias, connected in the autograd graph to tensors that have no influence, so that their gradients are zeros.

    A sum over none of their elements is 0 whatever they hold, and every transform of PyTorch supports it.
    """
    trainable = [tensor for tensor in unaffected if isinstance(tensor, Tensor) and tensor.requires_grad]
    if not trainable or not torch.is_grad_enabled():
        return parameters.bias
    bias = parameters.bias
    if bias is None:
        bias = parameters.plain_proj.new_zeros(parameters.plain_proj.shape[0])
    # In one dtype, whatever autocast or the layer's own: as few operations as there can be, for a GPU waits for them.
    nothing = torch.cat([tensor.flatten()[:0].to(bias.dtype) for tensor in trainable])
    return bias + nothing.sum()
