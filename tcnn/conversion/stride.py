"""Taking the stride out of a stage, as the paper does (d'Ascoli et al. 2021, §2): it then runs at the resolution of the
stage before, shortcuts included.

What carries a stride is found in the trace of the stage and replaced by what timm itself builds at stride 1. Only
families for which that is known are accepted, and the result is traced again: a stage whose map still shrinks is
refused.
"""

import copy

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

from tcnn.conversion.trace import Step
from tcnn.errors import UnsupportedLayerError
from tcnn.layers.filters import padding_of, unknown

KNOWN_FAMILIES = (ResNet, ResNetV2, SENet, RegNet, ByobNet, NormFreeNet, EfficientNet, MobileNetV3)


def unstrided(model: nn.Module, steps: list[Step]) -> dict[str, nn.Module]:
    """What must replace which layer of the stage `steps` so that it runs at stride 1.

    The replacements share their weights with the originals. Raises `UnsupportedLayerError` for a family that is not
    known, or a layer whose stride cannot be removed.
    """
    if not isinstance(model, KNOWN_FAMILIES):
        names = ", ".join(sorted(kind.__name__ for kind in KNOWN_FAMILIES))
        raise UnsupportedLayerError(
            f"stride=remove is known for {names}, not for {type(model).__name__}; use stride=keep"
        )
    replacements = {}
    for step in steps:
        if max(_pair(getattr(step.module, "stride", 1))) > 1:
            replacements[step.name] = _at_stride_one(step)
    return replacements


def check_kept(before: list[Step], after: list[Step], names: tuple[str, ...]) -> None:
    """Raise unless every converted convolution now works at one resolution, larger than or equal to its old one."""
    sizes = {step.name: step.output_shape for step in after}
    old = {step.name: step.output_shape for step in before}
    final = {sizes[name][-2:] for name in names if sizes[name]}  # type: ignore[index]
    if len(final) != 1 or any(sizes[n][-1] < old[n][-1] for n in names):  # type: ignore[index]
        raise UnsupportedLayerError(
            f"stride=remove: the stage still works at several resolutions ({sorted(final)}); use stride=keep"
        )


def _at_stride_one(step: Step) -> nn.Module:
    module = step.module
    if isinstance(module, nn.Conv2d):
        if reason := unknown(module):
            raise UnsupportedLayerError(f"stride=remove: {step.name}: {reason}; use stride=keep")
        padding = padding_of(module)
        spans = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        keeps_size = padding == "dynamic" or (
            padding[0] + padding[1] == spans[1] and padding[2] + padding[3] == spans[0]
        )
        if keeps_size:
            twin = copy.copy(module)
            twin.stride = (1, 1)
            return twin
        reason = f"a {module.kernel_size} convolution padded by {padding} would change the size of the map"
        raise UnsupportedLayerError(f"stride=remove: {step.name}: {reason}; use stride=keep")
    if isinstance(module, BlurPool2d):
        return nn.Identity()
    if isinstance(module, nn.AvgPool2d | nn.MaxPool2d):
        kernel, margin = _pair(module.kernel_size), _pair(module.padding)
        if kernel == _pair(module.stride):  # ResNet-D's shortcut: timm builds no pool at stride 1
            return nn.Identity()
        if all(2 * p == k - 1 for k, p in zip(kernel, margin, strict=True)):  # ResNeSt's avd keeps its 3×3 mean
            pool = copy.copy(module)
            pool.stride = 1
            return pool
    raise UnsupportedLayerError(
        f"stride=remove: {step.name}: no stride-1 form of {type(module).__name__} is known; use stride=keep"
    )


def _pair(value: object) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    numbers = value if isinstance(value, tuple | list) and value else (1,)
    return int(numbers[0]), int(numbers[-1])
