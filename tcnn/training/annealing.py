"""Annealing: which τ an update finds, and from when on the model is what it was converted for.

Everything is a function of the number of updates done, so a run that is killed and resumed needs to remember nothing.
"""

import math
from dataclasses import dataclass

from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.conversion.annealing import temperature
from tcnn.training.optim import gpsa_layers


@dataclass(frozen=True)
class Annealing:
    """The course of τ over a run, by updates.

    Args:
        start: τ before the first update of it.
        begin: updates done when it begins: 0, or those of a CNN that is converted on the way.
        length: how many updates it takes; 0 where τ is at its end at once.
    """

    start: float = 1.0
    begin: int = 0
    length: int = 0

    @property
    def ends(self) -> int:
        """Updates done when it is over."""
        return self.begin + self.length

    def over(self, updates: int) -> bool:
        """Whether so many updates have seen all of it: the model is what it was, or will be, converted for."""
        converted = updates > self.begin or self.begin == 0
        return converted and updates >= self.ends

    def temperature(self, update: int) -> float:
        """τ of an update, counted from 0."""
        return temperature(update - self.begin, self.start, self.length)


def annealing_of(model: nn.Module, config: FinetuneConfig, steps: int, converted_at: int | None = None) -> Annealing:
    """The course of a run that begins with this model, or goes on with it from its conversion.

    Args:
        model: at the τ that it starts from; a CNN has none, and is converted after `convert_at` epochs or never.
        config: in epochs of `steps` updates. converted_at: updates done when the model was converted on the way.
    """
    layers = gpsa_layers(model)
    if not layers and config.convert_at is None:
        return Annealing()
    start = float(next(iter(layers.values())).position_temperature) if layers else config.conversion.temperature
    begin = round((config.convert_at or 0) * steps) if converted_at is None else converted_at
    epochs = config.warmup_epochs if config.anneal_epochs is None else config.anneal_epochs
    at_end = config.anneal == "none" or math.isclose(start, 1.0)
    return Annealing(start, begin, 0 if at_end else round(epochs * steps))


def remarks(annealing: Annealing, config: FinetuneConfig, steps: int) -> list[str]:
    """What a user should know of the course before the run begins, one line each."""
    compared = next((epoch for epoch in range(config.epochs) if annealing.over((epoch + 1) * steps)), None)
    if compared is None:
        end = config.epochs * steps
        return [f"anneal_epochs: τ is on its way for {annealing.ends} of {end} updates, so the best epoch is the last"]
    if compared > 0:
        return [f"anneal_epochs: the best epoch is one from epoch {compared + 1} on, for before τ is on its way"]
    return []
