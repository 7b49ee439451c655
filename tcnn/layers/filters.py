"""Filters of convolutions: read with their geometry, and set; why a convolution cannot be converted if it cannot.

`nn.Conv2d` and timm's subclasses of it are supported; a layer with a forward pass of its own is refused, because a
layer whose arithmetic is unknown cannot be reproduced exactly.
"""

import re
from typing import Any, Literal

import torch
from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from timm.layers.conv2d_same import Conv2dSameExport
from torch import Tensor, nn

from tcnn.errors import UnsupportedLayerError
from tcnn.layers.terms.positions import Geometry, Pair, Quad, padding_like_input

STANDARDISED = (StdConv2d, StdConv2dSame, ScaledStdConv2d, ScaledStdConv2dSame)
ALWAYS_SAME = (Conv2dSame, Conv2dSameExport)
SOMETIMES_SAME = (StdConv2dSame, ScaledStdConv2dSame)


BAKE = "bake weight norm, spectral norm or pruning in (remove_weight_norm, remove_spectral_norm, prune.remove)"
"""Advice for hooks of PyTorch (weight norm, pruning, parametrizations) that compute a weight before it is used."""
LOADING = "_load_state_dict_pre_hooks"
ROUNDING = 8
"""Tolerance between the wanted and the resulting filter, in units in the last place."""


def refusal(conv: nn.Module) -> str | None:
    """The reason why `conv` cannot be converted into a GPSA layer, or None when it can.

    Either its arithmetic is unknown, or it has hooks or parameters that the replacement would lose.
    """
    return unknown(conv) or _lost(conv)


def unknown(conv: nn.Module) -> str | None:
    """The reason why the arithmetic of `conv` is unknown, or None when it is a plain convolution."""
    if not isinstance(conv, nn.Conv2d):
        return f"{type(conv).__name__} is not an nn.Conv2d"
    if isinstance(conv, nn.modules.lazy.LazyModuleMixin):
        return "its shape is not known before the first forward pass (lazy module)"
    if nn.utils.parametrize.is_parametrized(conv):
        return "it is parametrised: bake the weight in first (torch.nn.utils.parametrize.remove_parametrizations)"
    known = (*STANDARDISED, *ALWAYS_SAME)
    own_forward = type(conv).forward is not nn.Conv2d.forward or type(conv)._conv_forward is not nn.Conv2d._conv_forward
    known_forward = not own_forward or any(type(conv).forward is kind.forward for kind in known)
    if not known_forward or type(conv).__call__ is not nn.Conv2d.__call__:
        return f"{type(conv).__name__} has a forward of its own that tcnn does not know"
    replaced = next((name for name in vars(conv) if callable(getattr(type(conv), name, None))), None)
    if replaced is not None:
        return f"its {replaced} was replaced on the instance"
    if isinstance(conv, known) and conv.padding_mode != "zeros":
        return f"timm's {type(conv).__name__} ignores padding_mode {conv.padding_mode!r}"
    if not conv.weight.is_floating_point():
        return f"its weights are {conv.weight.dtype}, expected a floating-point type"
    return _contradiction(conv)


def _contradiction(conv: nn.Conv2d) -> str | None:
    """How the shapes of weight and bias differ from what the attributes say, as after cutting channels, or None.

    PyTorch computes by the former, and whoever asks a convolution what it is learns the latter.
    """
    told = conv.out_channels, conv.in_channels // conv.groups, *pair(conv.kernel_size)
    found = tuple(conv.weight.shape)
    if found != told:
        return (
            f"its weight has the shape {found}, its out_channels, in_channels, groups and kernel_size say {told}: "
            "set them to what the weight has"
        )
    if conv.bias is not None and tuple(conv.bias.shape) != told[:1]:
        return f"its bias has the shape {tuple(conv.bias.shape)}, its out_channels say {told[:1]}: give one that fits"
    return None


def _lost(conv: nn.Module) -> str | None:
    """What the replacement of a convolution would lose (hooks, extra parameters), as a reason, or None."""
    hooks = hooks_of(conv)
    if hooks:
        return f"it has {' and '.join(hooks)}, which a replacement would lose: remove them, or {BAKE}, first"
    usual = {"weight", "bias"}
    usual |= {"gain"} if isinstance(conv, ScaledStdConv2d | ScaledStdConv2dSame) else set()
    usual |= {"pad"} if isinstance(conv, Conv2dSameExport) else set()
    held = ", ".join(sorted({*conv._parameters, *conv._buffers, *conv._modules} - usual))
    return f"it holds {held} beside its weight and bias, which a replacement would lose" if held else None


def hooks_of(module: nn.Module) -> list[str]:
    """The kinds of hooks on a layer and its parameters, each as a noun: `forward pre-hooks`, `hooks on weight`."""
    # What is done to a state before it is loaded maps a convolution's names, which its replacement has not; removing
    # weight norm or spectral norm leaves such a hook behind.
    kinds = [key for key, hooks in vars(module).items() if key.endswith("_hooks") and hooks and key != LOADING]
    own = [re.sub("_(pre|post)_hooks", r" \1-hooks", key).strip("_").replace("_", " ") for key in kinds]
    on = [
        f"hooks on {name}"
        for name, parameter in module.named_parameters(recurse=False)
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    return own + on


def geometry_of(conv: nn.Conv2d) -> Geometry:
    """The `Geometry` (kernel size, stride, dilation, padding) of a supported convolution.

    Raises `UnsupportedLayerError` for an unsupported one.
    """
    reason = refusal(conv)
    if reason:
        raise UnsupportedLayerError(reason)
    padding = padding_of(conv)
    margins = (0, 0) if padding == "dynamic" else (min(padding[2:]), min(padding[:2]))
    found = {"kernel_size": conv.kernel_size, "stride": conv.stride, "dilation": conv.dilation, "padding": margins}
    for name, value in found.items():  # a convolution is built with any, and refuses it when it runs
        if min(pair(value)) < (least := int(name != "padding")):
            raise UnsupportedLayerError(f"its {name} is {pair(value)}, expected {least} or more each way")
    return Geometry(
        kernel_size=pair(conv.kernel_size),
        stride=pair(conv.stride),
        dilation=pair(conv.dilation),
        padding=padding,
        padding_mode=conv.padding_mode,
    )


def padding_of(conv: nn.Conv2d) -> Quad | Literal["dynamic"]:
    """The padding (left, right, top, bottom) of a supported convolution in pixels, or "dynamic" (TensorFlow's SAME)."""
    if isinstance(conv, ALWAYS_SAME) or (isinstance(conv, SOMETIMES_SAME) and conv.same_pad):
        return "dynamic"
    if conv.padding_mode != "zeros":  # then PyTorch pads by what it has derived from `padding` when it was built
        left, right, top, bottom = conv._reversed_padding_repeated_twice
        return int(left), int(right), int(top), int(bottom)
    if conv.padding == "valid":
        return 0, 0, 0, 0
    if conv.padding == "same":
        return padding_like_input(pair(conv.kernel_size), pair(conv.dilation))
    top, left = pair(conv.padding)
    return left, left, top, top


def pair(value: object) -> Pair:
    """A kernel size, stride, padding or dilation as (rows, columns): layers hold one number or two; (1, 1) for none."""
    if isinstance(value, int):
        return value, value
    numbers = value if isinstance(value, tuple | list) and value else (1,)
    return int(numbers[0]), int(numbers[-1])


def is_standardised(conv: nn.Module) -> bool:
    """Whether the layer standardises its weight before every use (Qiao et al. 2019; Brock et al. 2021)."""
    return isinstance(conv, STANDARDISED)


def effective_filter(conv: Any) -> Tensor:
    """The filter that the convolution applies, (C_out, C_in / groups, kh, kw), in the weight's dtype.

    For timm's weight-standardised layers that is (gain · scale) · (w − mean) / √(var + ε) per output channel, computed
    in float64 and rounded once.
    """
    weight: Tensor = conv.weight.detach()
    if not is_standardised(conv):
        return weight
    var, mean = torch.var_mean(weight.double(), dim=(1, 2, 3), keepdim=True, correction=0)
    standard = (weight.double() - mean) / torch.sqrt(var + conv.eps)
    if hasattr(conv, "gain"):
        standard = standard * conv.gain.detach().double() * conv.scale
    return standard.to(weight.dtype)


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
