"""Stride removal: the stage runs at stride 1, at the resolution of the stage before, shortcuts included.

``remove`` does it as the paper does (d'Ascoli et al. 2021, §2): what carries a stride is replaced by what timm itself
builds at stride 1. Filters then see a smaller part of the image, and the CNN has to learn anew. ``dilate`` also spreads
the kernels of what runs after it, by as much as the map has grown (à trous): the pixels of the old map, every s-th of
the new one, then are what they were, and those between are the same stage on its input moved by a pixel.

What carries a stride is found in the trace of the stage, and the result is traced again: a stage whose map still
shrinks is refused. So is what would mix the pixels between into those of the old map (`lattice`). The layers that take
those places are in `stride_one`.
"""

import math

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
from tcnn.conversion.carry import copy_with
from tcnn.conversion.lattice import Place, misplaced
from tcnn.conversion.selection import Selection
from tcnn.conversion.stride_one import NONE, StrideRemoval, Way, strideless_layers
from tcnn.errors import RequestError, UnsupportedLayerError, out_of_memory
from tcnn.layers.filters import pair
from tcnn.layers.terms.positions import Pair
from tcnn.models.trace import Step, input_shape, meta_copy, trace

Shape = tuple[int, ...] | None
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
    if way == "remove" or not removed:
        removal = StrideRemoval(way, removed, {})
        after = _without(model, removal, config.input_size)
    else:
        _, *sides = input_shape(model, config.input_size)
        size, first = (sides[0], sides[1]), selection.span.start
        larger = _on_twice_the_size(model, steps, selection.span, size)
        removal = StrideRemoval(way, removed, _dilation(model, steps, larger, selection.span, removed, size))
        after = _without(model, removal, size)
        _check_pixels(model, removal, steps[first:], larger[first:], size)
    _check_one_resolution(steps, after, selection.names, way)
    return removal, after


def _strided(model: nn.Module, stage: list[Step], way: Way) -> tuple[str, ...]:
    """The layers of a stage that have a stride, by name; raises `UnsupportedLayerError` where they are not known."""
    if way == "remove" and not issubclass(kind := family(model), KNOWN_FAMILIES):
        names = ", ".join(sorted(known.__name__ for known in KNOWN_FAMILIES))
        raise UnsupportedLayerError(
            f"stride=remove is known for {names}, not for {kind.__name__}; use stride=keep or dilate"
        )
    removed = tuple(dict.fromkeys(s.name for s in stage if max(pair(_stride(s.module))) > 1))
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


def _without(model: nn.Module, removal: StrideRemoval, size: Pair | None) -> list[Step]:
    """The steps of the model without its stride; raises `UnsupportedLayerError` where it does not run without."""
    layers = strideless_layers(model, removal)
    try:
        return trace(copy_with(meta_copy(model), layers), size)
    except Exception as error:
        raise UnsupportedLayerError(
            f"stride={removal.way}: {type(model).__name__} does not run without its last stride; use stride=keep"
        ) from error


def _on_twice_the_size(model: nn.Module, steps: list[Step], span: range, size: Pair) -> list[Step]:
    """The steps on an image of twice the height and width, from which dilation sees how maps grow.

    Args:
        steps: on an image of this size. span: those of the stage.

    Raises: `UnsupportedLayerError` where they do not tell that.
    """
    try:
        larger = trace(model, _doubled(size))
    except RequestError as error:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs at one size only, so nothing tells how its maps grow; use "
            "stride=keep or remove"
        ) from error
    if [step.name for step in steps] != [step.name for step in larger]:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs other layers on a larger image, so nothing tells how its maps "
            "grow; use stride=keep or remove"
        )
    both = ((steps[i], larger[i]) for i in span)
    first = next((two for two in both if all(_is_map(step.input_shape) for step in two)), None)
    if first is not None and not all(_gain(first[0].input_shape, first[1].input_shape)):
        raise UnsupportedLayerError(
            f"stride=dilate: the map at {first[0].name} does not grow with the image, so nothing tells how maps grow; "
            "use stride=keep"
        )
    return larger


def _dilation(
    model: nn.Module, steps: list[Step], larger: list[Step], span: range, removed: tuple[str, ...], size: Pair
) -> dict[str, Pair]:
    """By which factors kernels are spread, by layer: as much as the map that it gets has grown without the strides.

    Args:
        steps, larger: of the whole model, on an image of this size and of twice that. span: those of the stage.

    Raises: `UnsupportedLayerError` for a layer that would need two factors.
    """
    bare = StrideRemoval("dilate", removed, {})
    before = _gains(steps, larger)
    after = _gains(*(_without(model, bare, sides) for sides in (size, _doubled(size))))
    found: dict[str, Pair] = {}
    for name in dict.fromkeys(step.name for step in steps[span.start :] if _sees_neighbours(step.module)):
        # A pool may have become a margin and a pool.
        grown = after.get(name) or after.get(f"{name}.0", [])
        factors = {growth(*both) for both in zip(grown, before[name], strict=False)}
        if len(factors) > 1:
            raise _shared("dilate", name)
        found[name] = next(iter(factors), (1, 1))
    return {name: own for name, own in found.items() if max(own) > 1}


def _gains(steps: list[Step], larger: list[Step]) -> dict[str, list[Pair]]:
    """By how many pixels the maps that every layer gets grow with the image, by name, in the order of its calls.

    Padding, or the want of it, has no part in that. What is no map does not grow.
    """
    found: dict[str, list[Pair]] = {}
    for step, twin in zip(steps, larger, strict=False):
        found.setdefault(step.name, []).append(_gain(step.input_shape, twin.input_shape))
    return found


def _grows_again(steps: list[Step], larger: list[Step]) -> Place | None:
    """The first layer whose output grows faster with the image than its input: what cannot be dilated, by shapes."""
    for step, twin in zip(steps, larger, strict=True):
        given, made = (_gain(*shapes) for shapes in zip(step[2:], twin[2:], strict=True))
        if all(given) and any(b > a for a, b in zip(given, made, strict=True)):
            return Place(step.name, input=False)
    return None


def _check_pixels(model: nn.Module, removal: StrideRemoval, steps: list[Step], larger: list[Step], size: Pair) -> None:
    """Raise `UnsupportedLayerError` unless the pixels of the old map are what they were, from the stage on.

    Args:
        steps, larger: from the stage on, on an image of this size and of twice that.
    """
    source = meta_copy(model).eval()
    dilated = copy_with(source, strideless_layers(source, removal))
    strides = {pair(_stride(model.get_submodule(name))) for name in removal.removed}
    factors = {*strides, *removal.dilated.values()}
    channels = input_shape(model)[0]
    for sides in dict.fromkeys((_smaller(steps, size), size)):
        try:
            found = misplaced(source, dilated, factors, (channels, *sides))
            break
        except Exception as error:  # what a model does not do with noise, in float32 or on the CPU
            if out_of_memory(error):
                raise
    else:
        found = _grows_again(steps, larger)
    if found is not None:
        raise UnsupportedLayerError(f"stride=dilate: {_told(model, found)}; use stride=keep")


def _told(model: nn.Module, place: Place) -> str:
    """What is said of a place where the pixels of the old map are not what they were."""
    mixed = "mixes pixels between those of the old map into these"
    if place.name and not place.input:
        return f"{place.name}: {type(model.get_submodule(place.name)).__name__} {mixed}"
    where = f"before {place.name}" if place.name else "at the end"
    return f"a function {where}, such as F.interpolate or F.avg_pool2d, {mixed} (make a pool a module)"


def _smaller(steps: list[Step], size: Pair) -> Pair:
    """A size of images at which the smallest of these maps has about four pixels a side."""
    maps = [step.input_shape for step in steps if step.input_shape is not None and len(step.input_shape) == 4]
    smallest = min((side for shape in maps for side in shape[-2:] if side > 1), default=1)
    height, width = (min(side, 32 * math.ceil(4 * side / smallest / 32)) for side in size)
    return height, width


def _doubled(size: Pair) -> Pair:
    return 2 * size[0], 2 * size[1]


def _refuse_outside(way: Way, removed: tuple[str, ...], outside: set[str]) -> None:
    """Raise for a layer that is to lose its stride and also runs outside the stage, where it is to keep it.

    Args:
        outside: names of the layers that run there.
    """
    for name in removed:
        if name in outside:
            raise _shared(way, name)


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


def _is_map(shape: Shape) -> bool:
    return shape is not None and len(shape) == 4


def _gain(shape: Shape, larger: Shape) -> Pair:
    """By how many rows and columns a map grows with the image."""
    if shape is None or larger is None or not (len(shape) == len(larger) == 4):
        return 0, 0
    return larger[-2] - shape[-2], larger[-1] - shape[-1]


def growth(new: Pair, old: Pair) -> Pair:
    """How much larger a layer's map will be, along rows and columns, from what it gains by a larger image."""
    down, across = (max(1, round(n / o)) if o else 1 for n, o in zip(new, old, strict=True))
    return down, across
