"""Annealing: which τ an update finds, who may learn in it, and from when on the model is what it was converted for.

Everything is a function of the number of updates done, so a run that is killed and resumed needs to remember nothing.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.config.finetune import WARMUP
from tcnn.errors import RequestError
from tcnn.layers.gpsa import GPSA2d
from tcnn.training.recipe.optim import gpsa_layers
from tcnn.training.recipe.statistics import batch_norms
from tcnn.training.recipe.temperature_path import Path, Temperatures, on_path, tap_weight

GATES = ("gating_param",)
POSITIONS = ("locality_raw", "attention_centers")
HELD = {"none": (), "gates": GATES, "all": GATES + POSITIONS}
FOLLOWED = 0.02
"""The largest share of its weight that a tap should lose in one update: Adam moves a weight by about its learning rate,
1e-4 to 5e-4, and the weights of a pretrained 3×3 filter are a few hundredths."""

PAPER = Temperatures(1.0, 1.0)
"""Where the paper starts (Transformed CNNs, §2)."""


@dataclass(frozen=True)
class Annealing:
    """The course of τ over a run, by updates.

    Args:
        start: τ before the first update of it. end: τ of its last update, and of all after it.
        begin: updates done when it begins: 0, or those of a CNN that is converted on the way.
        length: how many updates it takes; 0 where τ is at its end at once.
        waiting: parameters of a layer that do not learn until it is over. forever: nor afterwards.
    """

    start: Temperatures = PAPER
    end: Temperatures = PAPER
    begin: int = 0
    length: int = 0
    path: Path = "log"
    waiting: tuple[str, ...] = ()
    forever: bool = False

    @property
    def ends(self) -> int:
        """Updates done when it is over."""
        return self.begin + self.length

    def over(self, updates: int) -> bool:
        """Whether so many updates have seen all of it: the model is what it was, or will be, converted for."""
        converted = updates > self.begin or self.begin == 0
        return converted and updates >= self.ends

    def temperatures(self, update: int) -> Temperatures:
        """τ of an update, counted from 0: the first is a step already."""
        done = (update + 1 - self.begin) / self.length if self.length else 1.0
        return on_path(self.path, self.start, self.end, done)

    def held(self, update: int) -> tuple[str, ...]:
        """The parameters of a layer that an update leaves alone, whatever their gradients."""
        return self.waiting if self.forever or update < self.ends else ()

    def steepest(self) -> float:
        """The largest share of a head that its tap loses in one update."""
        taus = [self.start, *(self.temperatures(self.begin + update) for update in range(self.length))]
        weights = [tap_weight(tau) for tau in taus]
        return max((before - after for before, after in pairwise(weights)), default=0.0)


def annealing_of(model: nn.Module, config: FinetuneConfig, steps: int, converted_at: int | None = None) -> Annealing:
    """The course of a run that begins with this model, or goes on with it from its conversion.

    Args:
        model: at the τ that it starts from; a CNN has none, and is converted after `convert_at` epochs or never.
        config: in epochs of `steps` updates. converted_at: updates done when the model was converted on the way.
    """
    layers = gpsa_layers(model)
    if not layers and config.convert_at is None:
        return Annealing()
    converted = config.conversion.temperature
    start = temperatures_of(next(iter(layers.values()))) if layers else Temperatures(converted, converted)
    begin = (config.convert_at or 0) * steps if converted_at is None else converted_at
    if config.anneal == "hold":
        return Annealing(start, start, begin, waiting=HELD["all"], forever=True)
    end = Temperatures(config.gate_temperature, config.position_temperature)
    there = all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(start, end, strict=True))
    length = 0 if there or config.anneal == "none" else round(config.annealing * steps)
    return Annealing(start, end, begin, length, config.anneal_path, HELD[config.hold])


def temperatures_of(layer: GPSA2d) -> Temperatures:
    """Both τ of a layer."""
    return Temperatures(float(layer.gate_temperature), float(layer.position_temperature))


def set_temperatures(layer: GPSA2d, taus: Temperatures) -> None:
    """Give a layer in training both τ; nothing but the optimizer writes to what decides where it looks."""
    layer.set_temperatures(taus.gate, taus.position, hold=True)


def remarks(model: nn.Module, config: FinetuneConfig, steps: int) -> list[str]:
    """What a user should know of the course before the run begins with a model, one line each.

    Args:
        config: as it was given. steps: updates of an epoch.

    Raises: `RequestError` for what cannot be done without annealing.
    """
    scaled = config.scaled()
    annealing = annealing_of(model, scaled, steps)
    lines = []
    if config.warmup_epochs is None and config.warmup != WARMUP:
        lines.append(f"warmup_epochs: {config.warmup:g}, a tenth of the {config.epochs} epochs, as none was given")
    if annealing.length < 500 and (steepest := annealing.steepest()) > FOLLOWED:  # longer ones never are
        needed = math.ceil(annealing.length * steepest / FOLLOWED)
        lines.append(
            f"anneal_epochs: {annealing.length} updates are too few for filters to follow τ, which takes about "
            f"{needed}: use --preset quick, a smaller batch_size or more epochs"
        )
    layers = gpsa_layers(model).values()
    beside = max((layer.content_heads for layer in layers), default=config.conversion.content_heads)
    if config.anneal == "hold" and (layers or config.convert_at is not None) and not beside:
        lines.append(
            "anneal: hold leaves a convolution, for there are no content heads to learn beside its taps; convert with "
            "--content-heads 4, or here with --set conversion.content_heads=4"
        )
    if config.bn_reestimate and not batch_norms(model):
        lines.append(f"bn_reestimate: {type(model).__name__} has no batch normalisation, so nothing is taken anew")
    if config.matching and not annealing.length:
        raise RequestError("matching: there is no annealing, as τ is at its end already; give it matching=0")
    compared = next((epoch for epoch in range(scaled.epochs) if annealing.over((epoch + 1) * steps)), None)
    if compared is None:
        lines.append(
            f"anneal_epochs: annealing ends after {annealing.ends} updates, the run after {scaled.epochs * steps}: "
            "its best epoch is the last"
        )
    elif compared > 0:
        lines.append(f"anneal_epochs: the best epoch is one from epoch {compared + 1} on, when annealing is over")
    return lines
