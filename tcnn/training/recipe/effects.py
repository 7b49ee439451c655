"""Settings that have no effect in a run with the model at hand; refused before the first step, if they were given.

What a model has is looked up in it, and whether an optimizer has a momentum in timm's registry, so that nothing is
refused by a name. What a configuration tells by itself is refused before anything is loaded (`tcnn.config.effects`).
"""

import math
from collections.abc import Collection

from timm.models.convit import GPSA
from timm.optim import get_optimizer_info
from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.config.effects import OF_PARTS, RATES, Parts, refuse_without_part
from tcnn.errors import RequestError
from tcnn.formatting import some
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.models.running import gpsa_layers
from tcnn.training.recipe.annealing import Annealing, Temperatures, annealing_schedule, batch_norms
from tcnn.training.recipe.optim import with_own_rate

OF_ANNEALING = ("anneal_epochs", "anneal_path", "hold", "ema", "bn_reestimate")
OF_MODELS = frozenset((*OF_PARTS, *OF_ANNEALING))
"""The settings of which the model tells whether they have an effect."""


def parts_of(model: nn.Module, config: FinetuneConfig) -> Parts:
    """What settings act on in a model, or in the T-CNN that it becomes during training, and in the optimizer.

    What is frozen counts, too: that it is, the configuration says.
    """
    converted_later = config.convert and config.convert_at is not None
    layers, kinds = gpsa_layers(model).values(), {type(module) for module in model.modules()}
    return Parts(
        gated=bool(layers) or converted_later or any(issubclass(kind, GPSA) for kind in kinds),
        rates=frozenset(RATES if converted_later else with_own_rate(model).values()),
        content_heads=any(layer.content_heads for layer in layers)
        or (converted_later and config.conversion.content_heads > 0),
        apart=any(issubclass(kind, SelfAttention2d) for kind in kinds),
        momentum=has_momentum(config.opt),
    )


def has_momentum(opt: str) -> bool:
    """Whether an optimizer that timm makes by this name is given a momentum; true for a name that timm does not know,
    which is refused otherwise.
    """
    try:
        return bool(get_optimizer_info(opt.lower().rpartition("_")[2]).has_momentum)
    except ValueError:
        return True


def refuse_idle(model: nn.Module, config: FinetuneConfig, given: Collection[str], steps: int) -> None:
    """Raise `RequestError` for a setting that was given and has no effect on this model.

    Args:
        model: the initial model of a run.
        config: as given, in epochs of the whole data set.
        given: names of settings (`deliberate`); others than those of `OF_MODELS` are let pass.
        steps: updates per epoch.
    """
    refuse_without_part(config, given, parts_of(model, config))
    if "bn_reestimate" in given and not batch_norms(model):
        raise RequestError("bn_reestimate: has no effect, because the model has no batch normalisation")
    scaled = config.scaled()
    annealing = annealing_schedule(model, scaled, steps)
    for name in OF_ANNEALING:
        if name in given and (why := _idle(name, config, annealing, scaled.epochs * steps)):
            raise RequestError(f"{name}: has no effect, because {why}")


def _idle(name: str, config: FinetuneConfig, annealing: Annealing, updates: int) -> str | None:
    """Why a setting of annealing, or one that waits for its end, has no effect in a run of so many updates."""
    if name in ("ema", "bn_reestimate"):
        # timm's average is the model itself until the second update after annealing.
        idle = annealing.ends > 0 and updates < annealing.ends + (2 if name == "ema" else 0)
        return f"annealing ends after {some(annealing.ends, 'update')}, and the run after {updates}" if idle else None
    if config.anneal == "warmup" and not annealing.length:
        there = Temperatures(config.gate_temperature, config.position_temperature)
        if all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(annealing.start, there, strict=True)):
            return "τ is at its final value already"
        return None if name == "anneal_epochs" else "τ has no time to move; give anneal_epochs as well"
    return None


def rate_notes(model: nn.Module, config: FinetuneConfig) -> list[str]:
    """Notes for the user on learning rates that do not change in a run, as they are below what they would come from or
    go to, one line each; a rate of 0 is meant to stay."""
    own = [setting for setting in RATES if setting in parts_of(model, config).rates]
    rates = {name: rate for name in ("lr", *own) if (rate := getattr(config, name))}
    limits = {"warmup_lr": config.warmup_lr if config.warmup else 0.0, "min_lr": config.min_lr}
    what = {"warmup_lr": "no warm-up", "min_lr": "no decay"}
    return [
        f"{limit}: {', '.join(f'{name}={rates[name]:g}' for name in below)}: {what[limit]}, being below {value:g}"
        for limit, value in limits.items()
        if (below := [name for name, rate in rates.items() if rate < value])
    ]
