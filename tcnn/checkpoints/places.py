"""Where a checkpoint lies: a file, a directory in timm's hub layout, or the directory of a run. Without torch."""

from collections.abc import Mapping
from pathlib import Path

from tcnn.zoo import catalogue
from tcnn.zoo.names import cnn_of, is_weights_file

CHECKPOINTS = ("best.safetensors", "last.safetensors", "converted.safetensors", "model.safetensors")
"""Checkpoint files of a run, or of a job, in order of preference."""


def checkpoint_file(path: str | Path) -> Path | None:
    """The checkpoint that a name stands for, or None: of a run's directory the best one."""
    path = Path(path)
    if not path.is_dir():
        return path if path.is_file() else None
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    found = (place / name for place in (path, path / "run") for name in CHECKPOINTS)
    return next((file for file in found if file.is_file() and not _untrained(file)), None)


def unfinished(path: str | Path) -> str | None:
    """What is said of the directory of a run that was stopped in its first epoch, before there is a model, or None."""
    path = Path(path)
    run = next((place for place in (path, path / "run") if (place / "resume").is_dir()), None)
    if run is None or not (run / "config.json").is_file() or checkpoint_file(path) is not None:
        return None
    first = run / "converted.safetensors"
    start = f", or name {first}, with which it began" if first.is_file() else ""
    return (
        f"{path}: a run whose first epoch has not ended, so that there is no model in it yet; go on with it "
        f"(tcnn finetune … --resume){start}"
    )


def not_a_model(file: Path, metadata: Mapping[str, object]) -> str:
    """What is said of a safetensors file in which no conversion is recorded: what it is, and what to do."""
    if "position" in metadata and "scalars" in metadata:  # as tcnn.training.runs.resume writes them
        return (
            f"{file}: a resume point of a run, not a model; name the run's directory, whose checkpoints are models, or "
            "go on with it: tcnn finetune … --resume"
        )
    return (
        f"{file}: a safetensors file, but not written by tcnn; convert its model first: "
        "tcnn convert MODEL OUT --weights FILE"
    )


def is_ours(name: str | Path) -> bool:
    """Whether a name is that of a file or directory of tcnn, or of timm's train.py, not of a model to be built."""
    path = Path(name)
    if path.suffix == ".safetensors" or isinstance(name, Path):
        return True
    named = cnn_of(str(name)).partition(".")[0] in catalogue.entries()  # a folder may be called resnet18, too
    return is_weights_file(path) or (path.is_dir() and (checkpoint_file(path) is not None or not named))


def is_stored(name: str | Path) -> bool:
    """Whether a name is that of a file or directory of tcnn that is there."""
    return is_ours(name) and Path(name).exists() and not is_weights_file(name)


def _untrained(file: Path) -> bool:
    """Whether it is what a run began with: a run that has trained nothing yet has no checkpoint."""
    return file.name == "converted.safetensors" and file.with_name("config.json").is_file()
