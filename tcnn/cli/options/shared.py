"""Options that several commands have, each with its type, its help and its placeholder; the model that they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tcnn.errors import RequestError

T_CNN = (
    "A checkpoint, a run's directory, a timm name prefixed with t_, hf-hub:ORG/NAME, or a checkpoint of timm's "
    "train.py."
)
"""What a command takes for a T-CNN."""
ANY_MODEL = (
    "A checkpoint, a run's directory, a timm name, local-dir:PATH, hf-hub:ORG/NAME, or a checkpoint of timm's train.py."
)
"""What a command takes for any model."""
PRESETS = (
    "Settings to start from. paper: 50 epochs, batches of 1024, lr 1e-4, DeiT's augmentation, τ rises to 1; quick: 5 "
    "epochs, batches of 64, lr 5e-4, plain crops, τ is fixed and 4 content heads are trained; cifar: like quick, but "
    "20 epochs, batches of 128, lr 2e-3, averaged weights, 32 pixels."
)


def _network(context: typer.Context, name: str | None) -> str | None:
    """Have the network that was named be that of the files, for as long as the command runs."""
    if name is not None:
        from tcnn.zoo.own_network import network_named

        context.with_resource(network_named(name))
    return name


TcnnCheckpoint = Annotated[str, typer.Argument(help=T_CNN, metavar="CKPT")]
AnyCheckpoint = Annotated[str, typer.Argument(help=ANY_MODEL, metavar="CKPT")]
AnyModel = Annotated[str | None, typer.Argument(help=ANY_MODEL, metavar="MODEL", show_default=False)]
Pretrained = Annotated[bool, typer.Option("--pretrained/--no-pretrained", help="Pretrained or random weights.")]
ModelKwargs = Annotated[
    list[str] | None,
    typer.Option("--model-kwargs", help="Arguments of timm's create_model.", metavar="KEY=VALUE"),
]

Network = Annotated[
    str | None,
    typer.Option(
        "--module",
        help="For files and runs of a network that timm does not know: the function or class that builds it.",
        metavar="PACKAGE.MODULE:NAME",
        callback=_network,
    ),
]

NetworkOrFiles = Annotated[
    str | None,
    typer.Option(
        "--module",
        help="Begin with a network that timm does not know: the function or class that builds it, in the place of "
        "MODEL; beside a MODEL that is a file or run, what builds that one's.",
        metavar="PACKAGE.MODULE:NAME",
        callback=_network,
    ),
]

Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Tolerance = Annotated[
    float | None, typer.Option(help="Largest relative error allowed in float32 (default 1e-5).", metavar="E")
]
Evaluations = Annotated[
    list[Path] | None, typer.Option(help="Output of `tcnn evaluate --json`; repeatable.", metavar="FILE")
]
CropPct = Annotated[
    float | None,
    typer.Option(help="Fraction of the resized image that the crop keeps; default: the model's own.", metavar="F"),
]
Amp = Annotated[str, typer.Option(help="float32, bfloat16 or float16.", metavar="DTYPE")]
DeviceName = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", metavar="D")]

# A training's settings, each None where its configuration decides.
Validation = Annotated[
    str | None, typer.Option(help="Validation images; default: the validation split of --data.", metavar="DATASET")
]
Preset = Annotated[str, typer.Option(help=PRESETS, metavar="NAME")]
ConfigFile = Annotated[Path | None, typer.Option(help="Settings from a YAML or JSON file.", metavar="FILE")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the training set.", metavar="N")]
BatchSize = Annotated[int | None, typer.Option(help="Images per optimizer step.", metavar="N")]
LearningRate = Annotated[float | None, typer.Option(help="Learning rate after the warm-up.", metavar="R")]
Pixels = Annotated[str | None, typer.Option(help="Pixels: 224 or 224x160 (height × width).", metavar="S")]
ConvertAt = Annotated[
    int | None, typer.Option(help="Train the CNN, convert it at this epoch, continue.", metavar="EPOCH")
]
Anneal = Annotated[
    str | None,
    typer.Option(help="warmup: τ rises during the warm-up; none: τ starts at 1; hold: τ stays fixed.", metavar="HOW"),
]
Fraction = Annotated[
    float | None, typer.Option(help="Class-balanced fraction of the training set; epochs × 1/F.", metavar="F")
]
Teacher = Annotated[
    str | None, typer.Option(help="Distil from `source`, the CNN itself, or from another model.", metavar="MODEL")
]
Seed = Annotated[int | None, typer.Option(help="Random seed.", metavar="N")]
Workers = Annotated[int | None, typer.Option(help="Processes that load images.", metavar="N")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.", metavar="D")]
RefusedModelKwargs = Annotated[list[str] | None, typer.Option("--model-kwargs", hidden=True)]
"""Taken only to be refused with a reason (`refusals`)."""


def given(**options: Any) -> dict[str, Any]:
    """The options that were given: those that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def beginning(model: str | None, module: str | None) -> str:
    """The model's name: MODEL, or that of the network of one's own; raises `RequestError` for two networks.

    Beside MODEL, `--module` says of which network that file or run is.
    """
    from tcnn.checkpoints.files import is_ours
    from tcnn.zoo.catalogue import is_weights_file

    if model is None:
        if module is None:
            raise typer.BadParameter("missing; name a model, or what builds it with --module", param_hint="MODEL")
        return module
    if module is not None and is_weights_file(model):
        raise RequestError(
            f"{model}: weights, whose network --module names; give them with --weights {model}, in the place of MODEL"
        )
    if module is not None and not is_ours(model):
        raise RequestError(f"--module: builds the network, and {model} names another one; leave one of the two out")
    return model


def with_output(model: str | None, output: Path | None, module: str | None) -> tuple[str | None, Path | None]:
    """MODEL and OUT: beside `--module` one name alone is OUT, unless it is a run's, or that of another network."""
    if module is None or model is None or output is not None or _is_run(model) or _is_other(model):
        return model, output
    return None, Path(model)


def is_built(given: Mapping[str, Any]) -> bool:
    """Whether a command, by its parameters, begins with the network of `--module` itself, not with its file or run."""
    model, module = given.get("model"), given.get("module")
    if "output" in given:
        model, _ = with_output(model, given["output"], module)
    return module is not None and model is None


def _is_run(name: str) -> bool:
    from tcnn.checkpoints.files import checkpoint_file

    file = checkpoint_file(name)
    return Path(name).is_dir() and file is not None and file.name != "model.safetensors"


def _is_other(name: str) -> bool:
    """Whether a name is that of a model of timm's or of the Hub's, or of a file of weights."""
    from tcnn.zoo.catalogue import cnn_of, entries, is_weights_file

    known = cnn_of(name).partition(".")[0] in entries() and not Path(name).exists()
    return known or is_weights_file(name) or name.startswith(("hf-hub:", "hf_hub:", "local-dir:"))
