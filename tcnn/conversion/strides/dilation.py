"""Dilation (à trous): kernels behind a removed stride are spread by as much as the map has grown.

The pixels of the old map, every s-th of the new one, then are what they were, and those between are the same stage on
its input moved by a pixel. By how much maps grow is seen from a trace on an image of twice the size. What would mix the
pixels between into those of the old map is refused (`lattice`).
"""

import math

from torch import nn

from tcnn.conversion.carry import copy_with
from tcnn.conversion.strides.lattice import Place, misplaced
from tcnn.conversion.strides.layers import StrideRemoval, shared, steps_without, stride_of, strideless_layers
from tcnn.errors import RequestError, UnsupportedLayerError, out_of_memory
from tcnn.layers.filters import pair
from tcnn.layers.terms.positions import Pair
from tcnn.models.trace import Step, input_shape, meta_copy, trace

Shape = tuple[int, ...] | None


def dilate(
    model: nn.Module, steps: list[Step], span: range, removed: tuple[str, ...], size: Pair
) -> tuple[StrideRemoval, list[Step]]:
    """Decide what is dilated when these layers lose their stride; the model is left as it is.

    Args:
        steps: of the model, on an image of this size (height, width). span: those of the stage.

    Returns: what becomes of which layer, and the steps of the model after that, on an image of the same size.

    Raises: `UnsupportedLayerError` where dilation would not keep the pixels of the old map.
    """
    larger = _on_twice_the_size(model, steps, span, size)
    bare, grown = _that_runs(model, StrideRemoval("dilate", removed, {}), size)
    grown_larger = steps_without(model, bare, _doubled(size))
    removal = bare._replace(dilated=_dilation(steps[span.start :], _gains(steps, larger), _gains(grown, grown_larger)))
    after = steps_without(model, removal, size)
    _check_pixels(model, removal, steps[span.start :], larger[span.start :], size)
    return removal, after


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
            "stride=keep"
        ) from error
    if [step.name for step in steps] != [step.name for step in larger]:
        raise UnsupportedLayerError(
            f"stride=dilate: {type(model).__name__} runs other layers on a larger image, so nothing tells how its maps "
            "grow; use stride=keep"
        )
    both = ((steps[i], larger[i]) for i in span)
    first = next((two for two in both if all(_is_map(step.input_shape) for step in two)), None)
    if first is not None and not all(_gain(first[0].input_shape, first[1].input_shape)):
        raise UnsupportedLayerError(
            f"stride=dilate: the map at {first[0].name} does not grow with the image, so nothing tells how maps grow; "
            "use stride=keep"
        )
    return larger


def _that_runs(model: nn.Module, bare: StrideRemoval, size: Pair) -> tuple[StrideRemoval, list[Step]]:
    """With pools whose maps are a window smaller, or if these do not fit what is beside them, s times the old ones.

    Returns: the removal, and the steps of the model without the strides.
    """
    try:
        return bare, steps_without(model, bare, size)
    except UnsupportedLayerError as error:
        whole = bare._replace(whole_windows=True)
        try:
            return whole, steps_without(model, whole, size)
        except UnsupportedLayerError:
            raise error from None


def _dilation(steps: list[Step], before: dict[str, list[Pair]], after: dict[str, list[Pair]]) -> dict[str, Pair]:
    """By which factors kernels are spread, by layer: as much as the map that it gets has grown without the strides.

    Args:
        steps: from the stage on.
        before, after: by how much maps grow with the image (`_gains`), with the strides and without.

    Raises: `UnsupportedLayerError` for a layer that would need two factors.
    """
    found: dict[str, Pair] = {}
    for name in dict.fromkeys(step.name for step in steps if _sees_neighbours(step.module)):
        # A pool may have become a margin and a pool.
        grown = after.get(name) or after.get(f"{name}.0", [])
        factors = {growth(*both) for both in zip(grown, before[name], strict=False)}
        if len(factors) > 1:
            raise shared("dilate", name)
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
        given, made = _gain(step.input_shape, twin.input_shape), _gain(step.output_shape, twin.output_shape)
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
    strides = {pair(stride_of(model.get_submodule(name))) for name in removal.removed}
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
    return (
        f"a function {where}, such as F.interpolate, F.avg_pool2d or a cut into patches, {mixed} (make a pool a module)"
    )


def _smaller(steps: list[Step], size: Pair) -> Pair:
    """A size of images at which the smallest of these maps has about four pixels a side."""
    maps = [step.input_shape for step in steps if step.input_shape is not None and len(step.input_shape) == 4]
    smallest = min((side for shape in maps for side in shape[-2:] if side > 1), default=1)
    height, width = (min(side, 32 * math.ceil(4 * side / smallest / 32)) for side in size)
    return height, width


def _doubled(size: Pair) -> Pair:
    return 2 * size[0], 2 * size[1]


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
