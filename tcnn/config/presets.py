"""Presets of the fine-tuning recipe; merge preset, file, `--set` and options into one configuration (last wins)."""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tcnn.arguments import typed
from tcnn.characters import named
from tcnn.config.base import build
from tcnn.config.conversion import ConversionConfig, as_kept
from tcnn.config.effects import refuse_without_effect
from tcnn.config.finetune import FinetuneConfig
from tcnn.errors import RequestError, one_line
from tcnn.files import path_of

LIGHT = {
    "repeats": 1, "auto_augment": None, "color_jitter": 0.0, "mixup": 0.0, "cutmix": 0.0, "reprob": 0.0,
    "drop_path": 0.0, "warmup_epochs": 1, "lr": 5e-4, "gating_lr": 0.05, "position_lr": 0.02,
    "anneal": "hold", "conversion": {"content_heads": 4},
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "quick": LIGHT | {"epochs": 5, "anneal_epochs": 3, "batch_size": 64},
    "cifar": LIGHT
    | {
        "epochs": 20,
        "warmup_epochs": 2,
        "anneal_epochs": 10,
        "batch_size": 128,
        "lr": 2e-3,
        "ema": 0.998,
        "size": 32,
        "scale": (0.6, 1.0),
        "ratio": (0.9, 1.1),
    },
}
"""`paper`: the recipe itself. `quick`: minutes on small data, light augmentation. `cifar`: 32×32 images.

Small data give too few updates for filters to follow τ to 1 (docs/results.md): with both small presets the taps stay
the convolution that they were, and content heads learn beside them. Told to anneal, they do so over half of the epochs,
and let strengths and centres learn faster. Of fewer epochs than a preset's own, warm-up and annealing take the same
share. The learning rate of `cifar` is the best of four that were measured, clean, for the CNN as for the T-CNN. At such
a rate single weights are noisy, the T-CNN's more so, since W_val and W_out multiply; their moving average is not. After
20 epochs both networks are better than after 10, under corruptions above all, and attention's gain is not less.
"""


@typed("preset")
def finetune_config(
    preset: str = "paper",
    file: str | Path | None = None,
    assignments: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> FinetuneConfig:
    """Merge a preset, a YAML or JSON file, ``KEY=VALUE`` assignments and options into one configuration, in this order.

    Settings as keywords are options: ``finetune_config("quick", epochs=10)``. Nested settings are written with dots:
    ``conversion.stride=remove``. Raises `RequestError` with one line.
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise RequestError(f"--preset: expected one of {', '.join(PRESETS)}, found {preset!r}")
    values: dict[str, Any] = {}
    if file is not None:
        file = path_of(file, "file")
        _merge(values, _read(file))
    _merge(values, assigned(assignments))
    _merge(values, {**(options or {}), **settings})
    made = _shortened(PRESETS[preset], values)
    _merge(made, values)
    return build(FinetuneConfig, made)


def finetune_settings(options: Mapping[str, object], config: FinetuneConfig | None = None) -> FinetuneConfig:
    """The settings that a function in Python is given: keywords, over a configuration or over those of a `preset`, and
    those of a `conversion` one by one, too.

    Raises `RequestError` with one line that names the setting, also for a keyword without effect, and where both a
    preset and a configuration are given.
    """
    given = dict(options)
    preset = given.pop("preset", None)
    if preset is not None and config is not None:
        raise RequestError("preset: a configuration has all settings already; give one of the two")
    conversion = given.get("conversion")
    if isinstance(conversion, ConversionConfig):
        conversion = given["conversion"] = conversion.model_dump(exclude_unset=True)
    if isinstance(config, FinetuneConfig) and isinstance(conversion, Mapping):
        given["conversion"] = {**config.conversion.model_dump(exclude_unset=True), **conversion}
    made = (
        build(FinetuneConfig, given, config) if preset is None else finetune_config(cast("str", preset), options=given)
    )
    refuse_without_effect(made, given)
    return made


def settings_given(config: FinetuneConfig, given: Mapping[str, object], preset: str = "paper") -> tuple[str, ...]:
    """Names of the settings that were given with another value than the default's and the preset's, which would be
    theirs without. A `preset` among them counts.
    """
    known = PRESETS[str(given.get("preset") or preset)]
    defaults = {name: field.default for name, field in FinetuneConfig.model_fields.items() if name in given}
    return tuple(name for name, own in defaults.items() if getattr(config, name) not in (own, known.get(name, own)))


def assigned(assignments: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """The settings of ``KEY=VALUE`` assignments, nested where a key has dots. `option`: with what they were given.

    Raises `RequestError` with one line, also for a setting that is given twice, by itself or within another.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise RequestError(f"{option} {assignment}: expected KEY=VALUE, for example {option} seed=1")
        _add(values, _nested(key.strip(), _value(text)), f"{option} {assignment}")
    return values


def _add(into: dict[str, Any], other: Mapping[str, Any], said: str, around: str = "") -> None:
    """As `_merge`, but for values that are there already."""
    for key, value in other.items():
        if key not in into:
            into[key] = value
        elif isinstance(value, dict) and isinstance(into[key], dict):
            _add(into[key], value, said, f"{around}{key}.")
        else:
            raise RequestError(
                f"{said}: {around}{key} has a value already, {json.dumps(into[key])}; give one of the two"
            )


def is_presets_conversion(conversion: ConversionConfig) -> bool:
    """Whether these are the conversion settings of a preset, `paper` and its defaults included, and nobody's own."""
    return any(conversion == ConversionConfig(**preset.get("conversion", {})) for preset in PRESETS.values())


def _shortened(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A preset; if fewer epochs than its own are given, its warm-up and annealing are shortened in proportion."""
    values, own, epochs = copy.deepcopy(dict(preset)), _epochs(preset), _epochs({**preset, **given})
    if epochs < own:
        for length in {"warmup_epochs", "anneal_epochs"} & values.keys():
            values[length] = values[length] * epochs / own
    return values


def _epochs(values: Mapping[str, Any]) -> int:
    """The epochs of a run with these values, as its configuration has them: 2.0 and NumPy's 2 are 2."""
    return build(FinetuneConfig, {key: value for key, value in values.items() if key == "epochs"}).epochs


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _nested(key: str, value: object) -> dict[str, Any]:
    first, dot, rest = key.partition(".")
    return {first: _nested(rest, value) if dot else value}


def _value(text: str) -> object:
    """Parse JSON (numbers, true, null, lists); anything else is text. Python's None and True are understood."""
    words: dict[str, object] = {"None": None, "True": True, "False": False}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def parsed(text: str, name: object) -> object:
    """What a text in YAML or JSON says. Raises `yaml.YAMLError`, and `RequestError` for a key that is there twice.

    PyYAML takes the last of two, as JSON's readers do; YAML itself allows a key once. `name`: of the file.
    """
    import yaml  # a dependency of timm's; it also reads JSON

    left, seen = [yaml.compose(text, yaml.SafeLoader)], set[int]()
    while left:
        node = left.pop()
        if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
            continue
        seen.add(id(node))  # an alias is the node itself
        if isinstance(node, yaml.MappingNode):
            _refuse_twice([key for key, _ in node.value if isinstance(key, yaml.ScalarNode)], name)
        left += (part for both in node.value for part in (both if isinstance(both, tuple) else (both,)))
    return yaml.safe_load(text)


def _refuse_twice(keys: Sequence[Any], name: object) -> None:
    """Raise `RequestError` for two equal keys of a mapping; ``<<`` merges others into it, and may be repeated."""
    first: dict[tuple[str, str], Any] = {}
    for key in keys:
        other = first.setdefault((key.tag, key.value), key)
        if other is not key and key.value != "<<":
            here, there = (one.start_mark.line + 1 for one in (other, key))
            where = f"line {here}" if here == there else f"lines {here} and {there}"
            raise RequestError(f"{name}: {named(key.value)} is given twice, in {where}; give it once")


def _read(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = parsed(file.read_text(encoding="utf-8"), file)
    except FileNotFoundError as error:
        raise RequestError(f"{file}: no such configuration file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file}: not a readable configuration file ({type(error).__name__})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or one_line(error)
        raise RequestError(f"{file}: neither YAML nor JSON{where}: {problem}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise RequestError(f"{file}: expected settings as `key: value` lines, found {type(content).__name__}")
    strange = [key for key in content if not isinstance(key, str)]
    if strange:
        raise RequestError(f"{file}: {strange[0]!r}: no such setting; names of settings are words")
    # A run's own config.json holds the settings under "config".
    inner = content.get("config")
    if not (isinstance(inner, dict) and "run" in content):
        return content
    conversion = inner.get("conversion")
    return {**inner, "conversion": as_kept(conversion)} if isinstance(conversion, dict) else inner
