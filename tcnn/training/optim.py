"""Parameter groups, optimizer and schedules: who learns how fast, and when."""

from collections.abc import Iterator
from typing import Any

from timm.optim import create_optimizer_v2, param_groups_weight_decay
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError, one_line
from tcnn.layers.gpsa import GPSA2d


def gpsa_layers(model: nn.Module) -> dict[str, GPSA2d]:
    """The GPSA layers of a model by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, GPSA2d)}


def parameter_groups(model: nn.Module, config: FinetuneConfig) -> list[dict[str, Any]]:
    """Groups for a PyTorch optimizer; parameters that need no gradient are in none.

    The gating parameters λ learn at a rate of their own (0.1 in the paper, §3), strengths and centres at the common
    one unless told otherwise; none of them decays, for a decayed gate is a decision and a decayed centre is a shifted
    filter. The rest is divided as timm divides it: biases and normalisation do not decay.
    """
    layers = gpsa_layers(model)
    gates = [f"{name}.gating_param" for name in layers]
    positions = [f"{name}.{own}" for name in layers for own in ("locality_raw", "attention_centers")]
    ids = {id(p): name for name, p in model.named_parameters() if name in {*gates, *positions}}
    listed: set[str] = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()  # type: ignore[operator]
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) not in ids], "lr": config.lr}
        for group in param_groups_weight_decay(model, config.weight_decay, no_weight_decay_list=listed)
    ]
    named = dict(model.named_parameters())
    position_lr = config.lr if config.position_lr is None else config.position_lr
    for names, lr in ((positions, position_lr), (gates, config.gating_lr)):
        params = [named[name] for name in names if named[name].requires_grad]
        groups.append({"params": params, "lr": lr, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def create_optimizer(model: nn.Module, config: FinetuneConfig) -> Optimizer:
    """timm's optimizer of the configured name; raises `RequestError` for an unknown one or nothing to train."""
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


def create_schedule(optimizer: Optimizer, config: FinetuneConfig, steps_per_epoch: int) -> Scheduler:
    """Linear warm-up, then cosine decay, by the update: ``schedule.step_update(updates)`` sets all learning rates.

    It depends on nothing but the number of updates done, so it needs no state of its own when a run is resumed.
    """
    schedule, _ = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=config.epochs, warmup_epochs=config.warmup_epochs,
        warmup_lr=config.warmup_lr, min_lr=config.min_lr, step_on_epochs=False, updates_per_epoch=steps_per_epoch,
    )  # fmt: skip
    assert schedule is not None  # noqa: S101 - only the schedule "none" is none
    schedule.step_update(0)
    return schedule


def group_counters(optimizer: Optimizer) -> list[dict[str, int | float | Tensor]]:
    """What an optimizer counts in each of its groups, as LAMB counts its steps: neither its settings nor the rates."""
    settings = {*optimizer.defaults, "params", "lr", "initial_lr", "weight_decay"}
    return [
        {key: value for key, value in group.items() if key not in settings and isinstance(value, (int, float, Tensor))}
        for group in optimizer.param_groups
    ]


def named_groups(optimizer: Optimizer, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that an optimizer holds, by their names in the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield names[id(parameter)], parameter
