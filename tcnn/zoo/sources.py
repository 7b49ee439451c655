"""Create the source CNN from a timm name, a local directory or a hub repository, with the requested weights."""

from collections.abc import Mapping
from pathlib import Path

import timm
import torch
from safetensors import SafetensorError
from timm.models import load_state_dict, parse_model_name
from torch import nn

from tcnn.errors import DownloadError, RequestError, UnknownModelError, WeightsError, one_line
from tcnn.zoo import catalogue
from tcnn.zoo.hub import is_hub_error, offline_if_unreachable, quiet_hub

BUILD_ERRORS = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)
"""Errors that timm and the readers of weights raise for an invalid configuration or file."""


def create_source(
    name: str,
    pretrained: bool = True,
    weights: Path | None = None,
    **model_args: object,
) -> nn.Module:
    """Create a timm model in evaluation mode, with its weights.

    Args:
        name: a timm name (`resnet50d`, `resnet50d.ra2_in1k`), `local-dir:PATH` or `hf-hub:ORG/NAME`.
        pretrained: load the pretrained weights; never replaced by random ones in silence.
        weights: a safetensors or PyTorch file to load instead; read without unpickling.
        model_args: arguments for `timm.create_model` (`num_classes`, `in_chans`, `drop_path_rate`, …); the weights' own
            by default.

    Raises: `UnknownModelError`, `WeightsError`, `DownloadError`, each with one line that says what to do.
    """
    architecture = check_name(name)
    if weights is not None:
        return _with_file(name, Path(weights), model_args)
    if pretrained and architecture is not None and not timm.is_model_pretrained(name):
        raise WeightsError(
            f"{name}: timm has no pretrained weights for it; give --weights FILE, or --no-pretrained for random ones"
        )
    try:
        with offline_if_unreachable(), quiet_hub():
            return timm.create_model(name, pretrained=pretrained, **model_args).eval()
    except FileNotFoundError as error:
        if is_hub_error(error):
            raise _download_error(name, error) from error
        raise WeightsError(f"{name}: {one_line(error)}") from error
    except (OSError, ConnectionError) as error:
        raise _download_error(name, error) from error
    except BUILD_ERRORS as error:
        if is_hub_error(error):
            raise _download_error(name, error) from error
        raise WeightsError(f"{name}: cannot be built with its weights: {one_line(error)}") from error


def create_structure(name: str, num_classes: int | None = None) -> nn.Module:
    """Create a model without its weights: on the meta device, in evaluation mode."""
    check_name(name)
    options: dict[str, object] = {} if num_classes is None else {"num_classes": num_classes}
    try:
        with torch.device("meta"), offline_if_unreachable(), quiet_hub():
            return timm.create_model(name, pretrained=False, **options).eval()
    except OSError as error:
        raise _download_error(name, error) from error
    except BUILD_ERRORS as error:
        raise RequestError(f"{name}: cannot be built: {one_line(error)}") from error


def check_name(name: str) -> str | None:
    """The architecture of a name, or None for a directory or hub repository; raises for anything unknown."""
    try:
        source, identifier = parse_model_name(name)
    except ValueError as error:
        raise RequestError(one_line(error)) from error
    if source == "local-dir" and not (Path(identifier) / "config.json").is_file():
        raise RequestError(f"{name}: expected a directory with config.json and weights, found none at {identifier}")
    if source is not None:
        return None
    architecture, _, tag = identifier.partition(".")
    if not timm.is_model(architecture):
        raise UnknownModelError(catalogue.unknown(name, timm.list_models()))
    tags = [model.partition(".")[2] for model in timm.models.get_arch_pretrained_cfgs(architecture)]
    if tag and tag not in tags:
        raise UnknownModelError(catalogue.unknown_tag(name, tags))
    return str(architecture)


def _with_file(name: str, weights: Path, options: dict[str, object]) -> nn.Module:
    if not weights.is_file():
        raise WeightsError(
            f"{weights}: expected a weights file, found {'a directory' if weights.is_dir() else 'nothing'}"
        )
    try:
        state = load_state_dict(str(weights), weights_only=True)
    except Exception as error:
        raise WeightsError(
            f"{weights}: not readable as safetensors or as PyTorch weights without pickled code ({one_line(error)})"
        ) from error
    _refuse_not_finite(weights, state)
    overlay: dict[str, object] = {
        "file": str(weights),
        "source": "",
    }  # no source: the file, wherever the name came from
    if "num_classes" in options:
        overlay["num_classes"] = options["num_classes"]  # the file's classifier is of this width: it is to be loaded
    if "in_chans" in options:
        overlay["first_conv"] = None  # likewise its first convolution, which timm would make from one of 3 channels
    try:
        return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()
    except BUILD_ERRORS as error:
        fresh = timm.create_model(name, pretrained=False, **options)
        raise WeightsError(f"{weights} does not fit {name}: {_mismatch(fresh, state, error)}") from error


def _mismatch(model: nn.Module, state: dict[str, object], error: Exception) -> str:
    """The first key that differs, in the model's own order."""
    expected = model.state_dict()
    for key, tensor in expected.items():
        if key not in state:
            return f"{key}: expected {tuple(tensor.shape)}, not in the file{_found(expected, state)}"
        found = tuple(getattr(state[key], "shape", ()))
        if found != tuple(tensor.shape):
            classifier = key.split(".")[0] in str((getattr(model, "pretrained_cfg", {})).get("classifier"))
            hint = f"; the file is for {found[0]} classes: num_classes={found[0]}" if classifier and found else ""
            return f"{key}: expected {tuple(tensor.shape)}, found {found}{hint}"
    extra = next((key for key in state if key not in expected), None)
    return f"{extra}: in the file, not in the model" if extra else one_line(error)


def _found(expected: Mapping[str, object], state: Mapping[str, object]) -> str:
    """What is in a file instead, for a message: its first keys, where none is one of the model's."""
    if any(key in expected for key in state):
        return ""
    shown = ", ".join(map(str, list(state)[:3])) + (", …" if len(state) > 3 else "")
    return f", whose keys are {shown}; save the model's own state_dict" if shown else ", which holds nothing"


def _refuse_not_finite(weights: Path, state: Mapping[str, object]) -> None:
    """Raise `WeightsError` for weights that are NaN or infinite: no conversion of them can be verified."""
    for key, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and not tensor.isfinite().all():
            wrong = int((~tensor.isfinite()).sum())
            raise WeightsError(
                f"{weights}: {key}: {wrong} of {tensor.numel()} values are NaN or infinite, as after a training that "
                "diverged; take an earlier checkpoint"
            )


def _download_error(name: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"{name}: the pretrained weights could not be downloaded and are not in the cache ({type(error).__name__}); "
        "connect, fill the cache (HF_HOME) on a connected machine, give --weights FILE, "
        "or --no-pretrained for random ones"
    )
