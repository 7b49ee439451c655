"""Set the filter of a convolution, inverting weight standardisation where the layer standardises its weight."""

from typing import Any

import torch
from torch import Tensor, nn

from tcnn.layers.filters import effective_filter, is_standardised

ROUNDING = 8
"""Tolerance between the wanted and the resulting filter, in units in the last place."""


@torch.no_grad()
def load_filter(conv: Any, weight: Tensor, bias: Tensor | None) -> bool:
    """Set the parameters of a convolution so that it applies `weight` (C_out, C_in/G, kh, kw) and `bias` (C_out).

    Returns whether that is possible. A standardised filter has mean 0 in every output channel and, without a gain, a
    variance below 1, which a freely trained filter does not have. A plain convolution takes any filter, bit for bit.
    """
    gain: Tensor | None = None
    raw = weight
    if is_standardised(conv):
        target = weight.double()
        variance = target.var(dim=(1, 2, 3), keepdim=True, correction=0)
        if hasattr(conv, "gain"):
            # Standardising divides by √(var + ε); the gain multiplies that back.
            gain = ((variance + conv.eps).sqrt() / conv.scale).to(weight.dtype)
        else:
            # a·w with a²·var = var/(1 − var)·ε … is standardised to w itself.
            raw = (target * (conv.eps / (1 - variance).clamp(min=torch.finfo(weight.dtype).eps)).sqrt()).to(
                weight.dtype
            )
    conv.weight = nn.Parameter(raw.clone(), conv.weight.requires_grad)
    if gain is not None:
        conv.gain = nn.Parameter(gain, conv.gain.requires_grad)
    if bias is not None:
        conv.bias = nn.Parameter(bias.detach().clone(), conv.bias.requires_grad)
    if not is_standardised(conv):
        return True
    miss = (effective_filter(conv).double() - weight.double()).norm()
    return bool(miss <= ROUNDING * torch.finfo(weight.dtype).eps * weight.double().norm())
