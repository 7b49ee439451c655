"""Trace a model: the order of its layers, their shapes, and its FLOPs, by one forward pass on the meta device.

The pass runs on a copy of the model without data, and skips what keeps shapes, so it costs milliseconds and no memory
even for the largest models. A model that cannot run there (it reads values, or keeps tensors that are neither
parameters nor buffers) is traced on its own device."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from tcnn.layers.backends.selection import use_backend
from tcnn.layers.base import AttentionLayer
from tcnn.models.checks import refuse_scripted, refuse_without_shapes, unwrapped
from tcnn.models.copying import copied, memo_of
from tcnn.models.running import failure, first_of, size_advice, weights_dtype
from tcnn.models.state import same_start


class Step(NamedTuple):
    """One call of a layer, with input and output shapes."""

    name: str
    module: nn.Module
    input_shape: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None
    rewritten: bool = False
    """Whether the model's forward pass has put another tensor in the place of the layer's weight."""


class Span(NamedTuple):
    """The interval in which a module runs in a forward pass: from its first call to the return from its last."""

    begin: int
    end: int


Found = TypeVar("Found")

_SAME_SHAPE = frozenset(
    (F.relu, torch.relu, F.relu6, F.leaky_relu, F.gelu, F.silu, F.hardswish, torch.sigmoid, F.dropout)
)


def _shape_only(func: Callable[..., Any], x: Tensor, second: Any = None, *_: object) -> Tensor | None:
    """An output of the function's shape without computing it, or None where the function has to say.

    What does not fit its parameters it refuses itself.
    """
    if func in _SAME_SHAPE:
        return x
    if second is None:  # not given, or by its name
        return None
    if func is F.batch_norm and x.shape[1] == len(second):
        return x
    if func is F.layer_norm and x.shape[-len(second) :] == tuple(second):
        return x
    if func is F.linear and x.shape[-1] == second.shape[-1]:
        return x.new_empty((*x.shape[:-1], len(second)))
    return None


class ShapesOnly(TorchFunctionMode):
    """Skips the arithmetic of normalisations, activations and linear layers, whose output shapes are known.

    On the meta device these are decompositions written in Python, and took two thirds of the time of a trace.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        known = _shape_only(func, *args) if args and isinstance(args[0], Tensor) else None
        return func(*args, **(kwargs or {})) if known is None else known


def input_shape(model: nn.Module, input_size: tuple[int, int] | None = None) -> tuple[int, int, int]:
    """Input shape (channels, height, width) of a model; `input_size` overrides the height and width.

    Of a model that does not tell its size it is the one at which it was trained, or converted, else 224×224.
    """
    cfg = getattr(model, "pretrained_cfg", None) or {}
    traits = getattr(model, "_traits", {})
    channels = getattr(model, "in_chans", None) or _image_channels(model)
    report = getattr(model, "conversion_report", None)
    converted_at = None if report is None else report.config.input_size
    record = getattr(model, "training_record", None)
    trained_at = record.get("size") if isinstance(record, dict) else None
    default = traits.get("img_size") or cfg.get("input_size") or trained_at or converted_at or (224, 224)
    height, width = input_size or default[-2:]
    return channels or next(iter(cfg.get("input_size") or (3,))), height, width


def input_settings(model: nn.Module) -> dict[str, Any]:
    """timm's `input_size`, `mean`, `std`, `interpolation`, `crop_pct` and `crop_mode` of a model.

    For a model that was built for images of other channels timm keeps the statistics of three: here they are averaged.
    """
    settings: dict[str, Any] = resolve_model_data_config(unwrapped(model, only_run=True))
    channels, *_ = settings["input_size"] = input_shape(model)
    for name in ("mean", "std"):
        if len(settings[name]) != channels:
            settings[name] = (sum(settings[name]) / len(settings[name]),) * channels
    return settings


def _image_channels(model: nn.Module) -> int | None:
    """Input channels: 3 when any convolution, or attention in its place, takes colour images, else the first one's."""
    channels = [_channels(m) for m in model.modules() if isinstance(m, nn.Conv2d | AttentionLayer)]
    return 3 if 3 in channels else next(iter(channels), None)


def _channels(layer: nn.Conv2d | AttentionLayer) -> int:
    """Its input channels, of a convolution those of its weight: a stem may have been made grey by that alone."""
    weight = layer._parameters.get("weight") if isinstance(layer, nn.Conv2d) else None  # not one that is computed
    return layer.in_channels if weight is None or is_lazy(weight) else weight.shape[1] * layer.groups


def meta_copy(model: nn.Module, but: Iterable[Tensor] = ()) -> nn.Module:
    """A copy of the model on the meta device: same structure, no data, and no data copied meanwhile.

    Args:
        but: parameters and buffers that keep their values.
    """
    memo, kept = memo_of(model), {id(tensor) for tensor in but}
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) in kept:
            continue
        twin = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
    return copied(model, memo)


def trace(model: nn.Module, input_size: tuple[int, int] | None = None) -> list[Step]:
    """Trace every call of a leaf layer in one forward pass, in order; `Step.module` belongs to `model` itself.

    Raises `RequestError` when the model does not run on an image of its own size.
    """
    refuse_scripted(model)
    steps = _forward(model, input_size, _run)
    owners = dict(model.named_modules())
    return [step._replace(module=owners[step.name]) for step in steps]


def spans(model: nn.Module, input_size: tuple[int, int] | None = None) -> dict[str, Span]:
    """The interval of every called module in one forward pass, by name, counted in calls and returns.

    Raises `RequestError` as `trace` does.
    """
    refuse_scripted(model)
    return _forward(model, input_size, _spans)


def check_size(model: nn.Module, input_size: tuple[int, int] | None = None) -> None:
    """Raise `RequestError` if the model does not run on images of (height, width) pixels, as one whose positions are
    learned for another size does not; by default of its own size."""
    _forward(model, input_size, lambda module, image: module(image))


def output_shape(model: nn.Module, input_size: tuple[int, int] | None = None) -> tuple[int, ...] | None:
    """The shape of a model's output for one image, in evaluation mode; None where that is no tensor.

    Raises `RequestError` if it does not run on images of (height, width) pixels, by default of its own size.
    """
    return _forward(model, input_size, lambda module, image: _shape(module(image)))


def output_count(model: nn.Module, input_size: tuple[int, int] | None = None) -> int | None:
    """The classes that a model tells apart: its logits for an image, which may be others than its `num_classes` says.

    Where its output is no logits, (B, classes), that is what it says, or None; 0 for one without a classifier, whose
    output is features. Raises as `output_shape`.
    """
    told, classifier = getattr(model, "num_classes", None), getattr(model, "get_classifier", None)
    if told == 0 and (not callable(classifier) or isinstance(classifier(), nn.Identity)):
        return 0
    shape = output_shape(model, input_size)
    return shape[1] if shape is not None and len(shape) == 2 else None if told is None else int(told)


def _forward(model: nn.Module, input_size: tuple[int, int] | None, look: Callable[[nn.Module, Tensor], Found]) -> Found:
    """The result of `look` on a forward pass of the model, or of a copy without data, in evaluation mode."""
    refuse_without_shapes(model)
    shape = (1, *input_shape(model, input_size))
    try:
        copied = meta_copy(model).eval()
        with torch.device("meta"), ShapesOnly():
            return look(copied, torch.zeros(shape, dtype=weights_dtype(copied)))
    except Exception:  # whatever the meta device cannot do, the model's own device can
        return _forward_in_place(model, shape, look)


def _forward_in_place(model: nn.Module, shape: tuple[int, ...], look: Callable[[nn.Module, Tensor], Found]) -> Found:
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    try:
        with evaluating(model), same_start(model):
            return look(model, torch.zeros(shape, device=reference.device, dtype=reference.dtype))
    except Exception as error:
        raise failure(model, shape[1:], error, size_advice(error, shape[1])) from error


@torch.no_grad()
def _spans(model: nn.Module, image: Tensor) -> dict[str, Span]:
    found: dict[str, Span] = {}
    clock = itertools.count()

    def call(name: str) -> None:
        found.setdefault(name, Span(next(clock), -1))

    def end(name: str) -> None:
        found[name] = found[name]._replace(end=next(clock))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(lambda m, args, name=name: call(name)))
            hooks.enter_context(module.register_forward_hook(lambda m, args, out, name=name: end(name)))
        model(image)
    return found


@torch.no_grad()
def _run(model: nn.Module, image: Tensor) -> list[Step]:
    steps: list[Step] = []

    def record(name: str, module: nn.Module, given: object, output: object) -> None:
        steps.append(Step(name, module, _shape(given), _shape(output)))

    before = {name: _storage(module) for name, module in model.named_modules()}
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Conv2d) or next(module.children(), None) is None:
                hooks.enter_context(
                    module.register_forward_hook(
                        lambda m, args, named, out, name=name: record(name, m, first_of(args, named), out),
                        with_kwargs=True,
                    )
                )
        model(image)
    return [step._replace(rewritten=_storage(step.module) is not before.get(step.name)) for step in steps]


def _storage(layer: nn.Module) -> torch.UntypedStorage | None:
    """Where the numbers of a convolution's weight lie, which is another place once `weight.data` is set."""
    weight = layer._parameters.get("weight") if isinstance(layer, nn.Conv2d) else None
    return None if weight is None or is_lazy(weight) else weight.untyped_storage()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Context that sets evaluation mode; afterwards every module has its previous mode."""
    # A frozen module of TorchScript has no mode.
    modes = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _shape(value: object) -> tuple[int, ...] | None:
    return tuple(value.shape) if isinstance(value, Tensor) else None


def parameter_count(module: nn.Module) -> int:
    """Number of parameters of a module and all that it holds; a shared one counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """FLOPs of one image, 2 × multiply-adds of the reference formula with padding; None where torch cannot count.

    On the meta device: no data, and no time.

    Args:
        model: on the meta device.
        shape: of the image, (channels, height, width).
    """
    counter = FlopCounterMode(display=False)
    try:
        with counter, use_backend("reference"), torch.no_grad(), torch.device("meta"):
            model(torch.zeros(1, *shape))
    except AssertionError:  # it loses track of a parameter that is expanded without gradients, as CaiT's class token
        return None
    return int(counter.get_total_flops())
