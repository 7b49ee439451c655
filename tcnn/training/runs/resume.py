"""Resume points: one safetensors file from which an interrupted run continues bit for bit.

Everything random in training is a function of (seed, epoch, position in the epoch), see `order`, so the position stands
for the state of every random generator. Learning rate and τ are functions of it, too. The file contains
the rest: weights, moving average, optimizer state, the loss scaler, the convolutions that layers are matched with, and
the counters of `Position`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from tcnn.errors import CheckpointError, RequestError, one_line, shorten
from tcnn.files import replacing
from tcnn.state import State, of_file, parts, unshared
from tcnn.training.recipe.optim import group_counters, named_groups, parameter_states
from tcnn.version import __version__


class Position(BaseModel):
    """Position of a run: the next step, and the sums over the current epoch so far."""

    model_config: ClassVar[ConfigDict] = ConfigDict(validate_assignment=True)

    epoch: int = 0
    """Current epoch, from 0."""
    step: int = 0
    """The next step of this epoch; equal to the steps of an epoch when only its validation is missing."""
    steps: int = 0
    """Of an epoch, by which this one is counted; 0 in a point of 0.2.0."""
    updates: int = 0
    """Optimizer steps done."""
    converted_at: int | None = None
    """What was `scheduled` when the model was converted during training."""
    loss_sum: float = 0.0
    """Sum of the training loss over the images of this epoch."""
    images: int = 0
    best: float | None = None
    best_epoch: int | None = None
    unreadable: list[str] = []
    unnamed: int = 0
    """Images of the last validation that could not be read either: it names some and counts them all."""
    chunk: int | None = None
    """Images per forward pass, after the device ran out of memory with more."""
    finished: bool = False

    @property
    def scheduled(self) -> int:
        """Updates done as schedules count them: those of a run whose epochs had as many steps from the beginning."""
        return self.epoch * self.steps + self.step

    def resized(self, steps: int) -> "Position":
        """The same position where epochs have another number of steps; as much is done of this one, rounded down."""
        before = self.steps or (max(steps, self.step) if not self.epoch else (self.updates - self.step) // self.epoch)
        at = None if self.converted_at is None else self.converted_at * steps // before
        return self.model_copy(update={"steps": steps, "step": self.step * steps // before, "converted_at": at})

    @property
    def unreadable_count(self) -> int:
        """Images that could not be read so far."""
        return len(self.unreadable) + self.unnamed


class ResumePoint(NamedTuple):
    """A resume file, read and checked."""

    path: Path
    position: Position
    tensors: dict[str, Tensor]
    scalars: dict[str, Any]
    metadata: dict[str, str]

    def state(self, prefix: str) -> State:
        """The state of one of its models, whose names begin with a prefix."""
        return of_file(self.tensors_with_prefix(prefix), self.metadata, prefix)

    def tensors_with_prefix(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with a prefix, by the rest of their names."""
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}


def save_point(
    directory: Path,
    position: Position,
    model: nn.Module,
    optimizer: Optimizer,
    ema: nn.Module | None,
    scaler: dict[str, Any],
    keep: int,
    matching: Mapping[str, Tensor] | None = None,
) -> Path:
    """Save the next resume point, then remove all but the newest `keep`; raises `StorageError` and removes none then.

    A point that claims to be newer is one that could not be read when the run was resumed, so it is removed as well.
    """
    states = {"model.": parts(model.state_dict())} | ({} if ema is None else {"ema.": parts(ema.state_dict())})
    tensors: dict[str, Any] = {
        f"{prefix}{name}": tensor for prefix, own in states.items() for name, tensor in own.tensors.items()
    }
    tensors |= {f"matching.{name}": tensor for name, tensor in (matching or {}).items()}
    moments, scalars = named_states(model, optimizer)
    tensors |= moments
    for index, counters in enumerate(group_counters(optimizer)):
        for key, value in counters.items():
            (tensors if isinstance(value, Tensor) else scalars)[f"group.{index}.{key}"] = value
    metadata = {
        "format": "pt",
        "tcnn_version": __version__,
        "position": position.model_dump_json(),
        "strides": json.dumps(memory_formats(tensors)),
        "scalars": json.dumps(scalars | {f"scaler.{key}": value for key, value in scaler.items()}),
    }
    for prefix, own in states.items():
        metadata |= own.metadata(prefix)
    path = directory / f"step-{position.updates:09d}-{position.epoch:05d}-{position.step:07d}.safetensors"
    with replacing(path, force=True) as temporary:
        save_file(unshared(tensors), temporary, metadata)
    there = points(directory)
    newer = there.index(path) if path in there else 0
    for other in (*there[:newer], *there[newer + keep :]):
        other.unlink(missing_ok=True)
    return path


def memory_formats(tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """The strides of tensors that are not row-major: a file keeps them so, and sums depend on the order in memory."""
    formats = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    return {name: list(found.stride()) for name, found in formats.items() if not found.is_contiguous()}


def named_states(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state of every parameter, tensors and scalars, by the names of a resume file.

    Raises `RequestError` where that is anything else, such as a list.
    """
    tensors, scalars = {}, {}
    for name, parameter in named_groups(optimizer, model):
        for key, value in parameter_states(optimizer).get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{name}.{key}"] = value
            elif isinstance(value, (int, float, bool, str, type(None))):
                scalars[f"optimizer.{name}.{key}"] = value
            else:
                raise RequestError(
                    f"opt: {type(optimizer).__name__} keeps a {type(value).__name__} for {name}, which cannot be "
                    "stored for a resume; choose another optimizer"
                )
    return tensors, scalars


def points(directory: Path) -> list[Path]:
    """The resume files of a directory, newest first."""
    return sorted(directory.glob("step-*.safetensors"), reverse=True)


def remove_partial_files(directory: Path) -> None:
    """Remove partial files of a killed process."""
    for stray in directory.glob(".*"):  # ours, or of the safetensors writer, which has temporary names of its own
        stray.unlink(missing_ok=True)


def latest_point(directory: Path) -> tuple[ResumePoint | None, list[str]]:
    """The newest readable resume point, and one line for each newer one that is unreadable."""
    complaints: list[str] = []
    for path in points(directory):
        try:
            return read_point(path), complaints
        except CheckpointError as error:
            complaints.append(str(error))
    return None, complaints


def read_point(path: Path) -> ResumePoint:
    """Read one resume file; raises `CheckpointError`."""
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = dict(handle.metadata() or {})
            tensors = {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118
        position = Position.model_validate_json(metadata["position"])
        scalars = json.loads(metadata["scalars"])
        for name, strides in json.loads(metadata.get("strides", "{}")).items():
            tensors[name] = tensors[name].new_empty_strided(tensors[name].shape, strides).copy_(tensors[name])
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path}: not a whole resume file; it is passed over") from error
    return ResumePoint(path, position, tensors, scalars, metadata)


def restore(
    point: ResumePoint, model: nn.Module, optimizer: Optimizer, ema: nn.Module | None, scaler: torch.amp.GradScaler
) -> None:
    """Load a resume point into model, optimizer, moving average and scaler; raises `CheckpointError`."""
    try:
        model.load_state_dict(point.state("model.").to_load(model.state_dict()))
        if ema is not None:
            ema.load_state_dict(point.state("ema.").to_load(ema.state_dict()))
    except Exception as error:  # a module reads its state as it likes
        reason = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), one_line(error))
        raise CheckpointError(f"{point.path}: does not fit {type(model).__name__}: {shorten(reason, 200)}") from error
    states: dict[str, dict[str, Any]] = {}
    scalars = {key: value for key, value in point.scalars.items() if key.startswith("optimizer.")}
    for full, value in (
        *point.tensors_with_prefix("optimizer.").items(),
        *((key.removeprefix("optimizer."), v) for key, v in scalars.items()),
    ):
        name, _, key = full.rpartition(".")
        states.setdefault(name, {})[key] = value
    for name, parameter in named_groups(optimizer, model):
        if name in states:
            parameter_states(optimizer)[parameter] = {
                key: _to_parameter_device(value, key, parameter) for key, value in states[name].items()
            }
    for index, group in enumerate(optimizer.param_groups):
        prefix = f"group.{index}."
        group.update({key.removeprefix(prefix): v for key, v in point.scalars.items() if key.startswith(prefix)})
        group.update(point.tensors_with_prefix(prefix))  # a counter that is a tensor stands on the CPU
    state = {key.removeprefix("scaler."): v for key, v in point.scalars.items() if key.startswith("scaler.")}
    if state:
        scaler.load_state_dict(state)


def _to_parameter_device(value: Any, key: str, parameter: Tensor) -> Any:
    """Move optimizer state to its parameter's device; PyTorch keeps step counters on the CPU."""
    return value.to(parameter.device) if isinstance(value, Tensor) and key != "step" else value
