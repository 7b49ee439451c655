"""Taking the stride out of a stage: it then runs at the resolution of the stage before, shortcuts included.

``remove`` does it as the paper does (d'Ascoli et al. 2021, §2): what carries a stride is replaced by what timm itself
builds at stride 1. Filters then see a smaller part of the image, and the CNN has to learn anew. ``dilate`` also spreads
the kernels of what runs after it, by as much as the map has grown (à trous): the pixels of the old map, every s-th of
the new one, then are what they were, and those between are the same stage on its input moved by a pixel.

What carries a stride is found in the trace of the stage, and the result is traced again: a stage whose map still
shrinks is refused.
"""

import copy
from typing import Any, Literal, NamedTuple

from timm.layers import BlurPool2d
from timm.models.byobnet import ByobNet
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.nfnet import NormFreeNet
from timm.models.regnet import RegNet
from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from timm.models.senet import SENet
from torch import nn

from tcnn.errors import UnsupportedLayerError
from tcnn.layers.filters import padding_of, unknown
from tcnn.layers.terms.positions import Pair
from tcnn.models.trace import Step

KNOWN_FAMILIES = (ResNet, ResNetV2, SENet, RegNet, ByobNet, NormFreeNet, EfficientNet, MobileNetV3)
"""Whose layers at stride 1 are known from timm; dilation needs no such knowledge."""

Way = Literal["remove", "dilate"]


class Unstriding(NamedTuple):
    """What happens to which layer, by dotted name."""

    removed: tuple[str, ...]
    """Layers that lose their stride."""
    dilated: dict[str, Pair]
    """By how much, along rows and columns, a layer's kernel is spread."""


def plan(model: nn.Module, steps: list[Step], larger: list[Step], way: Way) -> Unstriding:
    """How a stage of these steps comes to run at stride 1; raises `UnsupportedLayerError` where that is not known.

    Args:
        larger: the same steps on a larger image, for ``dilate``.
    """
    if way == "remove" and not isinstance(model, KNOWN_FAMILIES):
        names = ", ".join(sorted(kind.__name__ for kind in KNOWN_FAMILIES))
        raise UnsupportedLayerError(
            f"stride=remove is known for {names}, not for {type(model).__name__}; use stride=keep or dilate"
        )
    removed = tuple(dict.fromkeys(s.name for s in steps if max(_pair(getattr(s.module, "stride", 1))) > 1))
    if way == "remove" or not removed:
        return Unstriding(removed, {})
    if [step.name for step in steps] != [step.name for step in larger]:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs other layers on a larger image, so nothing tells how its maps "
            "grow; use stride=keep or remove"
        )
    first = next((pair for pair in zip(steps, larger, strict=True) if all(_is_map(s.input_shape) for s in pair)), None)
    dilated = {}
    for step, twin in zip(steps, larger, strict=True):
        if first is not None and _looks_around(step.module) and _is_map(step.input_shape):
            growth = _growth(_gain(*first), _gain(step, twin))
            if max(growth) > 1:
                dilated[step.name] = growth
    return Unstriding(removed, dilated)


def unstrided(model: nn.Module, unstriding: Unstriding, way: Way) -> dict[str, nn.Module]:
    """What must replace which layer of the model; the replacements share their weights with the originals.

    Raises `UnsupportedLayerError` for a layer whose stride cannot be removed, or which cannot be dilated.
    """
    replacements: dict[str, nn.Module] = {}
    for name in dict.fromkeys((*unstriding.removed, *unstriding.dilated)):
        module = model.get_submodule(name)
        if name in unstriding.dilated:
            module = _dilated(name, module, unstriding.dilated[name])
        if name in unstriding.removed:
            module = _at_stride_one(name, module, way)
        replacements[name] = module
    return replacements


def check_kept(before: list[Step], after: list[Step], names: tuple[str, ...], way: Way) -> None:
    """Raise unless every converted convolution now works at one resolution, larger than or equal to its old one."""
    sizes = {step.name: step.output_shape for step in after}
    old = {step.name: step.output_shape for step in before}
    final = {sizes[name][-2:] for name in names if sizes[name]}  # type: ignore[index]
    if len(final) != 1 or any(sizes[n][-1] < old[n][-1] for n in names):  # type: ignore[index]
        raise UnsupportedLayerError(
            f"stride={way}: the stage still works at several resolutions ({sorted(final)}); use stride=keep"
        )


def _looks_around(module: nn.Module) -> bool:
    """Whether a layer has a kernel of more than one pixel."""
    return max(_pair(getattr(module, "kernel_size", getattr(module, "filt_size", 1)))) > 1


def _is_map(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4


def _gain(step: Step, larger: Step) -> Pair:
    """By how many pixels a layer's input grows with the image, which padding or the want of it has no part in."""
    before, after = step.input_shape, larger.input_shape
    assert before is not None and after is not None  # noqa: S101 - both are maps
    return after[-2] - before[-2], after[-1] - before[-1]


def _growth(first: Pair, own: Pair) -> Pair:
    """How much larger a layer's map will be, along rows and columns: as large as the first of the stage."""
    down, across = (max(1, round(new / old)) if old else 1 for new, old in zip(first, own, strict=True))
    return down, across


def _dilated(name: str, module: nn.Module, growth: Pair) -> nn.Module:
    """A layer whose kernel is spread over a map that grew."""
    twin: Any = copy.copy(module)
    if isinstance(module, nn.Conv2d) and not unknown(module):
        padding = padding_of(module)
        if padding == "dynamic" or (padding[0], padding[2]) != (padding[1], padding[3]):
            reason = f"padding {padding} cannot be spread evenly"
        elif module.padding_mode != "zeros" and any(padding):
            reason = f"padding_mode {module.padding_mode!r} would repeat other pixels"
        else:
            twin.padding = (padding[2] * growth[0], padding[0] * growth[1])
            twin.dilation = (module.dilation[0] * growth[0], module.dilation[1] * growth[1])
            return twin
    elif isinstance(module, nn.MaxPool2d):
        # PyTorch pads a pool by half of its kernel at most, dilated or not.
        if not any(_pair(module.padding)):
            down, across = _pair(module.dilation)
            twin.dilation = (down * growth[0], across * growth[1])
            return twin
        reason = "a padded pool cannot be dilated"
    else:
        reason = f"{type(module).__name__} cannot be dilated"
    raise UnsupportedLayerError(f"stride=dilate: {name}: {reason}; use stride=keep or remove")


def _at_stride_one(name: str, module: nn.Module, way: Way) -> nn.Module:
    twin: Any = copy.copy(module)
    if isinstance(module, nn.Conv2d):
        if reason := unknown(module):
            raise UnsupportedLayerError(f"stride={way}: {name}: {reason}; use stride=keep")
        padding = padding_of(module)
        spans = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        keeps_size = padding == "dynamic" or (
            padding[0] + padding[1] == spans[1] and padding[2] + padding[3] == spans[0]
        )
        shifts = padding == "dynamic" and max(module.kernel_size) > 1  # its margins depend on the stride
        if keeps_size if way == "remove" else not shifts:
            twin.stride = (1, 1)
            return twin
        reason = f"a {module.kernel_size} convolution padded by {padding} would change the size of the map"
        if way == "dilate":
            reason = "TensorFlow's SAME padding would begin elsewhere"
        raise UnsupportedLayerError(f"stride={way}: {name}: {reason}; use stride=keep")
    if isinstance(module, BlurPool2d):
        if way == "remove":
            return nn.Identity()
        twin.stride = 1
        return twin
    if isinstance(module, nn.AvgPool2d | nn.MaxPool2d):
        kernel, margin, stride = _pair(module.kernel_size), _pair(module.padding), _pair(module.stride)
        centred = all(2 * p == k - 1 for k, p in zip(kernel, margin, strict=True))
        if centred and (way == "remove" or not module.ceil_mode):  # ResNeSt's avd keeps its 3×3 mean
            twin.stride = 1
            return twin
        if way == "remove" and kernel == stride:  # ResNet-D's shortcut: timm builds no pool at stride 1
            return nn.Identity()
        # Of a window that the map's end cuts off, the greatest is that of the window with the last pixel repeated, and
        # in a window of two so is the mean.
        spread = max(_pair(getattr(module, "dilation", 1))) > 1  # the last pixel need not be in a window with gaps
        repeats = module.ceil_mode and not spread and (isinstance(module, nn.MaxPool2d) or kernel == (2, 2))
        if way == "dilate" and not any(margin) and (repeats or not module.ceil_mode) and max(stride) <= min(kernel):
            twin.stride, twin.ceil_mode = 1, False
            end = nn.ReplicationPad2d((0, stride[1] - 1, 0, stride[0] - 1))
            return nn.Sequential(end, twin) if module.ceil_mode else twin
    raise UnsupportedLayerError(
        f"stride={way}: {name}: no stride-1 form of {type(module).__name__} is known; use stride=keep"
    )


def _pair(value: object) -> Pair:
    if isinstance(value, int):
        return value, value
    numbers = value if isinstance(value, tuple | list) and value else (1,)
    return int(numbers[0]), int(numbers[-1])
