"""Convolutions and pools at stride 1, or with a dilated kernel, for a stage that loses its stride.

Each shares its weights with the layer that it replaces. Which layers need one is decided in `removal` and `dilation`.
"""

from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal, NamedTuple

from timm.layers import BlurPool2d
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.conversion.carry import copy_with
from tcnn.errors import RequestError, UnsupportedLayerError, one_line, shorten
from tcnn.layers.filters import padding_of, pair, unknown
from tcnn.layers.terms.positions import Pair
from tcnn.models.trace import Step, meta_copy, trace

Way = Literal["remove", "dilate"]
"""How a stage loses its stride: as in the paper, or à trous (see `dilation`)."""


class StrideRemoval(NamedTuple):
    """Which layers lose their stride, and which are dilated for it, by dotted name."""

    way: Way | Literal["keep"]
    removed: tuple[str, ...]
    """Layers that run at stride 1 from now on."""
    dilated: Mapping[str, Pair]
    """The factors, along rows and columns, by which a layer's kernel is spread."""
    whole_windows: bool = False
    """Whether a pool's map becomes s times the old one (`WholeWindows`), not a window smaller."""


NONE = StrideRemoval("keep", (), {})
"""Every layer keeps its stride."""


def strideless_layers(model: nn.Module, removal: StrideRemoval) -> dict[str, nn.Module]:
    """The layers that a stride removal puts into the model, by the dotted name of those that they replace.

    None for a model that has lost its stride already: it would be dilated twice.

    Raises `UnsupportedLayerError` for a layer whose stride cannot be removed, or whose kernel cannot be dilated, and
    for a model without it.
    """
    way, modules = removal.way, dict(model.named_modules())
    if way == "keep" or (removal.removed and all(_is_at_stride_one(modules.get(name)) for name in removal.removed)):
        return {}
    layers: dict[str, nn.Module] = {}
    for name in dict.fromkeys((*removal.removed, *removal.dilated)):
        layer = modules.get(name)
        if layer is None:
            raise UnsupportedLayerError(f"stride={way}: expected a layer {name} in {type(model).__name__}, found none")
        if name in removal.dilated:
            layer = _dilated(name, layer, removal.dilated[name])
        if name in removal.removed:
            layer = _at_stride_one(name, layer, way, removal.whole_windows)
        layers[name] = layer
    return layers


def steps_without(model: nn.Module, removal: StrideRemoval, size: Pair | None) -> list[Step]:
    """The steps of the model without its stride; raises `UnsupportedLayerError` where it does not run without."""
    layers = strideless_layers(model, removal)
    try:
        return _steps_of(copy_with(meta_copy(model), layers), removal.way, size)
    except UnsupportedLayerError:
        try:
            trace(meta_copy(model), size)
        except RequestError:  # it reads values, with its stride as well
            return _steps_of(copy_with(model, layers), removal.way, size)
        raise


def _steps_of(bare: nn.Module, way: str, size: Pair | None) -> list[Step]:
    """`steps_without`, of a copy that has lost its stride."""
    try:
        return trace(bare, size)
    except Exception as error:
        where = _failing(bare, size)
        raise UnsupportedLayerError(
            f"stride={way}: {where and f'{where}: '}{type(bare.get_submodule(where)).__name__} does not run "
            f"on maps without that stride ({shorten(one_line(error.__cause__ or error), 240)}); use stride=keep"
        ) from error


def _failing(model: nn.Module, size: Pair | None) -> str:
    """The name of the innermost module that does not run to its end; empty for the model itself."""
    running: list[str] = []

    def begin(name: str) -> None:
        running.append(name)

    def end() -> None:
        running.pop()

    with ExitStack() as hooks, suppress(Exception):  # layers at stride 1 share their hooks with the source's
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda m, args, name=name: begin(name)))
            hooks.enter_context(module.register_forward_hook(lambda m, args, out: end()))
        trace(model, size)
    return running[-1] if running else ""


def shared(way: str, name: str) -> UnsupportedLayerError:
    """One layer, run more than once, cannot have two strides or dilations."""
    return UnsupportedLayerError(
        f"stride={way}: {name}: runs more than once, on maps that do not all grow alike (give each call a layer of its "
        "own); use stride=keep"
    )


def stride_of(layer: nn.Module) -> int | Pair:
    """A layer's stride; that of a pool which states none is its kernel's size, as in `nn.LPPool2d`."""
    own = getattr(layer, "stride", 1)
    found: int | Pair = getattr(layer, "kernel_size", 1) if own is None else own
    return found


def _is_at_stride_one(layer: nn.Module | None) -> bool:
    """Whether it is a layer without a stride, or what stands for one that had a stride."""
    return isinstance(layer, nn.Identity | nn.Sequential) or getattr(layer, "stride", None) in (1, (1, 1))


def _twin(layer: nn.Module) -> Any:
    """A layer with the same tensors, whose settings may be others; parametrised ones refuse `copy.copy`."""
    twin = type(layer).__new__(type(layer))
    twin.__dict__.update(vars(layer))
    return twin


def _dilated(name: str, layer: nn.Module, factors: Pair) -> nn.Module:
    """The layer with its kernel dilated by these factors, along rows and columns, for a map that grew as much."""
    twin: Any = _twin(layer)
    if isinstance(layer, nn.Conv2d) and not unknown(layer):
        padding = padding_of(layer)
        if padding == "dynamic" or (padding[0], padding[2]) != (padding[1], padding[3]):
            reason = f"padding {padding} cannot be spread evenly"
        elif layer.padding_mode != "zeros" and any(padding):
            reason = f"padding_mode {layer.padding_mode!r} would repeat other pixels"
        else:
            twin.padding = (padding[2] * factors[0], padding[0] * factors[1])
            twin.dilation = (layer.dilation[0] * factors[0], layer.dilation[1] * factors[1])
            return twin
    elif isinstance(layer, nn.MaxPool2d):
        # PyTorch pads a pool by half of its kernel at most, dilated or not.
        if not any(pair(layer.padding)):
            down, across = pair(layer.dilation)
            twin.dilation = (down * factors[0], across * factors[1])
            return twin
        reason = "a padded pool cannot be dilated"
    else:
        why = unknown(layer) if isinstance(layer, nn.Conv2d) else None
        reason = why or f"{type(layer).__name__} cannot be dilated"
    raise UnsupportedLayerError(f"stride=dilate: {name}: {reason}; use stride=keep")


def _at_stride_one(name: str, layer: nn.Module, way: Way, whole: bool) -> nn.Module:
    """The layer at stride 1, in the form that ``remove`` or ``dilate`` asks for; `whole` as for a pool."""
    if isinstance(layer, nn.Conv2d):
        return _convolution_at_stride_one(name, layer, way)
    if isinstance(layer, BlurPool2d):
        if way == "remove":
            return nn.Identity()
        twin: Any = _twin(layer)
        twin.stride = 1
        return twin
    pool = _pool_at_stride_one(layer, way, whole) if isinstance(layer, nn.AvgPool2d | nn.MaxPool2d) else None
    if pool is None:
        raise UnsupportedLayerError(
            f"stride={way}: {name}: no stride-1 form of {type(layer).__name__} is known; use stride=keep"
        )
    return pool


def _convolution_at_stride_one(name: str, conv: nn.Conv2d, way: Way) -> nn.Conv2d:
    """The convolution at stride 1.

    Raises `UnsupportedLayerError` where the map would get another size, or padding would begin elsewhere.
    """
    if reason := unknown(conv):
        raise UnsupportedLayerError(f"stride={way}: {name}: {reason}; use stride=keep")
    padding = padding_of(conv)
    spans = [d * (k - 1) for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    keeps_size = padding == "dynamic" or (padding[0] + padding[1] == spans[1] and padding[2] + padding[3] == spans[0])
    shifts = padding == "dynamic" and max(conv.kernel_size) > 1  # its margins depend on the stride
    if keeps_size if way == "remove" else not shifts:
        twin = _twin(conv)
        twin.stride = (1, 1)
        return twin
    reason = f"a {conv.kernel_size} convolution padded by {padding} would change the size of the map"
    if way == "dilate":
        reason = "TensorFlow's SAME padding would begin elsewhere"
    raise UnsupportedLayerError(f"stride={way}: {name}: {reason}; use stride=keep")


class WholeWindows(nn.Module):
    """What a pool gets whose windows stood side by side, so that its map at stride 1 is s times the old one.

    The rest of a map that s does not divide, which no window covered, is cut off; the last pixels are repeated.
    """

    def __init__(self, stride: Pair) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        down, across = self.stride
        x = x[..., : x.shape[-2] // down * down, : x.shape[-1] // across * across]
        return F.pad(x, (0, across - 1, 0, down - 1), mode="replicate")


def _pool_at_stride_one(pool: nn.AvgPool2d | nn.MaxPool2d, way: Way, whole: bool) -> nn.Module | None:
    """The pool that slides pixel by pixel, an `nn.Identity` where timm builds none, or None if neither is known.

    Args:
        whole: whether the map is to be s times the old one, as a padded convolution's beside it is, and not a window
            smaller, as an unpadded one's.
    """
    kernel, margin, stride = pair(pool.kernel_size), pair(pool.padding), pair(pool.stride)
    twin: Any = _twin(pool)
    centred = all(2 * p == k - 1 for k, p in zip(kernel, margin, strict=True))
    if centred and (way == "remove" or not pool.ceil_mode):  # ResNeSt's avd keeps its 3×3 mean
        twin.stride = 1
        return twin
    if way == "remove":  # ResNet-D's shortcut: timm builds no pool at stride 1
        return nn.Identity() if kernel == stride else None
    # Of a window that the map's end cuts off, the greatest is that of the window with the last pixel repeated, and in a
    # window of two so is the mean.
    spread = max(pair(getattr(pool, "dilation", 1))) > 1  # the last pixel need not be in a window with gaps
    repeats = pool.ceil_mode and not spread and (isinstance(pool, nn.MaxPool2d) or kernel == (2, 2))
    if any(margin) or (pool.ceil_mode and not repeats) or any(s > k for s, k in zip(stride, kernel, strict=True)):
        return None
    twin.stride, twin.ceil_mode = 1, False
    if pool.ceil_mode:
        return nn.Sequential(nn.ReplicationPad2d((0, stride[1] - 1, 0, stride[0] - 1)), twin)
    return nn.Sequential(WholeWindows(stride), twin) if whole and kernel == stride and not spread else twin
