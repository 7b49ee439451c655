"""Fold a checkpoint file into a new file, as `tcnn fold` does."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.merging import MERGED
from tcnn.checkpoints.opening import open_checkpoint
from tcnn.config import VerificationConfig
from tcnn.errors import OutputError, VerificationError
from tcnn.files import check_file, file_digest
from tcnn.folding.fold import Progress, fold
from tcnn.folding.prune import prune
from tcnn.folding.report import FoldResult, PruningAccuracy, Speed
from tcnn.models.running import place_of, usable_device, weights_dtype, where_it_runs
from tcnn.models.trace import evaluating, input_shape
from tcnn.state import parts
from tcnn.workflows.pipeline import is_directory
from tcnn.workflows.recheck import load_images

Accuracy = Callable[[nn.Module, nn.Module], PruningAccuracy]
"""Measures a model before and after."""
RUNS = 5
"""Number of timed forward passes of either model, of which the median counts."""


def fold_to_file(
    path: str | Path,
    output: Path,
    max_error: float | None = None,
    images: Path | None = None,
    *,
    device: str = "cpu",
    pruning: bool = False,
    far: float | None = None,
    force: bool = False,
    progress: Progress = lambda step: None,
    accuracy: Accuracy | None = None,
) -> FoldResult:
    """Load a checkpoint, fold it, measure error and speed, write the result atomically and read it back.

    Args:
        path: a tcnn checkpoint, or what else `open_checkpoint` takes.
        output: a `.safetensors` file: the plain state dict of the timm model when every layer became a convolution
            again and timm merged nothing, else a tcnn checkpoint. `tcnn.load` reads both.
        max_error: as for `fold`.
        images: a directory of images to measure the error on, instead of noise.
        pruning: remove heads by where they look, as `prune` does; `far` is its distance.
        accuracy: called with the model before and after, before anything is written: what it returns is reported.

    Raises: `NothingToConvertError`, `VerificationError`, `CheckpointError`, `OutputError`.
    """
    started = time.monotonic()
    check_fold_output(output, force)
    place = usable_device(device)
    progress("reading")
    content = open_checkpoint(path)
    model = checkpoint.assemble(content, name=str(path)).to(place)
    batch = None if images is None else load_images(images, model).to(place)
    if pruning:
        progress("pruning")
        folded, report = where_it_runs(lambda wide: prune(model, far, images=batch, config=_precision(wide)))
    else:
        folded, report = where_it_runs(
            lambda wide: fold(
                model, max_error, batch, randomise=_drawn(content), config=_precision(wide), progress=progress
            )
        )
    measured = None
    if accuracy is not None:
        progress("measuring the accuracy")
        measured = accuracy(model, folded)

    def read_back(file: Path) -> None:
        progress("verifying the written file")
        found, written = (parts(one.state_dict()) for one in (checkpoint.load(file), folded))
        same = found.tensors.keys() == written.tensors.keys() and found.extra == written.extra
        if not same or not all(torch.equal(found.tensors[k], value.cpu()) for k, value in written.tensors.items()):
            raise VerificationError(f"{output}: what was read back is not what was written; nothing was written")

    progress("measuring the speed")
    speed = measure_speed(model, folded, batch)
    progress("writing")
    sections = {name: content.section(name) for name in content.metadata if name not in checkpoint.RESERVED}
    sections["fold"] = report.model_dump(mode="json")
    if measured is not None:
        sections["pruning"] = measured.model_dump(mode="json")
    checkpoint.save(folded, output, None, sections, force, read_back)
    with safe_open(output, framework="pt") as file:
        plain = report.complete and MERGED not in file.metadata()
    progress("done")
    return FoldResult(
        checkpoint=str(path),
        output=str(output),
        bytes=output.stat().st_size,
        sha256=file_digest(output),
        seconds=round(time.monotonic() - started, 3),
        format="timm" if plain else "tcnn",
        base_model=content.conversion.base_model,
        fold=report,
        speed=speed,
        accuracy=measured,
    )


def _drawn(content: checkpoint.Checkpoint) -> bool:
    """Whether a file records that its weights were drawn at random and never trained.

    Such weights multiply residual branches by zero, which would hide an error. Where nothing is recorded, as in what
    `tcnn.save` writes, they are measured as they are.
    """
    compared = content.verification
    return (
        content.section("weights") == "random"
        and "training" not in content.metadata
        and (compared is None or compared.statistics_randomised)  # a run may begin with a CNN that was trained before
    )


def _precision(float64: bool) -> VerificationConfig:
    return VerificationConfig(float64=float64)


def check_fold_output(output: Path, force: bool = False) -> None:
    """Raise `OutputError` unless the output can be one new file: timm's hub layout does not support folded models."""
    if is_directory(output):
        raise OutputError(f"{output}: expected one file, whose name ends in .safetensors, found a directory's name")
    check_file(output, force)


def measure_speed(before: nn.Module, after: nn.Module, images: Tensor | None = None) -> Speed:
    """Images per second of two models, in alternating runs, so that other load on the machine slows both down."""
    device = place_of(before)
    given = torch.zeros(2, *input_shape(before), device="cpu") if images is None else images
    batch = given.to(device=device, dtype=weights_dtype(before))
    seconds: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad(), evaluating(before), evaluating(after):
        for run in range(RUNS + 1):
            for model, own in zip((before, after), seconds, strict=True):
                _wait(device)
                started = time.perf_counter()
                model(batch)
                _wait(device)
                if run > 0:  # the first pass sets things up
                    own.append(time.perf_counter() - started)
    first, second = (len(batch) / statistics.median(own) for own in seconds)
    return Speed(before=first, after=second, batch_size=len(batch), device=str(device))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
