"""`Learner`: model, optimizer, schedules and moving average, rebuilt when the model is converted; `Saver` writes them.

Resume points are written while it trains, the model after every epoch, by the first process alone.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from timm.utils import unwrap_model
from torch import nn
from torch.optim import Optimizer

from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.files import finite
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.models.running import gpsa_layers
from tcnn.training.distributed import Processes
from tcnn.training.recipe import freezing
from tcnn.training.recipe.annealing import (
    Temperatures,
    annealing_schedule,
    held_parameters,
    set_temperatures,
    temperatures_of,
)
from tcnn.training.recipe.freezing import ablate
from tcnn.training.recipe.matching import Matching
from tcnn.training.recipe.objective import create_task
from tcnn.training.recipe.optim import (
    convert_in_training,
    create_optimizer,
    create_schedule,
    parameter_states,
    scaled_content_output,
)
from tcnn.training.runs import resume
from tcnn.training.runs.callbacks import Say
from tcnn.training.runs.recorder import Recorder
from tcnn.training.runs.resume import Position, ResumePoint
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.cuda_graph import GraphedPasses
from tcnn.training.updates.step import MicroBatch, MixedPrecision, Passes, StepLoss, accumulate, update


def _no_toolkit_warning(record: logging.LogRecord) -> bool:
    """Filter out PyTorch's line on a missing CUDA runtime: a compiler for the CPU looks for one and needs none."""
    return not str(record.msg).startswith("No CUDA runtime is found")


class Learner:
    """A model in training with its optimizer, schedules, moving average and timm task (which wraps it for its device).

    It does not know the position of the run: it is told the number of updates done.

    Args:
        model: the initial model; it is moved to the device of `precision`.
        config: in epochs of the training set at hand (`FinetuneConfig.scaled`).
        steps: optimizer steps per epoch.
        teacher: the model to distil, or None.
        trunk: the frozen modules (`freezing`).
    """

    def __init__(
        self,
        model: nn.Module,
        config: FinetuneConfig,
        *,
        steps: int,
        precision: MixedPrecision,
        processes: Processes,
        teacher: nn.Module | None = None,
        trunk: Sequence[str] = (),
    ) -> None:
        self.config, self.steps, self.precision, self.trunk = config, steps, precision, tuple(trunk)
        self._processes, self._teacher = processes, teacher
        model = model.to(precision.device, memory_format=precision.memory_format)  # type: ignore[call-overload]
        self._build(model, create_optimizer(model, config), updates=0, converted_at=None)

    @property
    def model(self) -> nn.Module:
        """The model in training, without wrappers."""
        return unwrap_model(self.task.get_trainable_module())

    @property
    def ema(self) -> nn.Module | None:
        """The moving average of the model, if one is kept."""
        return self.task.get_trainable_module(ema=True).module if self.task.has_ema() else None

    @property
    def result(self) -> nn.Module:
        """The model that is evaluated and saved: the moving average if there is one."""
        return self.ema or self.model

    @property
    def lr(self) -> float:
        """The common learning rate, of a group that has none of its own; if all have, that of the first."""
        groups = self.optimizer.param_groups
        common = (group for group in groups if group["initial_lr"] == self.config.lr)
        return float(next(common, groups[0])["lr"])

    @property
    def temperatures(self) -> Temperatures | None:
        """Current temperatures, or None without a GPSA layer; those that were set, for which no GPU is waited for."""
        if self._taus is None and self._layers:
            return temperatures_of(next(iter(self._layers.values())))
        return self._taus

    def _build(self, model: nn.Module, optimizer: Optimizer, updates: int, converted_at: int | None) -> None:
        """Build task, optimizer, schedules and moving average for a model after so many updates.

        Before annealing is over the moving average is the model itself: an average of weights that were learned at
        another τ is no model. From then on its decay is warmed up, so that early weights do not dominate.
        """
        device = self.precision.device
        self.optimizer = optimizer
        self.schedule = create_schedule(optimizer, self.config, self.steps)
        self.schedule.step_update(updates)
        self.task = create_task(model, self.config, self._teacher, device)
        self.annealing = annealing_schedule(model, self.config, self.steps, converted_at)
        if self.config.ema is not None:
            self.task.setup_ema(decay=self.config.ema, use_warmup=True, update_after_step=self.annealing.ends)
        if self.config.compile:
            logging.getLogger("torch.utils.cpp_extension").addFilter(_no_toolkit_warning)
            self.task.compile()
        if self._processes.world > 1:
            self.task.prepare_distributed(device_ids=[device.index] if device.type == "cuda" else None)
        self._layers = gpsa_layers(model)
        self._taus: Temperatures | None = None
        self._layers_ema = gpsa_layers(self.ema) if self.ema is not None else {}
        self.matching: Matching | None = None
        if self.config.matching and self._layers:
            self.matching = Matching(self.task, self._layers, self.config.matching)
        self._passes = Passes(self.task, self.precision, self._processes)
        if self.config.cuda_graph:
            self._passes = GraphedPasses(self.task, self.precision, self._hard_layers)
        self.train()

    def _hard_layers(self) -> tuple[bool, ...]:
        """Which layers are computed as a convolution, which a captured pass cannot change."""
        return tuple(layer.known_hard for layer in self._layers.values())

    def train(self) -> None:
        """Set training mode, except for the trunk."""
        self.task.train()
        freezing.set_trunk_eval(self.model, self.trunk)

    def convert(
        self, conversion: ConversionConfig, updates: int, converted_at: int, warn: Say = lambda message: None
    ) -> None:
        """Convert the model during training; the optimizer state is carried over.

        Args:
            updates: done so far.
            converted_at: updates done at the conversion, which are fewer in a resumed run.
            warn: called with one line if a part of that state is lost.
        """
        model, optimizer = convert_in_training(self.model, self.optimizer, self.config, conversion, warn)
        with torch.random.fork_rng(devices=[]):  # random filters must not depend on when the run was resumed
            torch.manual_seed(self.config.seed)
            ablate(model, self.config)
        self._build(model, optimizer, updates, converted_at)

    def restore(self, point: ResumePoint) -> None:
        """Load a resume point; raises `CheckpointError` where it does not fit."""
        resume.restore(point, self.model, self.optimizer, self.ema, self.precision.scaler)
        updates = point.position.scheduled
        if self.matching is not None and updates < self.annealing.ends:
            self.matching.load(point.tensors_with_prefix("matching."))
        self.schedule.step_update(updates)
        if updates > (point.position.converted_at or 0):
            # Those of the update before, as they were set: a layer has them in its own precision.
            taus = self.annealing.temperatures(updates - 1)
            self._taus = taus if self._layers else None

    def set_temperatures(self, updates: int) -> None:
        """Set the temperatures for the next update in every layer, also those of the moving average."""
        if self.matching is not None and updates >= self.annealing.ends:
            self.matching.close()
            self.matching = None
        taus = self.annealing.temperatures(updates)
        self._taus = taus if self._layers else None
        for layer in (*self._layers.values(), *self._layers_ema.values()):
            set_temperatures(layer, taus)

    def accumulate(self, micro_batches: list[MicroBatch], chunk: int | None) -> StepLoss:
        """Accumulate the gradients of a batch, `chunk` images at a time; raises `torch.OutOfMemoryError`."""
        return accumulate(self._passes, micro_batches, chunk)

    def update(self, updates: int) -> None:
        """Update the parameters, and the learning rates for the next update; `updates` counts this one."""
        for parameter in self._parameters(self.annealing.frozen(updates - 1)):
            parameter.grad = None  # the optimizer skips it and its state
        with scaled_content_output(self._layers.values(), self.config.content_output_scale):
            update(self.task, self.optimizer, self.precision, self.config.clip_grad)
        if self.annealing.frozen_parameters and updates == self.annealing.ends:
            self._reset_states(self._parameters(held_parameters(self._layers.values(), "all", self.config.conversion)))
        self.schedule.step_update(updates)
        self.task.update_ema(step=updates)

    def _parameters(self, names: tuple[str, ...]) -> list[nn.Parameter]:
        """Parameters with these names in every layer."""
        own = ((layer, name) for layer in self._layers.values() for name in names)
        return [layer.get_parameter(name) for layer, name in own if name in layer._parameters]

    def _reset_states(self, parameters: list[nn.Parameter]) -> None:
        """Reset the optimizer state of some parameters.

        After a long stretch of gradients that were almost zero, Adam's second moment would make them jump.
        """
        states, fresh = parameter_states(self.optimizer), parameter_states(create_optimizer(self.model, self.config))
        for parameter in parameters:
            states.pop(parameter, None)
            if parameter in fresh:
                states[parameter] = fresh[parameter]


BRIEF = 0.5
"""Seconds: a resume point that took less is written at every epoch's end."""

LEAST = 10
"""So many times as long as a longer one took it trains before the next at an epoch's end."""


class Saver:
    """Writes resume points and models into a run's directory. On a full disk a resume point is skipped.

    Where the model of an epoch cannot be written either the run ends, to be resumed: its metrics would name an epoch
    whose model is lost.

    Args:
        first: whether this is the first process of the run.
        record: what checkpoints state about the run beside its metrics.
    """

    def __init__(
        self, run: RunDirectory, config: FinetuneConfig, recorder: Recorder, *, first: bool, record: dict[str, Any]
    ) -> None:
        self.run, self.config, self.recorder, self.first, self.record = run, config, recorder, first, record
        self._saved: float | None = None
        self._took = 0.0
        """Seconds for the last resume point."""
        self._at: tuple[int, int] | None = None
        """Epoch and step of the last one that was written."""

    def due(self, updates: int) -> bool:
        """Whether a resume point is due after so many updates.

        Also after the first step of this process: where steps are long it may be killed before the next is due, and
        what is killed again and again has to get farther every time.
        """
        if self._saved is None:
            return True
        every = self.config.checkpoint_steps
        if every is not None and updates % every == 0:
            return True
        return time.monotonic() - self._saved > 60 * self.config.checkpoint_minutes

    def due_at_epoch_end(self) -> bool:
        """Whether one is due where an epoch or its validation has ended: unless so little is new that it does not pay.

        A GPU is through a small epoch in seconds, of which writing two points could take half.
        """
        return self._saved is None or self._took < BRIEF or time.monotonic() - self._saved >= LEAST * self._took

    def point(self, learner: Learner, position: Position) -> None:
        """Save a resume point."""
        began, scaler = time.monotonic(), learner.precision.scaler.state_dict()
        written = self.first and self.recorder.ignore_full_disk(
            lambda: resume.save_point(
                self.run.resume, position, learner.model, learner.optimizer, learner.ema, scaler,
                self.config.keep, None if learner.matching is None else learner.matching.state,
            )
        )  # fmt: skip
        self._saved = time.monotonic()
        self._took = self._saved - began
        if written:
            self._at = position.epoch, position.step

    def catch_up(self, learner: Learner, position: Position) -> None:
        """Save a resume point unless the last one has all that is trained."""
        if self._at != (position.epoch, position.step):
            self.point(learner, position)

    def model(self, learner: Learner, metrics: dict[str, Any], *, best: bool) -> None:
        """Save the model of an epoch as the last one, and as the best one if it is."""
        if self.first:
            sections: dict[str, object] = {"training": finite({**self.record, "metrics": metrics})}
            content = checkpoint.contents(learner.result, None, sections)
            for path in (self.run.last, *((self.run.best,) if best else ())):
                checkpoint.write(content, path, force=True)

    def newest(self) -> str:
        """The newest resume point, in words."""
        saved = resume.points(self.run.resume)
        return f"the newest resume point is {saved[0]}" if saved else "nothing was saved yet"
