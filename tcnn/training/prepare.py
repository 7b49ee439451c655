"""From a checkpoint or a model's name to the model that training starts with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tcnn.checkpoints import checkpoint
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.conversion.annealing import release
from tcnn.conversion.report import refuse_folded
from tcnn.conversion.surgery import convert, unconverted
from tcnn.errors import CheckpointError, RequestError, WeightsError, one_line
from tcnn.models.trace import input_shape
from tcnn.training.recipe import freezing
from tcnn.training.recipe.by_model import drop_path_for, size_for
from tcnn.training.recipe.optim import gpsa_layers
from tcnn.zoo import catalogue
from tcnn.zoo.sources import create_source

MOST_NAMED = 8
"""Frozen modules that a note names one by one."""


class Start(NamedTuple):
    """What training starts with."""

    model: nn.Module
    size: tuple[int, int]
    """(height, width) in pixels."""
    notes: tuple[str, ...]
    """What the user should know: a replaced classifier, a rate that the model does not take."""
    trunk: tuple[str, ...] = ()
    """The modules that do not learn (`freezing`)."""


def prepare(
    source: str | Path | nn.Module,
    config: FinetuneConfig,
    class_names: Sequence[str],
    pretrained: bool = True,
    weights: Path | None = None,
) -> Start:
    """Open, fit to the classes, convert: the model as the first step finds it.

    Args:
        source: a tcnn checkpoint, a timm name, `local-dir:PATH`, `hf-hub:ORG/NAME`, or a module, which is not changed.
        class_names: the training set's; a classifier of another width is replaced.
        pretrained, weights: as for `tcnn convert`.

    Raises: `RequestError` and what opening and converting raise.
    """
    notes: list[str] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if isinstance(source, nn.Module):
            model = _copy(source)
        elif is_checkpoint(source):
            model = _checkpoint(Path(source), config, notes)
        else:
            model = _named(str(source), config, pretrained, weights, notes)
        record = getattr(model, "conversion_report", None)
        if record is not None:
            refuse_folded(record, str(source) if not isinstance(source, nn.Module) else record.base_model, "fine-tune")
        cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        size = size_for(config, str(cfg.get("architecture")).removeprefix("t_"), cfg)
        _fit_classes(model, class_names, notes)
        converted = bool(gpsa_layers(model))
        if converted and not config.convert:
            raise RequestError(
                f"{source}: is a T-CNN already; to train without attention name the CNN it was made from"
            )
        if converted and config.convert_at is not None:
            raise RequestError(f"{source}: is a T-CNN already; convert_at needs the CNN it was made from")
        if not converted and config.convert and config.convert_at is None:
            model = convert(model, conversion_at(config, size)).model
        elif not converted:
            unconverted(model)
        if release(model):
            notes.append("anneal_steps has no say here: the trainer raises τ itself (anneal, anneal_epochs)")
        ablate(model, config)
    if getattr(model, "num_classes", None) is None:
        _check_outputs(model, input_shape(model, size), len(class_names))
    trunk = _frozen(model, config, size, notes)
    _remember(model, size, class_names)
    return Start(model.train(), size, tuple(notes), trunk)


def _frozen(model: nn.Module, config: FinetuneConfig, size: tuple[int, int], notes: list[str]) -> tuple[str, ...]:
    """Freeze what the configuration says; its names."""
    if config.freeze == "none":
        return ()
    trunk = freezing.trunk_of(model, conversion_at(config, size), size)
    numbers = freezing.freeze(model, trunk)
    if not trunk:
        notes.append("freeze: nothing runs before the converted stage, so all of the model learns")
    else:
        total = sum(parameter.numel() for parameter in model.parameters())
        named = trunk if len(trunk) <= MOST_NAMED else (*trunk[:3], "…", trunk[-1])
        notes.append(f"frozen: {', '.join(named)}: {numbers / total:.0%} of the parameters")
    return trunk


def ablate(model: nn.Module, config: FinetuneConfig) -> None:
    """The comparisons of the paper that change a T-CNN at its start: random filters, no gating, frozen layers."""
    for layer in gpsa_layers(model).values():
        if config.filters == "random":
            with torch.no_grad():
                kept = {name: tensor.clone() for name, tensor in layer.state_dict().items() if name != "proj"}
                layer.reset_parameters(float(layer.position_temperature))
                layer.load_state_dict(kept, strict=False)
        if not config.gating:
            layer.gating_param.data.zero_()
            layer.gating_param.requires_grad_(False)
        if config.freeze_gpsa:
            layer.requires_grad_(False)


def is_checkpoint(source: str | Path) -> bool:
    """Whether a name means a file or directory written by tcnn rather than a model to download or build."""
    path = Path(source)
    if path.suffix == ".safetensors" or isinstance(source, Path):
        return True
    return path.is_dir() and (path / "model.safetensors").is_file()


def in_chans(source: str | Path | nn.Module) -> int:
    """Colour channels of the images that a model takes, before it is built."""
    if isinstance(source, nn.Module):
        first = next((m for m in source.modules() if isinstance(m, nn.Conv2d)), None)
        return first.in_channels if first is not None else 3
    if is_checkpoint(source):
        content = checkpoint.read(source)
        given = content.conversion.model_args.get("in_chans")
        return (
            int(given)
            if isinstance(given, int)
            else (content.section("pretrained_cfg") or {}).get("input_size", [3])[0]
        )
    entry = catalogue.entries().get(str(source).partition(".")[0])
    return entry.input_size[0] if entry else 3


def teacher_for(
    source: str | Path | nn.Module, config: FinetuneConfig, pretrained: bool = True, weights: Path | None = None
) -> nn.Module | None:
    """The teacher that the configuration asks for: `source` is the model that training starts from, as it is."""
    if config.teacher is None:
        return None
    if config.teacher != "source":
        if is_checkpoint(config.teacher):
            return checkpoint.load(config.teacher)
        return create_source(config.teacher)
    if isinstance(source, nn.Module):
        return _copy(source).eval()
    return checkpoint.load(source) if is_checkpoint(source) else create_source(str(source), pretrained, weights)


def conversion_at(config: FinetuneConfig, size: tuple[int, int]) -> ConversionConfig:
    """The conversion, traced at the size of training: at the model's own a map may be too small, or too large."""
    own = config.conversion
    return own if own.input_size else own.model_copy(update={"input_size": size})


def _copy(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model)


def _checkpoint(path: Path, config: FinetuneConfig, notes: list[str]) -> nn.Module:
    content = checkpoint.read(path)
    report = content.conversion
    rate = drop_path_for(config, report.base_model.partition(".")[0], report.parameters_before)
    try:
        return checkpoint.assemble(content, None, str(path), drop_path_rate=rate)
    except CheckpointError:
        model = checkpoint.assemble(content, None, str(path))  # raises again if the rate was not what was wrong
        _no_drop_path(report.base_model, config, notes)
        return model


def _named(name: str, config: FinetuneConfig, pretrained: bool, weights: Path | None, notes: list[str]) -> nn.Module:
    from tcnn.zoo.sources import create_structure

    parameters = sum(p.numel() for p in create_structure(name).parameters())
    rate = drop_path_for(config, name.partition(".")[0], parameters)
    try:
        return create_source(name, pretrained, weights, drop_path_rate=rate)
    except WeightsError as error:
        if "drop_path_rate" not in str(error):
            raise
        _no_drop_path(name, config, notes)
        return create_source(name, pretrained, weights)


def _no_drop_path(name: str, config: FinetuneConfig, notes: list[str]) -> None:
    if config.drop_path:
        raise RequestError(f"drop_path: {name} has no stochastic depth; set drop_path to 0")
    if config.drop_path is None:
        notes.append(f"{name} has no stochastic depth, so none is used")


def _fit_classes(model: nn.Module, class_names: Sequence[str], notes: list[str]) -> None:
    classes = len(class_names)
    found = getattr(model, "num_classes", None)
    if found == classes:
        cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
        known = cfg.get("label_names")
        if known and list(known) != list(class_names):
            notes.append(f"the classifier was trained on other classes ({known[0]}, …); it is kept as a start")
        return
    if not hasattr(model, "reset_classifier"):
        if found is None:
            return  # `_check_outputs` will ask it
        raise RequestError(
            f"{type(model).__name__} has {found} classes, the data set has {classes}, and no reset_classifier to "
            "replace its head; give it a head of that width"
        )
    model.reset_classifier(classes)  # type: ignore[operator]
    notes.append(f"classifier replaced: {found} → {classes} classes")


def _check_outputs(model: nn.Module, image: tuple[int, int, int], classes: int) -> None:
    """Ask a module that does not say how many classes it has; raises `RequestError` if it is another number."""
    place = next(model.parameters())
    try:
        with torch.no_grad():
            found = tuple(model.eval()(torch.zeros(1, *image, device=place.device, dtype=place.dtype)).shape)
    except (RuntimeError, ValueError, AttributeError) as error:
        raise RequestError(f"{type(model).__name__}: cannot run on an image of {image} ({one_line(error)})") from error
    if found != (1, classes):
        raise RequestError(
            f"{type(model).__name__}: expected an output of (1, {classes}), as the data set has {classes} classes, "
            f"found {found}; give it a head of that width"
        )


def _remember(model: nn.Module, size: tuple[int, int], class_names: Sequence[str]) -> None:
    """What the files of this run say of the model: the size it is trained at, and its classes."""
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg:
        own = {"input_size": input_shape(model, size), "test_input_size": None, "num_classes": len(class_names)}
        merged = {**cfg, **own, "label_names": list(class_names)}
        model.pretrained_cfg = model.default_cfg = merged  # type: ignore[assignment]
