"""The temperature schedule of any training loop: a hook raises τ from its value at conversion to 1, or another end."""

import math
from typing import Any

import torch
from torch import nn

from tcnn.errors import RequestError, shorten
from tcnn.layers.base import TEMPERATURES, AttentionLayer
from tcnn.models.checks import refuse_inference_tensors, unwrapped


def temperature(update: int, start: float, annealing: int, end: float = 1.0) -> float:
    """τ of the given update (from 0): log-linear from `start`, reached before the first, to `end` after `annealing`.

    Equal steps in log τ halve the sharpness of every softmax equally often, so no update sees a cliff.
    """
    done = min(1.0, (update + 1) / annealing) if annealing > 0 else 1.0
    return start ** (1 - done) * end**done


def position(tau: float, start: float, annealing: int, end: float = 1.0) -> int:
    """The number of updates after which `temperature` has risen from `start` to τ: its inverse."""
    return round(annealing * math.log(min(tau, end) / start) / math.log(end / start))


def anneal(model: nn.Module, steps: int, end: float = 1.0) -> None:
    """Make a converted model raise its own τ, evenly in log τ, over this many steps of any training loop.

    A step is a forward pass in training mode with gradients. How far it has come is read off τ itself, which is part of
    the state: a state dict has no more entries than without, and training resumes where it was. A second call takes the
    place of the first. `timm.create_model("t_…", anneal_steps=N, anneal_end=τ)` does the same.

    Args:
        model: a T-CNN. steps: 1 or more.
        end: τ of gates and positions after them. 1, the paper's, blurs every filter; at 0.25 a pretrained network keeps
            what it knows, and its gates have gradients.

    Raises `RequestError` for anything but a number of steps from 1 on, a model that is no T-CNN, or one that starts at
    τ = `end` or above.
    """
    model = unwrapped(model)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise RequestError(f"anneal: expected a number of training steps, at least 1, got {steps!r}")
    report: Any = getattr(model, "conversion_report", None)
    if report is None:
        raise RequestError(f"anneal: {type(model).__name__} was not converted by tcnn; call tcnn.convert first")
    start: float = report.config.temperature
    if not (isinstance(end, int | float) and 0 < end < math.inf):
        raise RequestError(f"anneal: expected an end above 0, got {shorten(repr(end), 60)}")
    refuse_inference_tensors(model, "anneal")
    if start >= end:
        raise RequestError(f"anneal: expected an end above the {start:.3g} at which the model starts, got {end:g}")
    release(model)
    annealing = Annealing(start, steps, end)
    model.register_forward_pre_hook(annealing)
    model.register_load_state_dict_post_hook(annealing.look_again)


def release(model: nn.Module) -> bool:
    """Remove the hook of `anneal`, for a loop that sets τ itself; returns whether there was one."""
    hooks = [key for key, hook in model._forward_pre_hooks.items() if isinstance(hook, Annealing)]
    for key in hooks:
        del model._forward_pre_hooks[key]
    return bool(hooks)


class Annealing:
    """The forward pre-hook that sets τ of every layer before a training step; it counts on the CPU, without a sync.

    Args:
        start: τ at conversion. steps: in how many steps it becomes `end`.
    """

    def __init__(self, start: float, steps: int, end: float) -> None:
        self.start, self.steps, self.end = start, steps, end
        self.done: int | None = None
        """Steps so far; None until τ was read."""

    def __call__(self, model: nn.Module, args: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self._advance(model)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the count would be compiled in, anew at every step
    def _advance(self, model: nn.Module) -> None:
        if self.done == self.steps:
            return
        layers = [layer for layer in model.modules() if isinstance(layer, AttentionLayer)]
        taus = [getattr(layer, name) for layer in layers if layer.gating_param is not None for name in TEMPERATURES]
        if self.done is None:
            self.done = position(float(taus[0]), self.start, self.steps, self.end) if taus else self.steps
        if self.done < self.steps:
            for tau in taus:
                tau.fill_(temperature(self.done, self.start, self.steps, self.end))
            self.done += 1

    def look_again(self, model: nn.Module, keys: Any) -> None:
        """Read τ anew after a state dict was loaded."""
        self.done = None
