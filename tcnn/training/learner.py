"""What learns: the model in training, and all that is built around it, anew when it is converted on the way."""

from collections.abc import Sequence

import torch
from timm.utils import unwrap_model
from torch import nn
from torch.optim import Optimizer

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.training.distributed import Processes
from tcnn.training.prepare import ablate
from tcnn.training.recipe import freezing
from tcnn.training.recipe.annealing import HELD, annealing_of, set_temperatures, temperatures_of
from tcnn.training.recipe.late import convert_in_training
from tcnn.training.recipe.matching import Matching
from tcnn.training.recipe.objective import create_task
from tcnn.training.recipe.optim import create_optimizer, create_schedule, gpsa_layers
from tcnn.training.recipe.temperature_path import Temperatures
from tcnn.training.runs import resume
from tcnn.training.runs.resume import ResumePoint
from tcnn.training.step import Arithmetic, Outcome, Part, accumulate, update
from tcnn.training.whole_batch import whole_batch


class Learner:
    """A model with its optimizer, schedules, moving average, and timm's task, which wraps it for its device.

    It knows how to learn from a batch, and nothing of where the run stands: it is told how many updates there were.

    Args:
        model: what the first step begins with; it is moved to the device of `arithmetic`.
        config: in epochs of the data at hand (`FinetuneConfig.scaled`). steps: optimizer steps of an epoch.
        teacher: what is distilled, if anything is. trunk: the modules that do not learn (`freezing`).
    """

    def __init__(
        self,
        model: nn.Module,
        config: FinetuneConfig,
        *,
        steps: int,
        arithmetic: Arithmetic,
        processes: Processes,
        teacher: nn.Module | None = None,
        trunk: Sequence[str] = (),
    ) -> None:
        self.config, self.steps, self.arithmetic, self.trunk = config, steps, arithmetic, tuple(trunk)
        self._processes, self._teacher = processes, teacher
        model = model.to(arithmetic.device, memory_format=arithmetic.memory_format)  # type: ignore[call-overload]
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
        """What is evaluated and saved."""
        return self.ema or self.model

    @property
    def lr(self) -> float:
        """The learning rate of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def temperatures(self) -> Temperatures | None:
        """Both τ as they are, or None where there is no GPSA layer."""
        return temperatures_of(next(iter(self._layers.values()))) if self._layers else None

    def _build(self, model: nn.Module, optimizer: Optimizer, updates: int, converted_at: int | None) -> None:
        """Everything that stands around a model which has seen so many updates.

        Before annealing is over the moving average is the model itself: an average of weights that were learned at
        another τ is no model. From then on its decay is warmed up, lest it remember that for long.
        """
        device = self.arithmetic.device
        self.optimizer = optimizer
        self.schedule = create_schedule(optimizer, self.config, self.steps)
        self.schedule.step_update(updates)
        self.task = create_task(model, self.config, self._teacher, device)
        self.annealing = annealing_of(model, self.config, self.steps, converted_at)
        if self.config.ema is not None:
            self.task.setup_ema(decay=self.config.ema, use_warmup=True, update_after_step=self.annealing.ends)
        if self.config.compile:
            self.task.compile()
        if self._processes.world > 1:
            self.task.prepare_distributed(device_ids=[device.index] if device.type == "cuda" else None)
        self._layers = gpsa_layers(model)
        self._layers_ema = gpsa_layers(self.ema) if self.ema is not None else {}
        self.matching: Matching | None = None
        if self.config.matching and self._layers:
            self.matching = Matching(self.task, self._layers, self.config.matching)
        self.train()

    def train(self) -> None:
        """Training mode, but for the trunk."""
        self.task.train()
        freezing.rest(self.model, self.trunk)

    def convert(self, conversion: ConversionConfig, updates: int, converted_at: int) -> None:
        """Late reparametrisation: the optimizer goes on.

        Args:
            updates: done so far. converted_at: done when the run was converted, which in a resumed one were fewer.
        """
        model, optimizer = convert_in_training(self.model, self.optimizer, self.config, conversion)
        with torch.random.fork_rng(devices=[]):  # random filters must not depend on when the run was resumed
            torch.manual_seed(self.config.seed)
            ablate(model, self.config)
        self._build(model, optimizer, updates, converted_at)

    def restore(self, point: ResumePoint) -> None:
        """What a resume point knows; raises `CheckpointError` where it does not fit."""
        resume.restore(point, self.model, self.optimizer, self.ema, self.arithmetic.scaler)
        if self.matching is not None and point.position.updates < self.annealing.ends:
            self.matching.load(point.part("matching."))
        self.schedule.step_update(point.position.updates)

    def set_temperatures(self, updates: int) -> None:
        """Give every layer, those of the moving average too, both τ of the update that comes after so many."""
        if self.matching is not None and updates >= self.annealing.ends:
            self.matching.close()
            self.matching = None
        taus = self.annealing.temperatures(updates)
        for layer in (*self._layers.values(), *self._layers_ema.values()):
            set_temperatures(layer, taus)

    def accumulate(self, parts: list[Part], chunk: int | None) -> Outcome:
        """Gradients of a batch, `chunk` images at a time; raises `torch.OutOfMemoryError`, then incomplete."""
        with whole_batch(self._processes):
            return accumulate(self.task, parts, self.arithmetic, chunk)

    def update(self, updates: int) -> None:
        """Apply the gradients; with this there are so many updates, which sets what the next one learns at."""
        for parameter in self._parameters(self.annealing.held(updates - 1)):
            parameter.grad = None  # an optimizer passes over it: neither it nor what is remembered of it moves
        update(self.task, self.optimizer, self.arithmetic, self.config.clip_grad)
        if self.annealing.waiting and updates == self.annealing.ends:
            self._forget(self._parameters(HELD["all"]))
        self.schedule.step_update(updates)
        self.task.update_ema(step=updates)

    def _parameters(self, names: tuple[str, ...]) -> list[nn.Parameter]:
        """Those of these names of every layer."""
        return [layer.get_parameter(name) for layer in self._layers.values() for name in names]

    def _forget(self, parameters: list[nn.Parameter]) -> None:
        """Have the optimizer know as much of these as it does at its beginning.

        After a long stretch of gradients that were almost zero, Adam's second moment would have them leap.
        """
        fresh = create_optimizer(self.model, self.config)
        for parameter in parameters:
            self.optimizer.state.pop(parameter, None)
            if parameter in fresh.state:
                self.optimizer.state[parameter] = fresh.state[parameter]
