"""Reading a convolution: its geometry and the filter it really applies.

`nn.Conv2d` and what timm derives from it are known; anything with a forward of its own is refused, because a layer
whose arithmetic is unknown cannot be reproduced exactly.
"""

from typing import Any

import torch
from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from timm.layers.conv2d_same import Conv2dSameExport
from torch import Tensor, nn

from tcnn.errors import UnsupportedLayerError
from tcnn.layers.positions import Geometry, Pair, Quad

STANDARDISED = (StdConv2d, StdConv2dSame, ScaledStdConv2d, ScaledStdConv2dSame)
ALWAYS_SAME = (Conv2dSame, Conv2dSameExport)
SOMETIMES_SAME = (StdConv2dSame, ScaledStdConv2dSame)


def refusal(conv: nn.Module) -> str | None:
    """Why `conv` cannot be reproduced by a GPSA layer, or None when it can."""
    if not isinstance(conv, nn.Conv2d):
        return f"{type(conv).__name__} is not an nn.Conv2d"
    if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        return "its shape is not known before the first forward pass (lazy module)"
    if nn.utils.parametrize.is_parametrized(conv):
        return "it is parametrised: bake the weight in first (torch.nn.utils.parametrize.remove_parametrizations)"
    known = (*STANDARDISED, *ALWAYS_SAME)
    own_forward = type(conv).forward is not nn.Conv2d.forward or type(conv)._conv_forward is not nn.Conv2d._conv_forward
    if own_forward and not any(type(conv).forward is kind.forward for kind in known):
        return f"{type(conv).__name__} has a forward of its own that tcnn does not know"
    if "forward" in vars(conv):
        return "its forward was replaced on the instance"
    if conv._forward_hooks or conv._forward_pre_hooks:
        return "it has forward hooks, which a replacement would lose (remove them, or bake weight norm in, first)"
    if isinstance(conv, (*STANDARDISED, *ALWAYS_SAME)) and conv.padding_mode != "zeros":
        return f"timm's {type(conv).__name__} ignores padding_mode {conv.padding_mode!r}"
    if not conv.weight.is_floating_point():
        return f"its weights are {conv.weight.dtype}, expected a floating-point type"
    return None


def geometry_of(conv: nn.Conv2d) -> Geometry:
    """The geometry of a supported convolution; raises `UnsupportedLayerError` otherwise."""
    reason = refusal(conv)
    if reason:
        raise UnsupportedLayerError(reason)
    dynamic = isinstance(conv, ALWAYS_SAME) or (isinstance(conv, SOMETIMES_SAME) and conv.same_pad)
    return Geometry(
        kernel_size=_pair(conv.kernel_size),
        stride=_pair(conv.stride),
        dilation=_pair(conv.dilation),
        padding="dynamic" if dynamic else _static_padding(conv),
        padding_mode=conv.padding_mode,
    )


def _static_padding(conv: nn.Conv2d) -> Quad:
    if conv.padding == "valid":
        return 0, 0, 0, 0
    if conv.padding == "same":
        totals = [d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
        top, left = (total // 2 for total in totals)
        return left, totals[1] - left, top, totals[0] - top
    top, left = (int(amount) for amount in conv.padding)
    return left, left, top, top


def _pair(values: tuple[int, ...]) -> Pair:
    rows, columns = values
    return rows, columns


def is_standardised(conv: nn.Module) -> bool:
    """Whether the layer standardises its weight before every use (Qiao et al. 2019; Brock et al. 2021)."""
    return isinstance(conv, STANDARDISED)


def effective_filter(conv: Any) -> Tensor:
    """The filter that the convolution applies, (C_out, C_in / groups, kh, kw), in the weight's dtype.

    For timm's weight-standardised layers that is (gain · scale) · (w − mean) / √(var + ε) per output channel, taken in
    float64 and rounded once.
    """
    weight: Tensor = conv.weight.detach()
    if not is_standardised(conv):
        return weight
    var, mean = torch.var_mean(weight.double(), dim=(1, 2, 3), keepdim=True, correction=0)
    standard = (weight.double() - mean) / torch.sqrt(var + conv.eps)
    if hasattr(conv, "gain"):
        standard = standard * conv.gain.detach().double() * conv.scale
    return standard.to(weight.dtype)
