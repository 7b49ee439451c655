"""Before and after a run: its models on its validation images, with what each takes, written to before-after.json."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from tcnn.checkpoints import checkpoint
from tcnn.checkpoints.filling import filled
from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.errors import EnvironmentFailure, TcnnError
from tcnn.evaluation.comparing.before_after import BeforeAfter, Cost, Measured, Rate, Role, Row, counted, differences
from tcnn.evaluation.comparing.single_images import illustrate, short_names
from tcnn.evaluation.outcomes import Outcomes, outcomes
from tcnn.files import write_atomically
from tcnn.folding.fold import fused
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import evaluating, flops, input_shape, meta_copy, parameter_count
from tcnn.state import parts
from tcnn.training.baseline import baseline_start
from tcnn.training.preparing.prepare import Start, prepare
from tcnn.training.runs.callbacks import Progress, Report
from tcnn.training.runs.rundir import COMPARISON
from tcnn.training.updates.step import MixedPrecision

FILE = COMPARISON
SECONDS = 1.0
"""Time limit for timing a warm model, unless `MIN_PASSES` take longer."""
MIN_PASSES, MAX_PASSES = 3, 5
CORRUPTED = 500
"""Largest number of images that are evaluated under corruptions, which take longer than most models do."""


class FinishedRun(NamedTuple):
    """A finished run: what it began with, and the checkpoints that it wrote."""

    source: str | Path | nn.Module
    config: FinetuneConfig
    size: tuple[int, int]
    best: Path
    cnn: Path | None
    """The baseline's best checkpoint, if there is one."""
    pretrained: bool = True
    weights: Path | None = None


def before_and_after(run: FinishedRun, data: ImageSet, device: torch.device, report: Report, out: Path) -> BeforeAfter:
    """Measure the models of a run on its validation images and write all of it to `out`; returns it.

    A model that cannot be had any more, as one whose weights would have to be downloaded anew, has a row that says so.
    """
    models = list(_models(run, data))
    total, done = len(models) * (len(data) + min(CORRUPTED, len(data))), 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        share = 100 * done / max(1, total)
        report(Progress(phase="comparing", epoch=0, epochs=0, step=done, steps=total, percent=round(share, 2)))

    rows = [_measure(role, make, run, data, device, advance) for role, make in models]
    found = BeforeAfter(
        images=len(data),
        rows=[one.row for one in rows],
        corrupted_images=max((len(one.corrupted.indices) for one in rows if one.corrupted is not None), default=0),
        differences=differences(rows, data.class_names, short_names(data)),
    )
    if found.differences:  # the one that is looked at first
        illustrate(found.differences[0].right_images + found.differences[0].wrong_images, data)
    write_atomically(out, found.model_dump_json(indent=1), force=True)
    return found


def _models(run: FinishedRun, data: ImageSet) -> Iterator[tuple[Role, Callable[[], Start]]]:
    given = run.source, run.config, data.class_names, run.pretrained, run.weights
    tuned: Role = "t_cnn" if run.config.convert else "tuned_cnn"
    yield "cnn", lambda: (baseline_start if run.config.convert else prepare)(*given)
    if run.cnn is not None:
        cnn = run.cnn
        yield "tuned_cnn", lambda: Start(_trained(cnn, run, data), run.size, ())
    if run.config.convert and run.config.convert_at is None:
        yield "converted", lambda: prepare(*given)
    yield tuned, lambda: Start(_trained(run.best, run, data), run.size, ())


def _trained(file: Path, run: FinishedRun, data: ImageSet) -> nn.Module:
    """A model that the run wrote; where a module was given, which timm may not know, in its architecture."""
    if not isinstance(run.source, nn.Module):
        return checkpoint.load(file)
    if gpsa_layers(run.source):
        model = prepare(run.source, run.config, data.class_names).model
        content = checkpoint.read(file)
        return filled(model, content.tensors, content.metadata, str(file)).eval()
    unconverted = {"convert": False, "convert_at": None, "matching": 0.0, "freeze": "none", "init": "default"}
    plain = run.config.model_copy(update=unconverted)
    return checkpoint.load(file, source=prepare(run.source, plain, data.class_names).model)


def _measure(
    role: Role,
    make: Callable[[], Start],
    run: FinishedRun,
    data: ImageSet,
    device: torch.device,
    advance: Callable[[int], None],
) -> Measured:
    try:
        start = make()
    except TcnnError as error:
        advance(len(data) + min(CORRUPTED, len(data)))
        return Measured(Row(role=role, missing=str(error)), None)
    model, precision = start.model.to(device).eval(), MixedPrecision(run.config, device)
    batch = min(run.config.micro_batch or 64, 64)
    measure = partial(
        outcomes, model, size=run.size, batch_size=batch, workers=run.config.workers, device=device, amp=precision.amp,
        progress=advance,
    )  # fmt: skip
    found = measure(data)
    accuracy, per_class = counted(found, data.class_names)
    corrupted, harder = None, None
    with suppress(EnvironmentFailure):  # without scipy there are no corruptions
        corrupted = measure(data.subset(evenly_spaced(found, CORRUPTED)), corruption="mixed")
        harder, _ = counted(corrupted, data.class_names)
    row = Row(
        role=role, accuracy=accuracy, per_class=per_class, corrupted=harder,
        cost=_cost(model, run.size, device, precision, batch), new_classifier=start.new_classifier,
    )  # fmt: skip
    del model, start
    gc.collect()
    return Measured(row, found, corrupted)


def evenly_spaced(found: Outcomes, most: int) -> list[int]:
    """Indices of at most `most` of the images that could be read, evenly spaced from the first to the last."""
    readable = found.indices
    if len(readable) > most:
        readable = readable[np.linspace(0, len(readable) - 1, most).round().astype(int)]
    return readable.tolist()


def _cost(model: nn.Module, size: tuple[int, int], device: torch.device, precision: MixedPrecision, batch: int) -> Cost:
    shape = input_shape(model, size)
    images = torch.zeros(batch, *shape, device=device).contiguous(memory_format=precision.memory_format)
    rates: list[float] = []
    with evaluating(model), fused(model), torch.inference_mode(), precision.autocast():
        started = time.perf_counter()
        while len(rates) <= MAX_PASSES and (len(rates) <= MIN_PASSES or time.perf_counter() - started < SECONDS):
            before = time.perf_counter()
            model(images).sum().item()  # waits for the device
            rates.append(batch / max(1e-9, time.perf_counter() - before))
    rates = sorted(rates[1:])  # the first one warmed up
    return Cost(
        parameters=parameter_count(model),
        bytes=parts(model.state_dict()).bytes,
        flops=flops(meta_copy(model).eval(), shape),
        images_per_second=Rate(median=rates[len(rates) // 2], low=rates[0], high=rates[-1]),
    )
