"""Stride removal: the stage runs at stride 1, at the resolution of the stage before, shortcuts included.

``remove`` does it as the paper does (d'Ascoli et al. 2021, §2): what carries a stride is replaced by what timm itself
builds at stride 1. Filters then see a smaller part of the image, and the CNN has to learn anew. ``dilate`` also spreads
the kernels of what runs after it, so that nothing changes (`dilation`).

What carries a stride is found in the trace of the stage, and the result is traced again: a stage whose map still
shrinks is refused. The layers that take those places are in `layers`.
"""

import timm
import torch
from timm.models._features import FeatureDictNet, FeatureGetterNet, FeatureHookNet
from timm.models._features_fx import FeatureGraphNet
from timm.models.byobnet import ByobNet
from timm.models.efficientnet import EfficientNet
from timm.models.mobilenetv3 import MobileNetV3
from timm.models.nfnet import NormFreeNet
from timm.models.regnet import RegNet
from timm.models.resnet import ResNet
from timm.models.resnetv2 import ResNetV2
from timm.models.senet import SENet
from torch import nn

from tcnn.config import ConversionConfig
from tcnn.conversion.selection import Selection
from tcnn.conversion.strides.dilation import dilate
from tcnn.conversion.strides.layers import NONE, StrideRemoval, Way, shared, steps_without, stride_of
from tcnn.errors import UnsupportedLayerError
from tcnn.layers.filters import pair
from tcnn.models.trace import Step, input_shape

KNOWN_FAMILIES = (ResNet, ResNetV2, SENet, RegNet, ByobNet, NormFreeNet, EfficientNet, MobileNetV3)
"""Whose layers at stride 1 are known from timm; dilation needs no such knowledge."""
WRAPPERS = (FeatureDictNet, FeatureHookNet, FeatureGetterNet, FeatureGraphNet)
"""timm's feature extractors, which have the stages of a model that they are not."""


def remove_stride(
    model: nn.Module, steps: list[Step], selection: Selection, config: ConversionConfig
) -> tuple[StrideRemoval, list[Step]]:
    """Decide how the selected stage loses its stride, as `config.stride` asks; the model is left as it is.

    Returns: what becomes of which layer, and the steps of the model after that, on an image of the same size.

    Raises: `UnsupportedLayerError` for a model or a layer of which no form at stride 1 is known, and where dilation
        would not keep the pixels of the old map.
    """
    way = config.stride
    if way == "keep":
        return NONE, steps
    stage = [steps[i] for i in selection.span]
    removed = _strided(model, stage, way)
    _refuse_outside(way, removed, {step.name for i, step in enumerate(steps) if i not in selection.span})
    if way == "dilate":
        try:
            removal, after = dilate(model, steps, selection.span, removed, input_shape(model, config.input_size)[1:])
        except UnsupportedLayerError as error:
            raise UnsupportedLayerError(f"{error}{_or_remove(model, steps, selection, config)}") from error
    else:
        removal = StrideRemoval(way, removed, {})
        after = steps_without(model, removal, config.input_size)
    _check_one_resolution(steps, after, selection.names, way)
    return removal, after


def _or_remove(model: nn.Module, steps: list[Step], selection: Selection, config: ConversionConfig) -> str:
    """What a refusal of dilation, which ends with the advice to keep the stride, may advise as well."""
    try:
        remove_stride(model, steps, selection, config.model_copy(update={"stride": "remove"}))
    except UnsupportedLayerError:
        return ""
    return " or remove"


def _strided(model: nn.Module, stage: list[Step], way: Way) -> tuple[str, ...]:
    """The layers of a stage that have a stride, by name; raises `UnsupportedLayerError` where they are not known."""
    if way == "remove" and not issubclass(kind := family(model), KNOWN_FAMILIES):
        names = ", ".join(sorted(known.__name__ for known in KNOWN_FAMILIES))
        raise UnsupportedLayerError(
            f"stride=remove is known for timm's {names}, not for {kind.__module__}.{kind.__qualname__}; "
            "use stride=keep, or try dilate"
        )
    removed = tuple(dict.fromkeys(s.name for s in stage if max(pair(stride_of(s.module))) > 1))
    if way == "dilate" and not removed:
        raise UnsupportedLayerError(
            "stride=dilate: no layer of the stage has a stride to remove (one in a function such as F.max_pool2d is "
            "not seen: make it a module); use stride=keep"
        )
    return removed


def family(model: nn.Module) -> type[nn.Module]:
    """The class of a model; of timm's feature extractors that of the classifier whose stages they have."""
    name = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if not isinstance(model, WRAPPERS) or not name or not timm.is_model(name):
        return type(model)
    try:
        with torch.device("meta"):
            return type(timm.create_model(name))
    except RuntimeError:  # it reads values when it is built
        return type(timm.create_model(name))


def _refuse_outside(way: Way, removed: tuple[str, ...], outside: set[str]) -> None:
    """Raise for a layer that is to lose its stride and also runs outside the stage, where it is to keep it.

    Args:
        outside: names of the layers that run there.
    """
    for name in removed:
        if name in outside:
            raise shared(way, name)


def _check_one_resolution(before: list[Step], after: list[Step], names: tuple[str, ...], way: Way) -> None:
    """Raise unless every selected convolution now works at one resolution, larger than or equal to its old one."""
    sizes = {step.name: step.output_shape for step in after}
    old = {step.name: step.output_shape for step in before}
    final = {sizes[name][-2:] for name in names if sizes[name]}  # type: ignore[index]
    if len(final) != 1 or any(sizes[n][-1] < old[n][-1] for n in names):  # type: ignore[index]
        raise UnsupportedLayerError(
            f"stride={way}: the stage still works at several resolutions ({sorted(final)}); use stride=keep"
        )
