"""Annealing of the temperature τ: its path and schedule, what is frozen meanwhile, and batch statistics after it.

Everything is a function of the number of updates done, so a resumed run needs no state of it.

At α = λ = 1 a head gives its own tap the weight g(τ_gate)·p(τ_position), g = σ(1/τ), p = 1/θ(τ)² (docs/math.md, Eq. 5).
So each of the two temperatures takes a share of its own from the tap: 1 − g goes to content, 1 − p to neighbours.

The running statistics of batch normalisation average over an earlier τ, and are re-estimated when it has risen.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.config.finetune import WARMUP
from tcnn.errors import RequestError
from tcnn.formatting import are, some
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms import kinds
from tcnn.models.running import gpsa_layers

Path = Literal["log", "drift"]
GATES = ("gating_param",)
MAX_TAP_CHANGE = 0.02
"""The largest share of its weight that a tap should lose in one update: Adam moves a weight by about its learning rate,
1e-4 to 5e-4, and the weights of a pretrained 3×3 filter are a few hundredths.
"""


class Temperatures(NamedTuple):
    """Temperatures τ of the gates and of the positional attention, dimensionless."""

    gate: float
    position: float


def content_share(tau: float) -> float:
    """Share of content attention in a head, 1 − σ(1/τ); accurate where it is tiny."""
    odds = math.exp(-1 / tau)
    return odds / (1 + odds)


def neighbour_share(tau: float) -> float:
    """Share of positional attention outside its tap, 1 − 1/θ(τ)², θ = Σ exp(−n²/τ); accurate where it is tiny."""
    reach = 1 + math.ceil(math.sqrt(40 * tau))  # beyond it a pixel has less than e⁻⁴⁰ of the tap's weight
    beside = 2 * math.fsum(math.exp(-n * n / tau) for n in range(1, reach + 1))
    return beside * (2 + beside) / (1 + beside) ** 2


def tap_weight(taus: Temperatures) -> float:
    """The weight that a head at α = λ = 1 gives to its own tap: 1 is a convolution."""
    return (1 - content_share(taus.gate)) * (1 - neighbour_share(taus.position))


def interpolate(path: Path, start: Temperatures, end: Temperatures, share: float) -> Temperatures:
    """The temperatures after a share (0 to 1) of an annealing path.

    `log`: equal steps in log τ, which halve the sharpness of every softmax equally often, most of them before anything
    is lost. `drift`: equal steps of the share that content, and that neighbours, take from the tap.
    """
    if share >= 1:
        return end
    if path == "log":
        return Temperatures(*(a if a == b else a ** (1 - share) * b**share for a, b in zip(start, end, strict=True)))
    return Temperatures(
        _invert(content_share, start.gate, end.gate, share),
        _invert(neighbour_share, start.position, end.position, share),
    )


def _invert(lost: Callable[[float], float], start: float, end: float, share: float) -> float:
    """The τ at which the share lost, which grows with τ, is this far between that at `start` and that at `end`."""
    if start == end:
        return end
    wanted = (1 - share) * lost(start) + share * lost(end)
    low, high = math.log(min(start, end)), math.log(max(start, end))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if lost(math.exp(middle)) < wanted else (low, middle)
    return math.exp(high)


PAPER = Temperatures(1.0, 1.0)
"""The paper's initial temperatures (Transformed CNNs, §2)."""


@dataclass(frozen=True)
class Annealing:
    """Schedule of τ over a run, by updates.

    Args:
        start: τ before the first annealed update.
        end: τ of the last annealed update, and of all after it.
        begin: updates done when annealing begins: 0, or those done when a CNN is converted during training.
        length: number of annealed updates; 0 where τ is at its end at once.
        frozen_parameters: parameters of a layer that are frozen until annealing is over.
        keep_frozen: whether they stay frozen afterwards.
    """

    start: Temperatures = PAPER
    end: Temperatures = PAPER
    begin: int = 0
    length: int = 0
    path: Path = "log"
    frozen_parameters: tuple[str, ...] = ()
    keep_frozen: bool = False

    @property
    def ends(self) -> int:
        """Updates done when annealing is over."""
        return self.begin + self.length

    def over(self, updates: int) -> bool:
        """Whether annealing is over after so many updates."""
        converted = updates > self.begin or self.begin == 0
        return converted and updates >= self.ends

    def temperatures(self, update: int) -> Temperatures:
        """Temperatures of an update, counted from 0: the first is a step already."""
        done = (update + 1 - self.begin) / self.length if self.length else 1.0
        return interpolate(self.path, self.start, self.end, done)

    def frozen(self, update: int) -> tuple[str, ...]:
        """Names of the layer parameters that are frozen in an update, whatever their gradients."""
        return self.frozen_parameters if self.keep_frozen or update < self.ends else ()

    def steepest_change(self) -> float:
        """The largest share of its weight that a tap loses in one update."""
        taus = [self.start, *(self.temperatures(self.begin + update) for update in range(self.length))]
        weights = [tap_weight(tau) for tau in taus]
        return max((before - after for before, after in pairwise(weights)), default=0.0)


def held_parameters(layers: Iterable[GPSA2d], hold: str, converted: ConversionConfig) -> tuple[str, ...]:
    """Names of the layer parameters that `hold` freezes, for these layers or those of a conversion to come."""
    if hold == "none":
        return ()
    if hold == "gates":
        return GATES
    found = {layer.position for layer in layers} or {converted.position}
    return GATES + tuple(name for name in kinds.PARAMETERS if any(name in kinds.NAMES[kind] for kind in found))


def annealing_schedule(
    model: nn.Module, config: FinetuneConfig, steps: int, converted_at: int | None = None
) -> Annealing:
    """The annealing schedule of a run that starts with this model, or that was converted during training.

    Args:
        model: at its initial τ; a CNN has none, and is converted after `convert_at` epochs or never.
        config: in epochs of `steps` updates.
        converted_at: updates done when the model was converted during training.
    """
    layers = gpsa_layers(model)
    if not layers and config.convert_at is None:
        return Annealing()
    converted = config.conversion.temperature
    start = temperatures_of(next(iter(layers.values()))) if layers else Temperatures(converted, converted)
    begin = (config.convert_at or 0) * steps if converted_at is None else converted_at
    if config.anneal == "hold":
        return Annealing(
            start,
            start,
            begin,
            frozen_parameters=held_parameters(layers.values(), "all", config.conversion),
            keep_frozen=True,
        )
    end = Temperatures(config.gate_temperature, config.position_temperature)
    there = all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(start, end, strict=True))
    length = 0 if there or config.anneal == "none" else round(config.annealing * steps)
    frozen = held_parameters(layers.values(), config.hold, config.conversion)
    return Annealing(start, end, begin, length, config.anneal_path, frozen)


def temperatures_of(layer: GPSA2d) -> Temperatures:
    """Both temperatures τ of a layer."""
    return Temperatures(float(layer.gate_temperature), float(layer.position_temperature))


def set_temperatures(layer: GPSA2d, taus: Temperatures) -> None:
    """Set both temperatures τ of a layer in training, whose λ, α and Δ only the optimizer changes."""
    layer.set_temperatures(taus.gate, taus.position, hold=True)


def annealing_notes(model: nn.Module, config: FinetuneConfig, steps: int) -> list[str]:
    """Notes for the user about annealing and its settings before a run begins, one line each.

    Args:
        config: as given, in epochs of the whole data set.
        steps: updates per epoch.

    Raises: `RequestError` for what is impossible without annealing.
    """
    scaled = config.scaled()
    annealing = annealing_schedule(model, scaled, steps)
    lines = []
    if config.warmup_epochs is None and config.warmup != WARMUP:
        epochs = some(config.epochs, "epoch")
        lines.append(f"warmup_epochs: {config.warmup:g}, a tenth of the {epochs}, as none was given")
    if annealing.length < 500 and (steepest := annealing.steepest_change()) > MAX_TAP_CHANGE:  # longer ones never are
        needed = math.ceil(annealing.length * steepest / MAX_TAP_CHANGE)
        lines.append(
            f"anneal_epochs: {some(annealing.length, 'update')} {are(annealing.length)} too few for filters to follow "
            f"τ, which takes about {needed}: use --anneal hold, as --preset quick does, a smaller batch_size or more "
            "epochs"
        )
    layers = gpsa_layers(model).values()
    content_heads = max((layer.content_heads for layer in layers), default=config.conversion.content_heads)
    if config.anneal == "hold" and (layers or config.convert_at is not None) and not content_heads:
        lines.append(
            "anneal: hold leaves a convolution, for there are no content heads to learn beside its taps; convert with "
            "--content-heads 4 (a CNN that is converted on the way: --set conversion.content_heads=4)"
        )
    if config.bn_reestimate and not batch_norms(model):
        lines.append(f"bn_reestimate: {type(model).__name__} has no batch normalisation, so nothing is taken anew")
    if config.matching and not annealing.length:
        raise RequestError("matching: there is no annealing, as τ is at its end already; give it matching=0")
    compared = next((epoch for epoch in range(scaled.epochs) if annealing.over((epoch + 1) * steps)), None)
    if compared is None:
        lines.append(
            f"anneal_epochs: annealing ends after {some(annealing.ends, 'update')}, the run after "
            f"{scaled.epochs * steps}: its best epoch is the last"
        )
    elif compared > 0:
        setting, what = ("anneal_epochs", "annealing is over") if annealing.length else ("convert_at", "it is a T-CNN")
        lines.append(f"{setting}: the best epoch is one from epoch {compared + 1} on, when {what}")
    return lines


def batch_norms(model: nn.Module, exclude: Iterable[str] = ()) -> list[_BatchNorm]:
    """The batch normalisation layers of a model that keep running statistics, except those inside some modules."""
    passed = {id(module) for name in exclude for module in model.get_submodule(name).modules()}
    found = (module for module in model.modules() if id(module) not in passed)
    return [module for module in found if isinstance(module, _BatchNorm) and module.track_running_stats]


def is_single_value(error: ValueError) -> bool:
    """Whether this is batch normalisation's refusal of one value per channel: one image, of which one pixel is left."""
    return "more than 1 value per channel" in str(error)


@torch.no_grad()
def reestimate_batch_norm(model: nn.Module, batches: Iterable[Tensor], exclude: Iterable[str] = ()) -> None:
    """Replace all running means and variances by their averages over batches of images, (B, C, H, W) each.

    Layers in the modules named in `exclude`, which are frozen, keep theirs. All other modules are in evaluation mode
    meanwhile, as when the statistics are used: without dropout and stochastic depth. Every module's mode is restored.
    """
    norms = batch_norms(model, exclude)
    training = [module for module in model.modules() if module.training]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # PyTorch's word for a mean that gives every batch the same weight
        norm.train()
    try:
        for images in batches:
            model(images)
    finally:
        model.eval()
        for module in training:
            module.training = True
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
