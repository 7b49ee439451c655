"""What is compared: arms × seeds, from one start, on the same batches. One YAML file describes one experiment.

    model: resnet20                 # a timm name, or one of networks.building.OWN
    preset: cifar                   # of tcnn.config.PRESETS
    recipe: {epochs: 4, size: 32}   # settings of FinetuneConfig for all
    adapt: {epochs: 3}              # the CNN is fitted to the data first, once: every arm starts from there
    arms:
      cnn: {label: "CNN, fine-tuned", convert: false}
      t-cnn: {control: cnn}         # which arm is the CNN of the same geometry
      long: {like: cnn, equal_time_to: t-cnn}  # compared with it, as any arm with those of `beside`
    reference: cnn
    seeds: [0, 1, 2]

What an arm says beyond the keys of `Arm` is settings over the recipe. For a CNN (`convert: false`) `conversion.stride`
is the network's own geometry: with its stride kept, removed, or dilated.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from tcnn.config import PRESETS, FinetuneConfig, Frozen, assigned, build, finetune_config
from tcnn.config.finetune import RUNTIME
from tcnn.config.presets import parsed
from tcnn.errors import RequestError, one_line
from tcnn.evaluation.corruptions import CORRUPTIONS, SEVERITIES, check

NAME = r"[a-z0-9][a-z0-9._-]*"
"""An arm's name is part of file names; its label is for people."""


class Corrupted(Frozen):
    """Which validation images are corrupted, and how: every one in every way."""

    images: int | None = Field(default=500, ge=1)
    """A class-balanced part; None is all of them."""
    corruptions: tuple[str, ...] = CORRUPTIONS
    severities: tuple[int, ...] = SEVERITIES
    size: int | None = Field(default=None, ge=1)
    """Pixels, if not those that an arm is trained at."""


class Arm(Frozen):
    """One of the things that are compared."""

    label: str = ""
    control: str | None = None
    """The arm that is the CNN of the same geometry."""
    beside: tuple[str, ...] = ()
    """Further arms that it is compared with, as a CNN that trained for longer."""
    like: str | None = None
    """The arm whose settings these go over."""
    equal_time_to: str | None = None
    """The arm in whose seconds this one trains: the epochs of `like` are scaled by the measured ratio."""
    model: str | None = None
    """Another network than the experiment's."""
    start: Literal["adapted", "published", "untrained"] | None = None
    """The weights it starts from. Default: the adapted ones if there are any, else the published."""
    train: bool = True
    """False measures the start as it is."""
    published_size: bool = False
    """Trained and measured at the size at which the network was published, timm's `input_size`, not the recipe's."""
    initialise: Literal["impulse", "mimetic", "convolution", "random", "default"] | None = None
    """How the attention of a vision transformer, or the filters of a ConvMixer, begin (`tcnn.initialise`)."""
    settings: dict[str, Any] = Field(default={})


class Experiment(Frozen):
    """One file."""

    name: str
    title: str
    about: str = ""
    model: str
    pretrained: bool = True
    """Whether the published weights are the start; if not, random ones."""
    decoded: bool = True
    """Keep all images decoded in one file: 3 bytes a pixel. For a data set that is too large for that: false."""
    train_images: int | None = Field(default=None, ge=1)
    epoch_images: int | None = Field(default=None, ge=1)
    """Validation images after every epoch; None is all of them. The end is always measured on all."""
    corrupted: Corrupted | None = Corrupted()
    sizes: tuple[int, ...] = ()
    """Further sizes in pixels at which clean images are classified (Transformed CNNs, Fig. 7)."""
    preset: str = "paper"
    recipe: dict[str, Any] = Field(default={})
    adapt: dict[str, Any] | None = None
    arms: dict[str, Arm]
    reference: str
    """The arm that all are compared with beside their control: the fine-tuned CNN with its stride kept."""
    seeds: tuple[int, ...] = (0, 1, 2)

    def label(self, arm: str) -> str:
        return self.arms[arm].label or arm

    def model_of(self, arm: str) -> str:
        """The network that an arm trains."""
        return self.arms[arm].model or self.model

    def start_of(self, arm: str) -> str:
        """adapted, published or untrained."""
        default = "adapted" if self.adapt is not None else "published" if self.pretrained else "untrained"
        return self.arms[arm].start or default

    def seeds_of(self, arm: str) -> tuple[int, ...]:
        """An arm that is not trained has no seeds; it is measured once."""
        return self.seeds if self.arms[arm].train else self.seeds[:1]

    def config(self, arm: str, seed: int, options: Mapping[str, Any] | None = None) -> FinetuneConfig:
        """The recipe of one arm."""
        return self._made(self.settings_of(arm), {"seed": seed, **(options or {})})

    def adapt_config(self, options: Mapping[str, Any] | None = None) -> FinetuneConfig:
        """The recipe of the first phase, which every arm starts from."""
        return self._made(self.adapt or {}, {"convert": False, "seed": self.seeds[0], **(options or {})})

    def settings_of(self, arm: str) -> dict[str, Any]:
        """What an arm sets beside the recipe, with what it has from the arm that it is like."""
        like = self.arms[arm].like
        return merged(self.settings_of(like) if like else {}, self.arms[arm].settings)

    def _made(self, *layers: Mapping[str, Any]) -> FinetuneConfig:
        return finetune_config(
            self.preset, options=merged({"workers": 0, "checkpoint_minutes": 2}, self.recipe, *layers)
        )


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings one over the other, the later first; nested ones (`conversion`) key by key."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def identity(config: FinetuneConfig) -> dict[str, Any]:
    """The settings that decide what a run computes, and differ from the defaults."""
    return config.model_dump(mode="json", exclude_defaults=True, exclude=set(RUNTIME))


def load(file: Path) -> Experiment:
    """Read and check a file. Raises `RequestError` with one line: nothing of it is first found wrong hours later."""
    try:
        content = parsed(file.read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"{file}: not readable as YAML ({one_line(error)})") from error
    if not isinstance(content, dict) or not isinstance(content.get("arms"), dict) or not content["arms"]:
        raise RequestError(f"{file}: expected `model: …`, `arms: …` and `reference: …`, see benchmarks/reproduce")
    try:
        arms = {name: _arm(name, values) for name, values in content["arms"].items()}
        experiment = build(Experiment, {"name": file.stem, "title": file.stem, **content, "arms": arms})
        _check(experiment)
    except RequestError as error:
        raise RequestError(f"{file.name}: {error}") from error
    return experiment


def changed(experiment: Experiment, model: str | None, assignments: Sequence[str]) -> Experiment:
    """An experiment with another network, or with other settings of its recipe, under a name of its own.

    What an arm sets itself stays. Raises `RequestError` as `load` does.
    """
    words = [*([model] if model else []), *(re.sub("[^A-Za-z0-9.]+", "-", one).strip("-") for one in assignments)]
    recipe = merged(experiment.recipe, assigned(assignments))
    own = {"model": model or experiment.model, "recipe": recipe, "name": "-".join([experiment.name, *words])}
    found = experiment.model_copy(update=own)
    try:
        _check(found)
    except RequestError as error:  # the file itself was checked before
        raise RequestError(f"--set {' '.join(assignments)}: {error}") from error
    return found


def _arm(name: object, values: object) -> Arm:
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise RequestError(
            f"arms: {name!r}: expected a name of small letters, digits, dots and dashes; use `label` too"
        )
    if values is not None and not isinstance(values, dict):
        raise RequestError(f"arms.{name}: expected settings, found {values!r}")
    own = {key: value for key, value in (values or {}).items() if key in Arm.model_fields and key != "settings"}
    settings = {key: value for key, value in (values or {}).items() if key not in own}
    return build(Arm, {**own, "settings": settings})


def _check(experiment: Experiment) -> None:
    arms = experiment.arms
    if experiment.preset not in PRESETS:
        raise RequestError(f"preset: {experiment.preset!r}; expected one of {', '.join(PRESETS)}")
    if len(set(experiment.seeds)) != len(experiment.seeds) or not experiment.seeds:
        raise RequestError(f"seeds: expected different numbers, found {list(experiment.seeds)}")
    known("reference", experiment.reference, arms)
    for name, arm in arms.items():
        for key in ("control", "like", "equal_time_to"):
            if getattr(arm, key) is not None:
                known(f"arms.{name}.{key}", getattr(arm, key), arms)
        for other in arm.beside:
            known(f"arms.{name}.beside", other, arms)
        _check_relations(experiment, name, arm)
    if experiment.corrupted:
        for corruption in experiment.corrupted.corruptions:
            for severity in experiment.corrupted.severities:
                check(corruption, severity)
    for what, make in (("adapt", experiment.adapt_config), *((f"arms.{n}", _maker(experiment, n)) for n in arms)):
        try:
            make()
        except RequestError as error:
            raise RequestError(f"{what}: {error}") from error


def _check_relations(experiment: Experiment, name: str, arm: Arm) -> None:
    arms = experiment.arms
    if arm.like is not None and arms[arm.like].like is not None:
        raise RequestError(f"arms.{name}.like: {arm.like} is like another arm itself; name that one")
    if arm.equal_time_to is not None:
        if arm.like is None:
            raise RequestError(
                f"arms.{name}: equal_time_to needs `like: ARM`, the same with equal epochs, to know its pace"
            )
        for other in (arm.like, arm.equal_time_to):
            if arms[other].equal_time_to is not None or not arms[other].train:
                raise RequestError(f"arms.{name}: {other} has no time of its own to go by")
    if arm.control is not None and experiment.settings_of(arm.control).get("convert") is not False:
        raise RequestError(f"arms.{name}.control: {arm.control} is no CNN; expected an arm with `convert: false`")
    if arm.model is not None and experiment.start_of(name) == "adapted":
        raise RequestError(f"arms.{name}: {arm.model} is another network than the one that is adapted; give it a start")
    if arm.published_size and "size" in experiment.settings_of(name):
        raise RequestError(f"arms.{name}: it has a size of its own beside published_size; give it one of them")
    if arm.start == "adapted" and experiment.adapt is None:
        raise RequestError(f"arms.{name}.start: there is no `adapt` to start from")


def _maker(experiment: Experiment, name: str) -> Any:
    return lambda: experiment.config(name, experiment.seeds[0])


def known(where: str, name: str, names: Iterable[str]) -> str:
    """The name of an arm; raises `RequestError` with the nearest one if there is none of that name."""
    if name in (listed := list(names)):
        return name
    near = difflib.get_close_matches(name, listed, 1)
    raise RequestError(
        f"{where}: no arm {name!r}; " + (f"did you mean {near[0]}?" if near else f"there are {', '.join(listed)}")
    )
