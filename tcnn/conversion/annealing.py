"""The temperature schedule of any training loop: τ is raised from its value at conversion to 1, or another end.

τ must not move within a training step. Two forward passes may share a backward pass (two views of an image, a pair, a
loss summed over batches), and what gradient checkpointing computes anew must be what was computed first. So a forward
pass begins a step only if no earlier one still waits for its backward pass, and none that runs within a backward pass
does. A forward pass begins with the model's own call, or, where a part is called (`forward_features`), with the first
layer that gradients reach. One that computes no values, or of which a program is made, is none of a training loop.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.utils._pytree import tree_leaves

from tcnn.errors import RequestError, shorten
from tcnn.layers.base import TEMPERATURES, AttentionLayer
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.execution import (
    is_exporting,
    is_recorded,
    is_transformed,
    is_without_values,
    needs_gradients,
)
from tcnn.models.checks import not_converted, refuse_inference_tensors, refuse_prepared, unwrapped
from tcnn.models.running import gpsa_layers

OUTSIDE = "tcnn.anneal counts steps outside of the graph, which would be compiled anew at every step: no fullgraph=True"


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

    A step is a forward pass in training mode with gradients, of the model or of a part (`forward_features`); those that
    share one backward pass are one step, and a pass that gradient checkpointing repeats is none. How far it has come is
    read off τ itself, at the first step and after `load_state_dict`: a state dict has no more entries than without, and
    training resumes where it was. A second call takes the place of the first, and reads τ anew.
    `timm.create_model("t_…", anneal_steps=N, anneal_end=τ)` does the same.

    Args:
        model: a T-CNN. steps: 1 or more.
        end: τ of gates and positions after them. 1, the paper's, blurs every filter; at 0.25 a pretrained network keeps
            what it knows, and its gates have gradients.

    Raises `RequestError` for anything but a number of steps from 1 on, a model that is no T-CNN (any more, as one that
    was fused or folded), or one that starts at τ = `end` or above.
    """
    model = unwrapped(model)
    count: Any = steps  # as NumPy has numbers, too, which a type checker does not take for any
    limit: Any = end
    if isinstance(count, bool) or not (isinstance(count, Integral) and int(count) >= 1):
        raise RequestError(f"anneal: expected a number of training steps, at least 1, got {steps!r}")
    report: Any = getattr(model, "conversion_report", None)
    if report is None:
        raise not_converted(model, "anneal: ")
    start: float = report.config.temperature
    if not (isinstance(limit, Real) and 0 < float(limit) < math.inf):
        raise RequestError(f"anneal: expected an end above 0, got {shorten(repr(end), 60)}")
    refuse_prepared(model, "anneal")
    if not gpsa_layers(model):  # its report is of a CNN, or of the T-CNN that was folded into one
        raise RequestError(
            f"anneal: {type(model).__name__} has no GPSA layer, so no τ to raise; if it was folded to a CNN, anneal "
            "the model that it was folded from, else call tcnn.convert first"
        )
    refuse_inference_tensors(model, "anneal")
    if start >= end:
        raise RequestError(f"anneal: expected an end above the {start:.3g} at which the model starts, got {end:g}")
    release(model)
    annealing = Annealing(start, int(steps), float(end))
    model.register_forward_pre_hook(annealing)
    model.register_forward_hook(annealing.passed)
    model.register_load_state_dict_post_hook(annealing.look_again)
    annealing.take(gpsa_layers(model).values())


def release(model: nn.Module) -> bool:
    """Remove the hooks of `anneal`, for a loop that sets τ itself; returns whether there were any."""
    found = False
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        own = [key for key, hook in hooks.items() if isinstance(getattr(hook, "__self__", hook), Annealing)]
        for key in own:
            del hooks[key]
        found |= bool(own)
    for layer in gpsa_layers(model).values():
        layer.annealing = None
    return found


class Awaited:
    """A forward pass whose outputs wait for their backward pass; they hold the only reference to it."""


class Annealing:
    """The forward pre-hook that sets τ of every layer before a training step; it counts on the CPU, without a sync.

    Args:
        start: τ at conversion. steps: in how many steps it becomes `end`.
    """

    def __init__(self, start: float, steps: int, end: float) -> None:
        self.start, self.steps, self.end = start, steps, end
        self.done: int | None = None
        """Steps so far; None until τ was read."""
        self.counted = False
        """Whether the last pass had gradients, so that one that repeats it is of a step that was counted."""
        self.due = False
        """Whether a step was trained that was not counted: the first pass of reentrant checkpointing has no gradients,
        and is told from an evaluation only when it is repeated. It is counted before the next pass."""
        self.layers: WeakSet[AttentionLayer] = WeakSet()
        """The layers of the model; of a copy, those that have been called."""
        self.first: weakref.ref[nn.Module] | None = None
        """With which module's call the step began; None when that of the model, or its backward pass, is over."""
        self.awaited: WeakSet[Awaited] = WeakSet()
        """The passes of the current step whose backward pass is still to come."""
        self.version = 0
        """How often the parameters had been written when the step began."""

    def take(self, layers: Iterable[AttentionLayer]) -> None:
        """Count for layers of the model; one that was copied from another of them has a count of its own until then."""
        for layer in layers:
            if isinstance(layer, GPSA2d):  # no part of it is folded
                layer.annealing = self
            self.layers.add(layer)

    def __call__(self, model: nn.Module, args: Any) -> None:
        if model.training and self.done != self.steps and not is_exporting():
            self._begin(model)

    def passed(self, model: nn.Module, args: Any, output: Any) -> None:
        """The forward hook: from now on a backward pass is awaited."""
        if model.training and self.done != self.steps and torch.is_grad_enabled() and not is_exporting():
            self._passed(output)

    def entered(self, layer: AttentionLayer, x: Tensor) -> bool:
        """Before the forward pass of a layer; returns whether it began the step, so that its output is awaited."""
        if not layer.training or self.done == self.steps or not isinstance(x, Tensor):
            return False
        if is_transformed() or is_without_values(x):
            return False
        first, known = self.first and self.first(), layer in self.layers
        self.layers.add(layer)
        graded = needs_gradients((x, *layer.parameters()))
        if (first is None or first is layer) and graded == torch.is_grad_enabled():
            self._begin(layer)
        elif not known and self.done and not _is_backward():
            self._set([layer])
        return graded and self.first is not None and self.first() is layer

    def left(self, output: Tensor) -> None:
        """After the forward pass of the layer with which the step began."""
        self._await(output)

    @torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
    def _begin(self, module: nn.Module) -> None:
        """Before a forward pass of the model, or of a layer, in training: begin a step, if it is the first of one."""
        graded = torch.is_grad_enabled()
        if _is_backward():  # which repeats a forward pass
            self.due |= graded and not self.counted
            return
        layers = list(self.layers) if isinstance(module, AttentionLayer) else _layers(module)
        if is_recorded() or is_without_values(*_temperatures(layers)):
            return
        if not isinstance(module, AttentionLayer):
            self.take(layers)
        version = sum(parameter._version for layer in layers for parameter in layer.parameters())
        same = bool(self.awaited) and version == self.version
        self.counted = graded or same
        if self.due or (graded and not same):
            self.due, self.version = False, version
            self.first = weakref.ref(module) if graded else None
            self.awaited.clear()
            self._advance(layers)

    @torch.compiler.disable(reason=OUTSIDE)  # type: ignore[untyped-decorator]
    def _passed(self, output: Any) -> None:
        if not (_is_backward() or is_recorded() or is_without_values(*_tensors(output))):
            self.first = None  # with whatever is called next, unless this pass is awaited then
            self._await(output)

    def _await(self, output: Any) -> None:
        if _is_backward():
            return
        nodes = {node for leaf in _tensors(output) if (node := leaf.grad_fn) is not None}
        if nodes:
            awaited = Awaited()
            self.awaited.add(awaited)
            arrived = self._arrival(awaited)
            for node in nodes:
                node.register_prehook(arrived)

    def _arrival(self, awaited: Awaited) -> Callable[..., None]:
        """The hook of the outputs' graph. It alone keeps `awaited`, which is gone with a graph that is thrown away."""

        def arrived(*_: Any, awaited: Awaited = awaited) -> None:
            if awaited in self.awaited:  # and of no step before
                self.awaited.clear()  # of two passes the loss may use one
                self.first = None

        return arrived

    def _advance(self, layers: Sequence[AttentionLayer]) -> None:
        if self.done is None:
            taus = _temperatures(layers)
            with torch._C._DisableFuncTorch():
                tau = float(_beneath(taus[0]).flatten()[0]) if taus else self.end
            self.done = position(tau, self.start, self.steps, self.end)
        if self.done < self.steps:
            self.done += 1
            self._set(layers)

    def _set(self, layers: Sequence[AttentionLayer]) -> None:
        """Set τ of layers to that of the current step."""
        assert self.done  # noqa: S101 - a step has begun
        tau = temperature(self.done - 1, self.start, self.steps, self.end)
        with torch._C._DisableFuncTorch():
            for held in _temperatures(layers):
                _beneath(held).fill_(tau)

    def look_again(self, model: nn.Module, keys: Any) -> None:
        """Read τ anew after a state dict was loaded."""
        self.done = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the layers and the passes under way, which are of this model and not of its copy."""
        return {key: value for key, value in vars(self).items() if key not in ("layers", "first", "awaited")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, layers=WeakSet(), first=None, awaited=WeakSet())


def _is_backward() -> bool:
    """Whether a backward pass is under way."""
    return torch._C._current_graph_task_id() != -1


def _layers(model: nn.Module) -> list[AttentionLayer]:
    return [layer for layer in model.modules() if isinstance(layer, AttentionLayer)]


def _temperatures(layers: Sequence[AttentionLayer]) -> list[Tensor]:
    return [getattr(layer, name) for layer in layers if layer.gating_param is not None for name in TEMPERATURES]


def _beneath(tensor: Tensor) -> Tensor:
    """The tensor that lives on when transforms of `torch.func`, which have wrapped it, are over."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of a model's output, whatever it is made of; those of a container that PyTorch does not know, too."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif hasattr(leaf, "__dict__"):  # a dataclass, as `transformers` has it
            yield from (one for one in tree_leaves(vars(leaf)) if isinstance(one, Tensor))
