"""The baseline of a run: the CNN of the same geometry, from the same start, on the same batches, for as many updates.

What a T-CNN gains by fine-tuning is its attention's and the fine-tuning's together. Only beside the CNN that was
fine-tuned in the same way can one tell which of the two it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcnn.checkpoints.checkpoint import load
from tcnn.checkpoints.files import refuse_in_files
from tcnn.checkpoints.opening import open_checkpoint
from tcnn.config import ConversionConfig, FinetuneConfig
from tcnn.conversion.surgery import strideless
from tcnn.errors import NothingToConvertError, RequestError, VerificationError
from tcnn.folding.fold import fold
from tcnn.models.running import gpsa_layers
from tcnn.state import parts
from tcnn.training.preparing.converted import conversion_at
from tcnn.training.preparing.prepare import Start, is_checkpoint, prepare
from tcnn.workflows.pipeline import Source, open_source
from tcnn.zoo.own_network import network_name


def baseline_config(config: FinetuneConfig) -> FinetuneConfig:
    """The same recipe for the CNN; raises `RequestError` if it is one already."""
    if not config.convert:
        raise RequestError("baseline: convert is false, so the CNN itself is trained; leave one of the two out")
    return config.model_copy(update={"convert": False, "convert_at": None, "matching": 0.0})


def baseline_start(
    source: str | Path | nn.Module,
    config: FinetuneConfig,
    class_names: Sequence[str],
    pretrained: bool = True,
    weights: Path | None = None,
) -> Start:
    """The CNN before its first step: in everything that it shares with the T-CNN's start, a new classifier included.

    Args: as for `prepare`, of the T-CNN.

    Raises: `RequestError` for a checkpoint whose CNN cannot be found again; what `prepare` raises.
    """
    tuned = prepare(source, config, class_names, pretrained, weights)
    cnn, conversion = _original(source, config, pretrained)
    own = baseline_config(config).model_copy(update={"size": tuned.size})
    start = prepare(cnn, own, class_names, pretrained, weights).model
    if conversion.stride != "keep":
        start = strideless(start, conversion_at(config.model_copy(update={"conversion": conversion}), tuned.size))
    shared = parts(tuned.model.state_dict()).tensors
    with torch.no_grad():
        for name, tensor in parts(start.state_dict()).tensors.items():
            if name in shared and shared[name].shape == tensor.shape:
                tensor.copy_(shared[name])
    return tuned._replace(model=start.train(), trunk=())


def check_baseline(source: str | Path | nn.Module) -> None:
    """Raise `RequestError` for a model that has no CNN to be trained beside it, before anything is trained."""
    if isinstance(source, nn.Module):
        if gpsa_layers(source):
            raise RequestError("baseline: the module is a T-CNN already; give the CNN that it was made from")
    elif is_checkpoint(source):
        try:
            _recorded(Path(source))
        except RequestError as error:
            raise RequestError(f"baseline: {source}: {error}; leave the baseline out, or name the CNN") from error


def _original(
    source: str | Path | nn.Module, config: FinetuneConfig, pretrained: bool
) -> tuple[str | Path | nn.Module, ConversionConfig]:
    """The CNN, and how it was or is to be converted."""
    if isinstance(source, nn.Module):
        if gpsa_layers(source):
            raise RequestError("the CNN that this module was made from is not known")
        return source, config.conversion
    if not is_checkpoint(source):
        return source, config.conversion
    content = open_checkpoint(source)
    recorded = _recorded(Path(source))
    if recorded is None:
        return source, config.conversion
    if recorded.weights == "file":
        return _unconverted(Path(source)), content.conversion.config
    random = recorded.weights == "random" or not pretrained
    own = network_name()
    args: dict[str, Any] = {} if own else dict(content.conversion.model_args)
    refuse_in_files(str(source), args)
    if recorded.num_classes is not None and not own:
        args["num_classes"] = recorded.num_classes
    name = own or recorded.name
    model, origin = open_source(name, not random, None, recorded.seed, torch.device("cpu"), **args)
    if pretrained and origin.digest != recorded.digest:
        raise RequestError(f"the weights found for {name} are not those that it was converted from")
    return model, content.conversion.config


def _recorded(path: Path) -> Source | None:
    """Where the CNN of a checkpoint comes from; None if the checkpoint is a CNN."""
    content = open_checkpoint(path)
    if not content.conversion.layers:
        return None
    if "training" in content.metadata:
        raise RequestError("it has been trained since it was converted, so no CNN starts where it does")
    if "source" not in content.metadata:
        raise RequestError("it was saved from Python and records no source")
    recorded = Source.model_validate(content.section("source"))
    if recorded.weights == "file" and content.conversion.config.stride != "keep":
        raise RequestError("its CNN's weights came from a file of one's own, and its stride is another one")
    return recorded


def _unconverted(path: Path) -> nn.Module:
    """The CNN of a checkpoint that has not been trained, had back from the conversion itself: exactly."""
    try:
        model, report = fold(load(path))
    except (NothingToConvertError, VerificationError) as error:
        raise RequestError(
            f"its CNN's weights came from a file of one's own, and cannot be had back: {error}"
        ) from error
    if not report.complete:
        raise RequestError("its CNN's weights came from a file of one's own, and cannot be had back")
    return model
