"""Settings that have no effect in a run: what was given is refused, by its configuration and by its model.

Those of a preset, of a file and of a `FinetuneConfig` may belong to runs of several kinds.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from tcnn.config.finetune import FinetuneConfig
from tcnn.errors import RequestError

RATES = ("gating_lr", "attention_lr", "value_lr", "output_lr", "position_lr")
"""Learning rates of their own that parameters of attention layers may have."""


class _Rule(NamedTuple):
    """Settings that have an effect only where something holds, and why they have none otherwise."""

    settings: tuple[str, ...]
    met: Callable[[FinetuneConfig], object]
    why: str


_RULES = (
    _Rule(
        ("conversion", "filters", "anneal", "anneal_epochs", "anneal_path", "gate_temperature", "position_temperature",
         "hold", "content_output_scale", "matching"),
        lambda config: config.convert, "nothing is converted with convert=false",
    ),
    _Rule(
        ("anneal_epochs", "anneal_path", "gate_temperature", "position_temperature", "hold"),
        lambda config: config.anneal != "hold", "τ is fixed with anneal=hold; give anneal=warmup as well",
    ),
    _Rule(
        ("anneal_epochs", "anneal_path", "hold"), lambda config: config.anneal != "none",
        "τ starts at its final value with anneal=none; give anneal=warmup as well",
    ),
    _Rule(
        ("distillation", "distillation_weight", "distillation_temperature"), lambda config: config.teacher,
        "nothing is distilled without a teacher; give teacher=source as well",
    ),
    _Rule(
        ("distillation_temperature",), lambda config: config.distillation == "soft",
        "decisions, which distillation=hard matches, have no temperature",
    ),
    _Rule(
        ("color_jitter",), lambda config: not config.auto_augment,
        "auto_augment takes its place; give auto_augment=null as well",
    ),
    _Rule(
        ("scale", "ratio", "train_interpolation"), lambda config: config.crop_padding is None,
        "crops of a padded image are not resized; give crop_padding=null as well",
    ),
    _Rule(
        ("mixup_prob",), lambda config: config.mixup or config.cutmix, "nothing is mixed; give mixup or cutmix as well",
    ),
    _Rule(
        ("mixup_switch_prob",), lambda config: config.mixup and config.cutmix,
        "it chooses between mixup and cutmix; give both as well",
    ),
    _Rule(("warmup_lr",), lambda config: config.warmup, "there is no warm-up; give warmup_epochs as well"),
)  # fmt: skip


def refuse_without_effect(config: FinetuneConfig, given: Mapping[str, object], option: str = "") -> None:
    """Raise `RequestError` for a setting that was given and has no effect in this configuration.

    Those of a preset and of a file may belong to runs of several kinds. `option`: with what they were given.
    """
    for rule in _RULES:
        for name in rule.settings:
            if given.get(name) is not None and not rule.met(config):
                raise RequestError(f"{option}{name}: has no effect, because {rule.why}")


class Parts(NamedTuple):
    """What of a run's model, and of its optimizer, settings act on; by default those of a T-CNN, as far as is known."""

    gated: bool = True
    """Whether it has GPSA layers, as a T-CNN has, or will have, and a ConViT of timm's."""
    rates: frozenset[str] = frozenset(RATES)
    """Those of `RATES` that are of parameters that it has."""
    content_heads: bool = True
    apart: bool = False
    """Whether it has positional attention outside GPSA layers, which is not frozen with them, nor held."""
    momentum: bool = True
    """Whether the optimizer has one."""


class _PartRule(NamedTuple):
    """As `_Rule`, by what the model has; `settings` are looked at in the order of the rules."""

    settings: tuple[str, ...]
    met: Callable[[FinetuneConfig, Parts], object]
    why: str


def _of(rate: str) -> Callable[[FinetuneConfig, Parts], object]:
    return lambda config, parts: rate in parts.rates


_PART_RULES = (
    _PartRule(("gating", "freeze_gpsa"), lambda config, parts: parts.gated, "the model has no GPSA layers"),
    *(
        _PartRule((rate,), _of(rate), "the model has no such weights, which a T-CNN has")
        for rate in RATES
    ),
    _PartRule(
        ("content_output_scale",), lambda config, parts: parts.content_heads,
        "the model has no content heads; convert its CNN with some (content_heads)",
    ),
    _PartRule(
        (*RATES, "content_output_scale", "hold"), lambda config, parts: not config.freeze_gpsa or parts.apart,
        "the GPSA layers are frozen with freeze_gpsa=true",
    ),
    _PartRule(("gating_lr",), lambda config, parts: config.gating, "λ is fixed at 0 with gating=false"),
    _PartRule(
        ("gating_lr", "position_lr"), lambda config, parts: config.anneal != "hold" or parts.apart,
        "λ, α and Δ are fixed with anneal=hold; give anneal=warmup as well",
    ),
    _PartRule(
        ("momentum",), lambda config, parts: parts.momentum, "the optimizer has none; choose another one with opt"
    ),
)  # fmt: skip
OF_PARTS = tuple(dict.fromkeys(name for rule in _PART_RULES for name in rule.settings))
"""The settings that a model, or an optimizer, may not have what they act on."""


def refuse_without_part(config: FinetuneConfig, given: Iterable[str], parts: Parts) -> None:
    """Raise `RequestError` for one of these settings, given by name, that has no effect on a model with such parts."""
    names = frozenset(given)
    for rule in _PART_RULES:
        for name in rule.settings:
            if name in names and not rule.met(config, parts):
                raise RequestError(f"{name}: has no effect, because {rule.why}")


def refuse_contradictions(given: Mapping[str, object], options: Mapping[str, object]) -> None:
    """Raise `RequestError` for a setting of which `--set` says one thing and an option of its own another."""
    for name, value in options.items():
        if name in given and not _same(given[name], value):
            option = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            says = "" if isinstance(value, bool) else f" {json.dumps(value)}"
            raise RequestError(
                f"--set {name}={json.dumps(given[name])}: {option}{says} says otherwise; give one of the two"
            )


def _same(one: object, other: object) -> bool:
    """Whether two values are one; a square may be given by its side, and a list in the place of a tuple."""
    first, second = (value if isinstance(value, list | tuple) else [value, value] for value in (one, other))
    return list(first) == list(second)
