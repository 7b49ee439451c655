"""Files of checkpoints, without torch: where they lie, the model arguments that they may hold, the run that trained
them."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from tcnn.errors import CheckpointError, RequestError, one_line, readable, shorten
from tcnn.zoo import catalogue
from tcnn.zoo.catalogue import cnn_of, is_weights_file

if TYPE_CHECKING:
    from torch import nn

CHECKPOINTS = ("best.safetensors", "last.safetensors", "converted.safetensors", "model.safetensors")
"""Checkpoint files of a run, or of a job, in order of preference."""
FORBIDDEN = re.compile(r"pretrained.*|checkpoint_path|cache_dir|scriptable|exportable|no_jit|.*_fn|kwargs_filter")
"""Arguments by which timm would read other files, or call what they name."""
LEARNED_FROM = "learned_from"
"""The section in which a model that was loaded and is saved again, by another hand than a run's, keeps the record."""


def as_section(name: object, value: object) -> str:
    """A section that a user gives, as JSON; raises `RequestError` for a name or a value that no file can have."""
    if not isinstance(name, str) or name != readable(name):
        raise RequestError(f"section {name!a}: expected a name, text that UTF-8 has")
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:  # of another kind, within itself, or too deep
        raise RequestError(f"section {name!r}: expected plain JSON values ({one_line(error)})") from error
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise RequestError(
            f"section {name!r}: expected plain JSON values, found NaN or infinity, which JSON does not have; give None"
        ) from error


def finite(value: Any) -> Any:
    """Plain values with None in the place of NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_json(text: str) -> Any:
    """What a section says; NaN and infinity, as older releases wrote them, are None."""
    return json.loads(text, parse_constant=lambda constant: None)


def checkpoint_file(path: str | Path) -> Path | None:
    """The checkpoint that a name stands for, or None: of a run's directory the best one."""
    path = Path(path)
    if not path.is_dir():
        return path if path.is_file() else None
    if (path / "model.safetensors").is_file():
        return path / "model.safetensors"
    found = (place / name for place in (path, path / "run") for name in CHECKPOINTS)
    return next((file for file in found if file.is_file() and not _untrained(file)), None)


def existing(path: Path) -> Path:
    """The file that would be read; raises `CheckpointError` if there is none, and names a run in the directory."""
    file = checkpoint_file(path)
    if file is not None:
        return file
    if not path.is_dir():
        if str(path).startswith(("hf-hub:", "hf_hub:", "local-dir:")):
            raise CheckpointError(
                f"{path}: expected a file or a directory; a name as timm has it is opened by "
                f'timm.create_model("{path}", pretrained=True), with tcnn imported'
            )
        raise CheckpointError(f"{path}: expected a tcnn checkpoint, found nothing")
    if begun := unfinished(path):
        raise CheckpointError(begun)
    below = next((place for place in sorted(path.iterdir()) if place.is_dir() and checkpoint_file(place)), None)
    hint = "" if below is None else f"; {below} has one"
    raise CheckpointError(f"{path}: expected a tcnn checkpoint, found no model.safetensors{hint}")


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


def forbidden(arguments: Mapping[str, object]) -> str | None:
    """The first argument that a file must not contain, or None. A file that loads another could have it unpickled."""
    for name, value in arguments.items():
        if FORBIDDEN.fullmatch(name) or not _plain(value):
            return name
    return None


def refuse_in_files(name: str | Path, arguments: Mapping[str, object]) -> None:
    """Raise `CheckpointError` for arguments of a file that no file may contain."""
    argument = forbidden(arguments)
    if argument is not None:
        raise CheckpointError(f"{name}: the model argument {shorten(ascii(argument), 60)} is not allowed in a file")


def _plain(value: object, depth: int = 3) -> bool:
    if isinstance(value, list | tuple):
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return depth > 0 and all(
            not FORBIDDEN.fullmatch(str(key)) and _plain(item, depth - 1) for key, item in value.items()
        )
    return value is None or isinstance(value, bool | int | float | str)


def training_record(file: Path) -> dict[str, Any] | None:
    """The record of the run of ours that made the weights in a file, or None."""
    try:
        with safe_open(file, framework="numpy") as handle:
            return record_in(handle.metadata() or {})
    except (SafetensorError, OSError, ValueError):
        return None


def record_in(metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """The record in a file's metadata, or None.

    It stands in `training`; where a CNN was trained and then converted, or folded from such a conversion, in `source`;
    in a file that was loaded and saved again in `learned_from`.
    """
    try:
        places = (
            from_json(metadata.get("training", "null")),
            from_json(metadata.get("source", "{}")).get("training"),
            from_json(metadata.get(LEARNED_FROM, "null")),
        )
    except (ValueError, AttributeError):
        return None
    return next((found for found in places if isinstance(found, dict)), None)


def keep_record(model: "nn.Module", metadata: Mapping[str, str]) -> None:
    """Leave the record of a file's metadata, if it has one, on the model that was loaded from it."""
    if (record := record_in(metadata)) is not None:
        model.training_record = {key: value for key, value in record.items() if key != "metrics"}  # type: ignore[assignment]


def record_kept(model: "nn.Module") -> dict[str, Any] | None:
    """The record that a loaded model has brought along, without what was measured of it: it may have learned since."""
    record = getattr(model, "training_record", None)
    return record if isinstance(record, dict) else None


def label_names(model: "nn.Module") -> tuple[str, ...]:
    """The names of a model's classes, where known: from timm's metadata, or from the record of a training of ours.

    A module of one's own has no such metadata; what it learned it knows by the record alone.
    """
    cfg = getattr(model, "pretrained_cfg", None) or {}
    return tuple(cfg.get("label_names") or (record_kept(model) or {}).get("class_names") or ())


def licence_of(cfg: Mapping[str, Any], weights: object, earlier: object = None) -> str | None:
    """timm's licence, which is that of its pretrained weights; None for random ones, and for a file of anyone's.

    Args:
        cfg: timm's `pretrained_cfg`.
        weights: `pretrained`, `random`, `file` or `module`.
        earlier: the same of the training that the file came from, if it was one of ours.
    """
    others = weights in ("random", "file", "module") and earlier != "pretrained"
    return None if others else cfg.get("license")
