"""Before and after a run: its models on its validation images, with what each takes, written to before-after.json."""

import base64
import gc
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from tcnn.checkpoints import checkpoint
from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.errors import TcnnError
from tcnn.evaluation.before_after import BeforeAfter, Changed, Cost, Measured, Rate, Role, Row, counted, differences
from tcnn.evaluation.outcomes import outcomes
from tcnn.files import replacing
from tcnn.folding.fuse import fused
from tcnn.models.flops import flops
from tcnn.models.parameters import parameter_count
from tcnn.models.trace import evaluating, input_shape, meta_copy
from tcnn.training.baseline import baseline_start
from tcnn.training.prepare import Start, prepare
from tcnn.training.runs.progress import Progress, Report
from tcnn.training.step import MixedPrecision

FILE = "before-after.json"
SECONDS = 1.0
"""For which a model is timed at most, once it is warm,"""
PASSES = 5
"""or so many passes."""
THUMBNAIL = 96
"""Pixels of the longer side."""


class Ran(NamedTuple):
    """A run that is over: what it began with, and what it made."""

    source: str | Path | nn.Module
    config: FinetuneConfig
    size: tuple[int, int]
    best: Path
    cnn: Path | None
    """The baseline's best checkpoint, if there is one."""
    pretrained: bool = True
    weights: Path | None = None


def before_and_after(ran: Ran, data: ImageSet, device: torch.device, report: Report, out: Path) -> BeforeAfter:
    """Measure the models of a run on its validation images and write all of it to `out`; returns it.

    A model that cannot be had any more, as one whose weights would have to be downloaded anew, has a row that says so.
    """
    models = list(_models(ran, data))
    total, done = len(models) * len(data), 0

    def advance(images: int) -> None:
        nonlocal done
        done += images
        share = 100 * done / max(1, total)
        report(Progress(phase="comparing", epoch=0, epochs=0, step=done, steps=total, percent=round(share, 2)))

    rows = [_measure(role, make, ran, data, device, advance) for role, make in models]
    found = BeforeAfter(
        images=len(data),
        rows=[one.row for one in rows],
        differences=differences(rows, data.class_names, [_short(data.filename(i)) for i in range(len(data))]),
    )
    if found.differences:  # the one that is looked at first
        _illustrate(found.differences[0].right_images + found.differences[0].wrong_images, data)
    with replacing(out, force=True) as temporary:
        temporary.write_text(found.model_dump_json(indent=1), encoding="utf-8")
    return found


def _models(ran: Ran, data: ImageSet) -> Iterator[tuple[Role, Callable[[], Start]]]:
    given = ran.source, ran.config, data.class_names, ran.pretrained, ran.weights
    tuned: Role = "t_cnn" if ran.config.convert else "tuned_cnn"
    yield "cnn", lambda: (baseline_start if ran.config.convert else prepare)(*given)
    if ran.cnn is not None:
        cnn = ran.cnn
        yield "tuned_cnn", lambda: Start(checkpoint.load(cnn), ran.size, ())
    if ran.config.convert and ran.config.convert_at is None:
        yield "converted", lambda: prepare(*given)
    yield tuned, lambda: Start(checkpoint.load(ran.best), ran.size, ())


def _measure(
    role: Role,
    make: Callable[[], Start],
    ran: Ran,
    data: ImageSet,
    device: torch.device,
    advance: Callable[[int], None],
) -> Measured:
    try:
        start = make()
    except TcnnError as error:
        advance(len(data))
        return Measured(Row(role=role, missing=str(error)), None)
    model, precision = start.model.to(device).eval(), MixedPrecision(ran.config, device)
    batch = min(ran.config.micro_batch or 64, 64)
    found = outcomes(
        model, data, size=ran.size, batch_size=batch, workers=ran.config.workers, device=device, amp=precision.amp,
        progress=advance,
    )  # fmt: skip
    accuracy, per_class = counted(found, data.class_names)
    row = Row(
        role=role, accuracy=accuracy, per_class=per_class, cost=_cost(model, ran.size, device, precision, batch),
        new_classifier=start.new_classifier,
    )  # fmt: skip
    del model, start
    gc.collect()
    return Measured(row, found)


def _cost(model: nn.Module, size: tuple[int, int], device: torch.device, precision: MixedPrecision, batch: int) -> Cost:
    shape = input_shape(model, size)
    images = torch.zeros(batch, *shape, device=device).contiguous(memory_format=precision.memory_format)
    rates: list[float] = []
    with evaluating(model), fused(model), torch.inference_mode(), precision.autocast():
        started = time.perf_counter()
        while len(rates) <= PASSES and (len(rates) < 2 or time.perf_counter() - started < SECONDS):
            before = time.perf_counter()
            model(images).sum().item()  # waits for the device
            rates.append(batch / max(1e-9, time.perf_counter() - before))
    rates = sorted(rates[1:])  # the first one warmed up
    state = model.state_dict().values()
    return Cost(
        parameters=parameter_count(model),
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in state),
        flops=flops(meta_copy(model).eval(), shape),
        images_per_second=Rate(median=rates[len(rates) // 2], low=rates[0], high=rates[-1]),
    )


def _short(name: str) -> str:
    """A file's name and its folder's, which is its class's; where the data set lies is nobody's business."""
    return "/".join(Path(name).parts[-2:]) if Path(name).is_absolute() else name


def _illustrate(changed: list[Changed], data: ImageSet) -> None:
    """Give images their thumbnails."""
    places = {_short(data.filename(index)): index for index in range(len(data))}
    for one in changed:
        picture, _ = data.load(places[one.file])
        picture.thumbnail((THUMBNAIL, THUMBNAIL))
        out = io.BytesIO()
        picture.convert("RGB").save(out, "JPEG", quality=80)
        one.thumbnail = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
