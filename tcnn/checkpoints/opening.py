"""Open a model by whatever a user names: a checkpoint, a run, a file of timm's train.py, a timm name, a repository."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tcnn.checkpoints.checkpoint import Checkpoint, assemble, contents, of_contents, read
from tcnn.checkpoints.files import existing, is_ours, refuse_in_files
from tcnn.config.conversion import OF_TRAINING
from tcnn.conversion.report import ConversionReport
from tcnn.errors import CheckpointError, RequestError, shorten
from tcnn.hugging_face import downloaded, repository_of
from tcnn.zoo import catalogue
from tcnn.zoo import weights as weights_files
from tcnn.zoo.catalogue import canonical, cnn_of, is_converted, is_weights_file, weights_file
from tcnn.zoo.sources import Say, check_name, create_source

ARCHITECTURE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")
"""A timm name: a file must not name a directory or repository to be opened."""
Opener = Callable[..., nn.Module]
"""Makes a model of its name; with `weights` a file's, where one is named."""


def open_model(name: str, weights: Path | None = None, say: Say = lambda note: None, **model_args: Any) -> nn.Module:
    """A T-CNN or a CNN with its weights, in evaluation mode.

    Args:
        name: a tcnn checkpoint, a run's directory, a file of timm's train.py, a timm name, `t_` before it or not,
            `local-dir:PATH` or `hf-hub:ORG/NAME`; or that of the network of one's own that was named.
        weights: a file that has the weights; `name` is then what a model is built of.
        say: called with what was inferred.
        model_args: arguments for `timm.create_model`; only for what is built of a name, since a file records its own.

    Raises: `CheckpointError`, `RequestError`, `DownloadError`.
    """
    if weights is not None and is_ours(name):
        raise RequestError(f"--weights: {name} brings weights of its own; leave it out, or name the architecture")
    if not is_ours(name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # what a network of one's own draws is what `convert` draws with its default seed
            return create_source(name, weights=weights, say=say, **model_args)
    refuse_arguments(name, model_args)
    return _of_train(Path(name), say) if is_weights_file(name) else assemble(read(name), None, str(name))


def weights_of_one(models: Sequence[str | nn.Module], weights: object) -> Path:
    """The file with the weights of the one model; raises `RequestError` where there are several, or it has its own."""
    if len(models) > 1:
        raise RequestError("--weights: belong to one model; name one, or evaluate one after the other")
    for model in models:
        if isinstance(model, nn.Module):
            raise RequestError(f"--weights: {type(model).__name__} brings weights of its own; leave it out")
    return weights_file(weights)


def check_exists(name: str) -> None:
    """Raise what `open_model` does where there is nothing of this name, without opening what there is."""
    if not is_ours(name):
        check_name(canonical(name))
    elif not is_weights_file(name):
        existing(Path(name))


def refuse_arguments(name: str | Path, model_args: Mapping[str, object]) -> None:
    """Raise `RequestError` for model arguments beside a file that records those of its model."""
    if model_args:
        raise RequestError(
            f"--model-kwargs: {name} records what its model was built with; leave {', '.join(model_args)} out"
        )


def open_checkpoint(
    name: str | Path, weights: Path | None = None, say: Say = lambda note: None, **model_args: Any
) -> Checkpoint:
    """A T-CNN as a checkpoint; names and arguments as for `open_model`.

    Raises: `CheckpointError` for a model in which nothing is converted, and the errors of `open_model`.
    """
    path = Path(name)
    if weights is None and is_ours(name) and not is_weights_file(path):
        refuse_arguments(name, model_args)
        return read(path)
    repository = None if is_ours(name) else repository_of(str(name))
    if weights is None and repository is not None and not model_args:
        return read(downloaded(str(name), *repository))
    plain = canonical(str(name))
    if weights is None and not is_ours(name) and check_name(plain) in catalogue.entries():
        raise CheckpointError(
            f"{name}: a CNN, in which nothing is converted; its T-CNN is t_{plain}, which tcnn convert writes"
        )
    model = open_model(str(name), weights, say, **model_args)
    if not isinstance(getattr(model, "conversion_report", None), ConversionReport):
        raise CheckpointError(f"{name}: nothing in it is converted; convert it first: tcnn convert")
    sections: dict[str, object] = {"weights": "file"}
    if weights is None and is_converted(str(name)):
        sections = {"weights": "pretrained", "source": {"name": cnn_of(str(name)), "weights": "pretrained"}}
    return of_contents(*contents(model, None, sections))


def as_source(name: str | Path, weights: Path | None = None) -> tuple[str | Path, Path | None]:
    """The architecture and the weights file that a file of timm's train.py stands for, if it is a CNN's.

    Anything else is returned as it is.
    """
    if not is_weights_file(name):
        return name, weights
    architecture, args = architecture_of(Path(name))
    if args and not is_converted(architecture):
        raise RequestError(
            f"{name}: {architecture} built with {', '.join(args)}, which training would not know of; convert it first, "
            f"which records them: tcnn convert {name} OUT"
        )
    return (name, weights) if is_converted(architecture) else (architecture, Path(name))


def _of_train(path: Path, say: Say) -> nn.Module:
    """The model of a file that timm's train.py wrote: it names the architecture, and what it was built with."""
    found = weights_files.read(path)
    architecture, options = _architecture(path, found), found.arguments
    args = _arguments(path, found)
    args |= {"num_classes": options["num_classes"]} if options.get("num_classes") else {}
    model = create_source(architecture, weights=path, say=say, found=found, **args)
    side = options.get("img_size")
    size = options.get("input_size") or ([3, side, side] if side else None)
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg and isinstance(size, list | tuple) and len(size) == 3:  # what it was trained at is what it is made for
        cfg.update(input_size=tuple(int(number) for number in size), test_input_size=None)
    return model


def architecture_of(path: Path) -> tuple[str, dict[str, Any]]:
    """The timm name of the model whose weights a file of timm's train.py has, and its arguments but for the classes.

    Raises: `CheckpointError`.
    """
    found = weights_files.read(path)
    return _architecture(path, found), _arguments(path, found)


def _arguments(path: Path, found: weights_files.WeightsFile) -> dict[str, Any]:
    """What timm's train.py built a file's model with; raises `CheckpointError` for what no file may ask for."""
    args: dict[str, Any] = dict(found.arguments.get("model_kwargs") or {})
    args = {name: value for name, value in args.items() if name not in OF_TRAINING}  # it is over
    if found.arguments.get("in_chans"):
        args["in_chans"] = found.arguments["in_chans"]
    refuse_in_files(path, args)
    return args


def _architecture(path: Path, found: weights_files.WeightsFile) -> str:
    if found.architecture is None:
        raise CheckpointError(f"{path}: weights that do not name their model; name it: MODEL --weights {path}")
    if not ARCHITECTURE.fullmatch(found.architecture):
        raise CheckpointError(
            f"{path}: of the model {shorten(ascii(found.architecture), 60)}, which is no timm name; name its "
            f"architecture: MODEL --weights {path}"
        )
    return found.architecture
