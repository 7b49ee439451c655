"""The optimizer: its parameter groups, learning rates and their schedule, and its state when a CNN is converted.

That may be during training: the CNN becomes a T-CNN after some epochs (Transformed CNNs, §5, Table 3). The optimizer
state of a filter (moments, momentum, step) is carried through the same permutation as the filter itself, so the first
update after the conversion is the one that the CNN would have made.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import CosineLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from tcnn.config import ConversionConfig, FinetuneConfig, finetune_settings
from tcnn.conversion.surgery import convert
from tcnn.conversion.timm_tools import SPARED
from tcnn.errors import RequestError, one_line
from tcnn.formatting import some
from tcnn.layers.backends.convolution import proj_of
from tcnn.layers.filters import is_standardised
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms import kinds
from tcnn.models.checks import refuse_prepared, unwrapped

RATED = {
    "gating_param": "gating_lr", "query": "attention_lr", "key": "attention_lr", "value": "value_lr",
    "proj": "output_lr", **dict.fromkeys(kinds.PARAMETERS, "position_lr"),
}  # fmt: skip
"""Parameters of attention layers, and the settings of their learning rates."""
LOOKAHEAD = "lookahead_step"
"""The counter that timm's Lookahead has among its settings."""


def parameter_groups(model: nn.Module, config: FinetuneConfig | None = None, **options: object) -> list[dict[str, Any]]:
    """Make parameter groups for a PyTorch optimizer, with learning rates and weight decay, without frozen ones.

    Settings are those of the fine-tuning, the paper's where nothing else is said: ``parameter_groups(model, lr=1e-3)``.

    The gating parameters λ have a learning rate of their own (0.1 in the paper, §3); strengths and centres, W_qry and
    W_key, W_val and W_out have the common one unless configured otherwise. A filter is the product of the last two,
    and moves faster than a convolution's if both learn at the common rate. λ, α and Δ do not decay, for a decayed gate
    is a decision and a decayed centre is a shifted filter. Nor does W_val, which begins as the identity: decay would
    pull it to 0, not there, and W_out behind it decays as the filter did. All other parameters are divided as timm
    divides them: biases and normalisation do not decay. So a CNN has groups, too, and one that was a T-CNN before it
    was folded to the end.

    Raises `RequestError` for a model with layers that were fused or folded for inference.
    """
    model = unwrapped(model)
    refuse_prepared(model, "train")
    config = finetune_settings(options, config)
    rates = {name: getattr(config, setting) for name, setting in with_own_rate(model).items()}
    own = {name: rate for name, rate in rates.items() if rate is not None}
    layers = [name for name, module in model.named_modules() if isinstance(module, GPSA2d | SelfAttention2d)]
    spared = {f"{layer}.{name}" for layer in layers for name in SPARED}
    spared |= set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()  # type: ignore[operator]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in param_groups_weight_decay(model, config.weight_decay, no_weight_decay_list=spared):
        by_rate: dict[float, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_rate.setdefault(own.get(names[id(parameter)], config.lr), []).append(parameter)
        groups += [{**group, "params": params, "lr": rate} for rate, params in by_rate.items()]
    return groups


def with_own_rate(model: nn.Module) -> dict[str, str]:
    """The parameters that may have a learning rate of their own, by dotted name, and the setting that has it."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, GPSA2d | SelfAttention2d)]
    return {
        f"{layer}.{name}": RATED[name]
        for layer, module in layers
        for name, _ in module.named_parameters(recurse=False)
        if name in RATED
    }


def create_optimizer(model: nn.Module, config: FinetuneConfig) -> Optimizer:
    """Create timm's optimizer of the configured name; raises `RequestError` for an unknown one or nothing to train."""
    groups = parameter_groups(model, config)
    if not groups:
        raise RequestError("nothing to train: no parameter needs a gradient")
    try:
        optimizer = create_optimizer_v2(
            groups, opt=config.opt, lr=config.lr, weight_decay=config.weight_decay, momentum=config.momentum
        )
    except (ValueError, AssertionError, TypeError, ImportError) as error:
        raise RequestError(
            f"opt: {config.opt!r} is no optimizer that timm can make here ({one_line(error)})"
        ) from error
    if getattr(optimizer, "is_second_order", False):
        raise RequestError(f"opt: {config.opt!r} needs second derivatives, which are not computed; choose adamw")
    return optimizer


class Schedule(CosineLRScheduler):  # type: ignore[misc]  # timm has no types there
    """timm's cosine schedule, in which no group ever learns faster than at its own rate: 0 stays 0.

    Each group warms up from the smaller of `warmup_lr` and its rate, and decays to the smaller of `min_lr` and its
    rate; timm's go from and to the same rates in all groups.
    """

    def _get_lr(self, t: int) -> list[float]:
        return [min(rate, own) for rate, own in zip(super()._get_lr(t), self.base_values, strict=True)]


def create_schedule(optimizer: Optimizer, config: FinetuneConfig, steps_per_epoch: int) -> Schedule:
    """Learning rate schedule: linear warm-up, then cosine decay, set by ``schedule.step_update(updates)``.

    It depends only on the number of updates done, so a resumed run needs no state of it.
    """
    schedule = Schedule(
        optimizer, t_initial=config.epochs * steps_per_epoch, lr_min=config.min_lr,
        warmup_t=config.warmup * steps_per_epoch, warmup_lr_init=config.warmup_lr, t_in_epochs=False,
    )  # fmt: skip
    schedule.step_update(0)
    return schedule


def parameter_states(optimizer: Optimizer) -> MutableMapping[Tensor, dict[str, Any]]:
    """An optimizer's state of every parameter, which timm's Lookahead leaves in the optimizer that it wraps."""
    states: MutableMapping[Tensor, dict[str, Any]] = getattr(optimizer, "_base_optimizer", optimizer).state
    return states


def group_counters(optimizer: Optimizer) -> list[dict[str, int | float | Tensor]]:
    """The counters in each parameter group of an optimizer, such as LAMB's steps; neither settings nor rates."""
    settings = {*optimizer.defaults, "initial_lr"} - {LOOKAHEAD}
    return [
        {key: value for key, value in group.items() if key not in settings and isinstance(value, (int, float, Tensor))}
        for group in optimizer.param_groups
    ]


def named_groups(optimizer: Optimizer, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of an optimizer with their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield names[id(parameter)], parameter


@contextmanager
def scaled_content_output(layers: Iterable[GPSA2d], scale: float) -> Iterator[None]:
    """Multiply the steps that an optimizer takes within by `scale`, in the content heads' columns of W_out alone.

    For optimizers whose step is proportional to the learning rate, as AdamW's and SGD's, it is that rate times `scale`,
    weight decay included. A parameter group cannot have it: these columns and the filters are one matrix.

    A content head reads an average of pixels, after a ReLU all of one sign, and its W_out begins at zero. Optimizers
    that take steps of one size, as Adam does, then move all columns together, and the sum that they write by the
    number of channels.
    """
    columns = [] if scale == 1 else [view for layer in layers if (view := content_output(layer)) is not None]
    before = [view.clone() for view in columns]
    yield
    with torch.no_grad():
        for view, old in zip(columns, before, strict=True):
            view.copy_(torch.lerp(old, view, scale))


def content_output(layer: GPSA2d) -> Tensor | None:
    """The content heads' columns of W_out, a view of (C_out, content heads, C_in/G); None without such heads."""
    if not layer.content_heads:
        return None
    return layer.proj.detach().unflatten(1, (layer.heads, -1))[:, -layer.content_heads :]


def convert_in_training(
    model: nn.Module,
    optimizer: Optimizer,
    config: FinetuneConfig,
    conversion: ConversionConfig | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> tuple[nn.Module, Optimizer]:
    """Convert a model in training; returns it with an optimizer that has the state of the previous one.

    Raises what `convert` raises. Query, key, value, gates and positions are new and start without state, and so do
    filters whose state is no image of them, as the sums over rows and columns that Adafactor keeps: `warn` is told.
    """
    converted, report = convert(model, conversion or config.conversion)
    fresh = create_optimizer(converted, config)
    known = dict(model.named_parameters(remove_duplicate=False))  # a tied one goes by another name in either model
    replaced = {layer.name for layer in report.layers}
    afresh = 0
    for name, parameter in converted.named_parameters():
        layer, _, own = name.rpartition(".")
        if layer not in replaced or own == "bias":
            moved = _state(optimizer, known[name])
        elif own == "proj" and not is_standardised(model.get_submodule(layer)):
            # A standardised filter is no linear image of its weight, so moments of the one say nothing of the other.
            state, shape = _state(optimizer, known[f"{layer}.weight"]), known[f"{layer}.weight"].shape
            moved = _permuted(state, shape, parameter)
            afresh += bool(state) and not moved
        else:
            continue
        if moved:
            parameter_states(fresh)[parameter] = moved
    if afresh:
        warn(
            f"{config.opt} keeps sums over the rows and columns of a filter, which W_out does not have: its state of "
            f"{some(afresh, 'filter')} starts afresh"
        )
    for group in fresh.param_groups:  # what LAMB and others count is the same in every group, and counted in each
        group.update(copy.deepcopy(group_counters(optimizer)[0]))
    return converted, fresh


def _state(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    state = parameter_states(optimizer).get(parameter, {})
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def _permuted(state: dict[str, Any], shape: torch.Size, proj: Tensor) -> dict[str, Any]:
    """Optimizer state of a filter, permuted to that of W_out; the columns of content heads, the last, start at zero.

    Empty if a part of it has another shape: an optimizer that finds some of its state expects all of it.
    """
    moved: dict[str, Any] = {}
    for key, value in state.items():
        if not isinstance(value, Tensor) or not value.ndim:
            moved[key] = value
        elif value.shape == shape:
            moved[key] = F.pad(proj_of(value), (0, proj.shape[1] - shape[1:].numel()))
        else:
            return {}
    return moved
