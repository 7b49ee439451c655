"""Prepare the initial model of a run: load it, fit its classifier to the classes, convert it, freeze parts of it."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from timm.layers import DropPath
from torch import nn

from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.files import checkpoint_file, is_ours, unfinished
from tcnn.checkpoints.opening import as_source, open_checkpoint, open_model
from tcnn.config import FinetuneConfig
from tcnn.conversion.annealing import release
from tcnn.conversion.report import refuse_folded
from tcnn.conversion.surgery import convert, unconverted
from tcnn.errors import CheckpointError, NothingToConvertError, RequestError, WeightsError
from tcnn.models.checks import refuse_computed, refuse_other_dtypes
from tcnn.models.copying import copied
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import input_shape, parameter_count
from tcnn.state import parts
from tcnn.training.preparing.classes import check_outputs, fit_classes, notes_of_files, set_metadata
from tcnn.training.preparing.converted import conversion_at, refuse_conversion, refuse_convolution
from tcnn.training.preparing.settings import drop_path_for, size_for
from tcnn.training.recipe import freezing
from tcnn.training.recipe.freezing import ablate, initialise_untrained
from tcnn.zoo import catalogue
from tcnn.zoo.own_network import network_name
from tcnn.zoo.sources import create_source, create_structure

Converted = Callable[[nn.Module, nn.Module, tuple[int, int]], None]
"""Called with a CNN, its conversion, and the (height, width) of the images."""
MAX_NAMED = 8
"""Largest number of frozen modules that a note lists."""


class Start(NamedTuple):
    """The initial model of a run."""

    model: nn.Module
    size: tuple[int, int]
    """(height, width) in pixels."""
    notes: tuple[str, ...]
    """Notes for the user: a replaced classifier, a rate that the model does not support."""
    trunk: tuple[str, ...] = ()
    """The frozen modules (`freezing`)."""
    origin: str | None = None
    """What the weights of a checkpoint or module were before its conversion, as far as that is known."""
    new_classifier: bool = False
    """Whether the classifier was drawn at random, since the model had one for other classes."""


def prepare(
    source: str | Path | nn.Module,
    config: FinetuneConfig,
    class_names: Sequence[str],
    pretrained: bool = True,
    weights: Path | None = None,
    converted: Converted | None = None,
) -> Start:
    """Load a model, fit its classifier to the classes and convert it: the model before the first step.

    Args:
        source: a tcnn checkpoint, a timm name, `local-dir:PATH`, `hf-hub:ORG/NAME`, or a module, which is not changed.
        class_names: of the training set; a classifier of another width is replaced.
        pretrained, weights: as for `tcnn convert`.
        converted: called right after a CNN was converted, before anything else is done to the result.

    Raises: `RequestError`, and the errors of loading and converting.
    """
    notes: list[str] = []
    origin: str | None = None
    if not isinstance(source, nn.Module):
        source, weights = as_source(source, weights)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if isinstance(source, nn.Module) or source == network_name():
            model, origin = _own(source, weights)
            _check_drop_path(model, config, notes)
        elif is_checkpoint(source):
            model, origin = _load_checkpoint(Path(source), config, notes)
        else:
            model = _build_model(str(source), config, pretrained, weights, notes)
        _refuse_untrainable(model, config)
        if config.init != "default":
            initialise_untrained(model, config, pretrained or weights is not None or origin is not None)
        record = getattr(model, "conversion_report", None)
        if record is not None:
            refuse_folded(record, str(source) if not isinstance(source, nn.Module) else record.base_model, "fine-tune")
        # Where it has no description, the size at which it was trained or converted is its own.
        cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {"input_size": input_shape(model)}
        size = size_for(config, str(cfg.get("architecture")).removeprefix("t_"), cfg)
        new_classifier = fit_classes(model, class_names, size, notes)
        given = bool(gpsa_layers(model))
        if given and not config.convert:
            raise RequestError(
                f"{source}: is a T-CNN already; to train without attention name the CNN it was made from"
            )
        if given and config.convert_at is not None:
            raise RequestError(f"{source}: is a T-CNN already; convert_at needs the CNN it was made from")
        if given:
            name = "the model" if isinstance(source, nn.Module) else str(source)
            refuse_conversion(name, config)
            refuse_convolution(name, model, config)
        if not given and config.convert and config.convert_at is None:
            try:
                cnn, model = model, convert(model, conversion_at(config, size)).model
            except NothingToConvertError as error:
                hint = "" if "--no-convert" in str(error) else "; to train it as it is, give --no-convert"
                raise NothingToConvertError(f"{error}{hint}") from error
            if converted is not None:
                converted(cnn, model, size)
        elif not given and record is None:
            unconverted(model)
        if release(model):
            notes.append("anneal_steps has no say here: the trainer raises τ itself (anneal, anneal_epochs)")
        ablate(model, config)
    check_outputs(model, size, len(class_names))
    trunk = _freeze(model, config, size, notes)
    set_metadata(model, size, class_names)
    notes += notes_of_files(model) if isinstance(source, nn.Module) else []
    return Start(model.train(), size, tuple(notes), trunk, origin, new_classifier)


def _freeze(model: nn.Module, config: FinetuneConfig, size: tuple[int, int], notes: list[str]) -> tuple[str, ...]:
    """Freeze the modules that the configuration names; returns their names."""
    if config.freeze == "none":
        return ()
    if config.freeze == "spatial":
        numbers = freezing.freeze_spatial(model)
        notes.append(
            f"frozen: the filters of depthwise convolutions, {numbers / parameter_count(model):.0%} of the parameters"
        )
        return ()
    trunk = freezing.trunk_of(model, conversion_at(config, size), size)
    numbers = freezing.freeze(model, trunk)
    if not trunk:
        notes.append("freeze: nothing runs before the converted stage, so all of the model learns")
    else:
        total = parameter_count(model)
        named = trunk if len(trunk) <= MAX_NAMED else (*trunk[:3], "…", trunk[-1])
        notes.append(f"frozen: {', '.join(named)}: {numbers / total:.0%} of the parameters")
    return trunk


def is_checkpoint(source: str | Path) -> bool:
    """Whether a name is a file or directory written by tcnn rather than a model to download or build."""
    empty = isinstance(source, str) and Path(source).is_dir() and checkpoint_file(source) is None
    return is_ours(source) and not (empty and unfinished(source) is None)


def in_chans(source: str | Path | nn.Module) -> int:
    """Number of input channels of a model, before it is built."""
    if isinstance(source, nn.Module):
        return input_shape(source)[0]
    if source == network_name():
        return input_shape(create_structure(str(source)))[0]
    source = as_source(source)[0]
    if is_checkpoint(source):
        content = open_checkpoint(source)
        given = content.conversion.model_args.get("in_chans")
        if isinstance(given, int):
            return given
        cfg: dict[str, Any] = content.section("pretrained_cfg") or {}
        return int(cfg.get("input_size", [3])[0])
    entry = catalogue.entries().get(catalogue.architecture(str(source)).partition(".")[0])
    return entry.input_size[0] if entry else input_shape(create_structure(str(source)))[0]


def teacher_for(
    source: str | Path | nn.Module, config: FinetuneConfig, pretrained: bool = True, weights: Path | None = None
) -> nn.Module | None:
    """Create the teacher that the configuration names; `source` is the unchanged model that training starts from."""
    if config.teacher is None:
        return None
    if config.teacher != "source":
        if is_checkpoint(config.teacher):
            return open_model(config.teacher)
        return create_source(config.teacher)
    if isinstance(source, nn.Module):
        return copied(source).eval()
    source, weights = as_source(source, weights)
    if is_checkpoint(source):
        return open_model(str(source))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # what is drawn is what the model begins with
        return create_source(str(source), pretrained, weights)


def _own(source: str | Path | nn.Module, weights: Path | None) -> tuple[nn.Module, str]:
    """A module, or the network of one's own that was named, and what is known of its weights."""
    if isinstance(source, nn.Module):
        refuse_computed(source, "fine-tune")
        return copied(source), "unknown"
    return create_source(str(source), weights=weights), "unknown" if weights is None else "file"


def _load_checkpoint(path: Path, config: FinetuneConfig, notes: list[str]) -> tuple[nn.Module, str]:
    content = open_checkpoint(path)
    report = content.conversion
    origin = content.section("weights") or (content.section("training") or {}).get("weights") or "unknown"
    rate = drop_path_for(config, report.base_model.partition(".")[0], report.parameters_before)
    try:
        return checkpoint.assemble(content, None, str(path), drop_path_rate=rate), origin
    except CheckpointError:
        model = checkpoint.assemble(content, None, str(path))  # raises again if the rate was not what was wrong
        _without_drop_path(report.base_model, config, notes)
        return model, origin


def _build_model(
    name: str, config: FinetuneConfig, pretrained: bool, weights: Path | None, notes: list[str]
) -> nn.Module:
    parameters = parameter_count(create_structure(name))
    rate = drop_path_for(config, name.partition(".")[0], parameters)
    try:
        return create_source(name, pretrained, weights, notes.append, drop_path_rate=rate)
    except WeightsError as error:
        if "drop_path_rate" not in str(error):
            raise
        _without_drop_path(name, config, notes)
        return create_source(name, pretrained, weights, notes.append)


def _without_drop_path(name: str, config: FinetuneConfig, notes: list[str]) -> None:
    if config.drop_path:
        raise RequestError(f"drop_path: {name} has no stochastic depth; set drop_path to 0")
    if config.drop_path is None:
        notes.append(f"{name} has no stochastic depth, so none is used")


def _refuse_untrainable(model: nn.Module, config: FinetuneConfig) -> None:
    """Raise `RequestError` for a model with a state that cannot be trained, or be averaged if it should be."""
    refuse_other_dtypes(model, "fine-tune")
    if config.ema is not None and (extra := parts(model.state_dict()).extra):
        raise RequestError(
            f"ema: expected a model of tensors to average, found {min(extra)}, the extra state of a module; leave ema "
            "out, or let get_extra_state return a tensor"
        )


def _check_drop_path(model: nn.Module, config: FinetuneConfig, notes: list[str]) -> None:
    """Compare the configured stochastic depth with a module's own, which cannot be changed after it was built."""
    own = max((float(module.drop_prob or 0) for module in model.modules() if isinstance(module, DropPath)), default=0.0)
    wanted = config.drop_path
    if wanted is None or math.isclose(wanted, own, rel_tol=1e-6):  # timm keeps rates as float32
        return
    if wanted:
        raise RequestError(
            f"drop_path: a module keeps the stochastic depth that it was built with, {own:g}; build it with "
            f"drop_path_rate={wanted:g}, or leave drop_path out"
        )
    notes.append(f"drop_path: the module keeps the stochastic depth that it was built with, {own:g}")
