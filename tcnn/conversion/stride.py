"""Stride removal: the stage runs at stride 1, at the resolution of the stage before, shortcuts included.

``remove`` does it as the paper does (d'Ascoli et al. 2021, §2): what carries a stride is replaced by what timm itself
builds at stride 1. Filters then see a smaller part of the image, and the CNN has to learn anew. ``dilate`` also spreads
the kernels of what runs after it, by as much as the map has grown (à trous): the pixels of the old map, every s-th of
the new one, then are what they were, and those between are the same stage on its input moved by a pixel.

What carries a stride is found in the trace of the stage, and the result is traced again: a stage whose map still
shrinks is refused. The layers that take those places are in `stride_one`.
"""

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
from tcnn.conversion.carry import copy_with
from tcnn.conversion.selection import Selection
from tcnn.conversion.stride_one import NONE, StrideRemoval, Way, strideless_layers
from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.layers.filters import pair
from tcnn.layers.terms.positions import Pair
from tcnn.models.trace import Step, input_shape, meta_copy, trace

KNOWN_FAMILIES = (ResNet, ResNetV2, SENet, RegNet, ByobNet, NormFreeNet, EfficientNet, MobileNetV3)
"""Whose layers at stride 1 are known from timm; dilation needs no such knowledge."""


def remove_stride(
    model: nn.Module, steps: list[Step], selection: Selection, config: ConversionConfig
) -> tuple[StrideRemoval, list[Step]]:
    """Decide how the selected stage loses its stride, as `config.stride` asks; the model is left as it is.

    Returns: what becomes of which layer, and the steps of the model after that, on an image of the same size.

    Raises: `UnsupportedLayerError` for a model or a layer of which no form at stride 1 is known.
    """
    if config.stride == "keep":
        return NONE, steps
    stage = [steps[i] for i in selection.span]
    larger = _on_twice_the_size(model, selection, config) if config.stride == "dilate" else stage
    removal = _find(model, stage, larger, config.stride)
    _refuse_shared(removal, {step.name for i, step in enumerate(steps) if i not in selection.span})
    layers = strideless_layers(model, removal)
    try:
        after = trace(copy_with(meta_copy(model), layers), config.input_size)
    except Exception as error:
        raise UnsupportedLayerError(
            f"stride={config.stride}: {type(model).__name__} does not run without its last stride; use stride=keep"
        ) from error
    _check_one_resolution(steps, after, selection.names, config.stride)
    return removal, after


def _on_twice_the_size(model: nn.Module, selection: Selection, config: ConversionConfig) -> list[Step]:
    """The steps of the stage on an image of twice the height and width, from which dilation sees how maps grow."""
    _, height, width = input_shape(model, config.input_size)
    try:
        steps = trace(model, (2 * height, 2 * width))
    except RequestError as error:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs at one size only, so nothing tells how its maps grow; use "
            "stride=keep or remove"
        ) from error
    return steps[selection.span.start : selection.span.stop]


def _find(model: nn.Module, steps: list[Step], larger: list[Step], way: Way) -> StrideRemoval:
    """Which layers of a stage carry its stride, and by how much the others have to be dilated.

    Args:
        steps: the stage. larger: the same steps on a larger image, for ``dilate``.

    Raises: `UnsupportedLayerError` where that is not known.
    """
    if way == "remove" and not isinstance(model, KNOWN_FAMILIES):
        names = ", ".join(sorted(kind.__name__ for kind in KNOWN_FAMILIES))
        raise UnsupportedLayerError(
            f"stride=remove is known for {names}, not for {type(model).__name__}; use stride=keep or dilate"
        )
    removed = tuple(dict.fromkeys(s.name for s in steps if max(pair(_stride(s.module))) > 1))
    if way == "dilate" and not removed:
        raise UnsupportedLayerError(
            "stride=dilate: no layer of the stage has a stride to remove (one in a function such as F.max_pool2d is "
            "not seen: make it a module); use stride=keep"
        )
    if way == "remove" or not removed:
        return StrideRemoval(way, removed, {})
    if [step.name for step in steps] != [step.name for step in larger]:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs other layers on a larger image, so nothing tells how its maps "
            "grow; use stride=keep or remove"
        )
    first = next((both for both in zip(steps, larger, strict=True) if all(_is_map(s.input_shape) for s in both)), None)
    if first is not None and not all(_gain(*first)):
        raise UnsupportedLayerError(
            f"stride=dilate: the map at {first[0].name} does not grow with the image, so nothing tells how maps grow; "
            "use stride=keep"
        )
    factors_of: dict[str, set[Pair]] = {}
    for step, twin in zip(steps, larger, strict=True):
        if first is not None and _sees_neighbours(step.module) and _is_map(step.input_shape):
            factors_of.setdefault(step.name, set()).add(growth(_gain(*first), _gain(step, twin)))
    for name, factors in factors_of.items():
        if len(factors) > 1:
            raise _shared(way, name)
    return StrideRemoval(way, removed, {name: own for name, (own,) in factors_of.items() if max(own) > 1})


def _refuse_shared(removal: StrideRemoval, outside: set[str]) -> None:
    """Raise for a layer that also runs outside the stage, where it is to stay as it is.

    Args:
        outside: names of the layers that run there.
    """
    for name in (*removal.removed, *removal.dilated):
        if name in outside:
            raise _shared(removal.way, name)


def _shared(way: str, name: str) -> UnsupportedLayerError:
    """One layer, run more than once, cannot have two strides or dilations."""
    return UnsupportedLayerError(
        f"stride={way}: {name}: runs more than once, on maps that do not all grow alike (give each call a layer of its "
        "own); use stride=keep"
    )


def _check_one_resolution(before: list[Step], after: list[Step], names: tuple[str, ...], way: Way) -> None:
    """Raise unless every selected convolution now works at one resolution, larger than or equal to its old one."""
    sizes = {step.name: step.output_shape for step in after}
    old = {step.name: step.output_shape for step in before}
    final = {sizes[name][-2:] for name in names if sizes[name]}  # type: ignore[index]
    if len(final) != 1 or any(sizes[n][-1] < old[n][-1] for n in names):  # type: ignore[index]
        raise UnsupportedLayerError(
            f"stride={way}: the stage still works at several resolutions ({sorted(final)}); use stride=keep"
        )


def _stride(layer: nn.Module) -> int | Pair:
    """A layer's stride; that of a pool which states none is its kernel's size, as in `nn.LPPool2d`."""
    own = getattr(layer, "stride", 1)
    found: int | Pair = getattr(layer, "kernel_size", 1) if own is None else own
    return found


def _sees_neighbours(layer: nn.Module) -> bool:
    """Whether a layer has a kernel of more than one pixel."""
    return max(pair(getattr(layer, "kernel_size", getattr(layer, "filt_size", 1)))) > 1


def _is_map(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and len(shape) == 4


def _gain(step: Step, larger: Step) -> Pair:
    """By how many pixels a layer's input grows with the image, which padding or the want of it has no part in."""
    before, after = step.input_shape, larger.input_shape
    assert before is not None and after is not None  # noqa: S101 - both are maps
    return after[-2] - before[-2], after[-1] - before[-1]


def growth(first: Pair, own: Pair) -> Pair:
    """How much larger a layer's map will be, along rows and columns: as large as the first of the stage."""
    down, across = (max(1, round(new / old)) if old else 1 for new, old in zip(first, own, strict=True))
    return down, across
