"""Evaluate a model on a data set: exact top-1 and top-5 counts, over any number of processes.

The trainer calls `evaluate` after every epoch, `tcnn evaluate` for every row of its table. Images are preprocessed as
timm does for the model; a corruption is applied at the model's own resolution, between cropping and normalising, as in
ImageNet-C (Hendrycks & Dietterich 2019).
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tcnn.arguments import at_least, typed
from tcnn.checkpoints.files import label_names
from tcnn.checkpoints.opening import open_model
from tcnn.config.values import sides_of
from tcnn.data.image_set import ImageSet, open_dataset
from tcnn.data.loader import Batch, EvaluationLoader
from tcnn.data.sources.opened import Opened
from tcnn.data.sources.source import same_kind
from tcnn.data.transforms import Transform, evaluation_transform
from tcnn.display import counting
from tcnn.errors import RequestError
from tcnn.evaluation.corruptions import Corruption, MixedCorruption
from tcnn.evaluation.held_out import learned_note
from tcnn.evaluation.outputs import answers, outputs_for, outputs_of, ranks, scored
from tcnn.evaluation.scores import ClassScore, Evaluation, confusions
from tcnn.folding.fold import fused
from tcnn.formatting import some
from tcnn.models.checks import refuse_without_values, unwrapped
from tcnn.models.running import place_of, usable_device, weights_dtype
from tcnn.models.trace import evaluating, input_settings, input_shape
from tcnn.wording import warn_caller

Amp = Literal["float32", "bfloat16", "float16"]
CorruptionChoice = tuple[str, int] | Literal["mixed"]
"""(name, severity) of an ImageNet-C corruption; "mixed": any of them at any severity, drawn for each image."""
Progress = Callable[[int], None]
"""Called with the number of images just evaluated."""
Observe = Callable[[Batch, Tensor | None], None]
"""Called with each batch and the scored outputs for its images, (B, classes); None where none could be read."""

NAMED_UNREADABLE = 20
"""Largest number of unreadable files that a result names; it counts them all."""


class _ProcessResult(NamedTuple):
    """Results of one process, one row per image, so that sums are exact and in a fixed order."""

    targets: NDArray[np.int64]
    right: NDArray[np.bool_]
    right5: NDArray[np.bool_]
    predicted: NDArray[np.int64]
    """−1 where the output is not finite."""
    losses: NDArray[np.float64]
    unreadable: list[str]
    seconds: float


@typed()
def evaluate(
    model: nn.Module | str | Path,
    data: ImageSet | str | Path | Opened,
    *,
    size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    batch_size: int = 64,
    workers: int = 0,
    device: torch.device | str | None = None,
    amp: Amp = "float32",
    channels_last: bool = False,
    corruption: CorruptionChoice | None = None,
    class_subset: Sequence[int] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    quiet: bool = False,
    observe: Observe | None = None,
    warn: bool = True,
    rank: int = 0,
    world: int = 1,
) -> Evaluation:
    """Evaluate top-1, top-5 and cross-entropy of a model on a data set; the model is not changed.

    Args:
        model: a module, or the name of one as `tcnn evaluate` takes it.
        data: an opened data set; or what `open_dataset` takes, whose validation split is measured, if it has one. Its
            classes are matched with the model's by their names, where these are known.
        size: side, or (height, width), in pixels that the images are cropped to; default the model's own.
        crop_pct: the crop's share of the resized image; default the model's own.
        batch_size: images of one forward pass in this process.
        device: of the images; default that of the model.
        amp: the dtype of autocast.
        corruption: (name, severity) of an ImageNet-C corruption, or "mixed": one that is drawn for each image. The
            noise of an image depends on `seed` and the image only.
        class_subset: the model's output for each class of the data set; only these outputs are scored. Default all
            outputs, which must then be as many as the data set has classes.
        progress: called after each batch with the number of its images; by default, of several, counted on
            stderr.
        quiet: show nothing.
        observe: called with what the model says to each batch of this process, whose targets are the model's outputs.
        warn: whether to warn of images that the model has learned from, and of files that are not taken for images.
        rank, world: this process and the number of processes. With more than one, all of them must call at once, in an
            initialised process group; every image is counted once and every process returns the same counts.

    Returns: exact counts; top-5 only for at least five classes. `images_per_second` is wall time over all processes,
    loading included. A result that is not finite counts as wrong.

    Raises: `RequestError` when classes and outputs do not fit, or no image can be read.
    """
    if isinstance(model, str | Path):
        model = open_model(str(model))
    unwrapped(model, only_run=True)  # refused is what cannot be run; a wrapper runs as it is
    refuse_without_values(model, "evaluate")
    if amp not in get_args(Amp):
        raise RequestError(f"amp: expected {', '.join(get_args(Amp))}, found {amp!r}")
    if isinstance(model, DistributedDataParallel):
        # Its forward would wait for the other processes, whose batches may be fewer.
        model = model.get_submodule("module")
    names = label_names(model)
    if not isinstance(data, ImageSet):
        data = open_dataset(data, "validation", names or None, input_shape(model)[0])
    elif class_subset is None and same_kind(names, data.class_names):
        data = data.numbered_as(names)
    at_least(1, world=world)
    if not 0 <= rank < world:
        raise RequestError(f"rank: expected 0 to {world - 1}, of {some(world, 'process')}, found {rank}")
    if world > 1 and not (dist.is_available() and dist.is_initialized()):
        raise RequestError(f"evaluate: {world} processes need torch.distributed.init_process_group first")
    for note in filter(None, (data.left_out, learned_note(model, data)) if warn and rank == 0 else ()):
        warn_caller(note)
    place = usable_device(device) if device is not None else place_of(model)
    loader = EvaluationLoader(
        data, transform_for(model, size, crop_pct, corruption, seed), batch_size=batch_size, workers=workers,
        rank=rank, world=world, pin_memory=place.type == "cuda",
    )  # fmt: skip
    counted = counting(progress, len(data) // world, "evaluating", quiet or rank > 0 or len(data) <= batch_size)
    with closing(loader), evaluating(model), fused(model), counted as batch:
        part = _count(model, loader, data, place, amp, channels_last, class_subset, batch, observe)
    parts = [part]
    if world > 1:
        gathered: list[Any] = [None] * world
        dist.all_gather_object(gathered, part)
        parts = gathered
    return _summary(parts, data, len(data.class_names))


def transform_for(
    model: nn.Module,
    size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    corruption: CorruptionChoice | None = None,
    seed: int = 0,
) -> Transform:
    """timm's evaluation transform of a model: resize, crop, (corrupt,) to a tensor, normalise.

    Of a very long strip only the middle is resized: see `middle_of_strip`.
    """
    settings = input_settings(model)
    if size is not None:
        settings["input_size"] = (settings["input_size"][0], *sides_of(size))
    if crop_pct is not None:
        if not 0 < crop_pct <= 1:
            raise RequestError(f"crop_pct: expected a share above 0 and up to 1, found {crop_pct}")
        settings["crop_pct"] = crop_pct
    transform = evaluation_transform(settings)
    if corruption is not None:
        steps = transform.transforms
        first_tensor = next(i for i, step in enumerate(steps) if "ToTensor" in type(step).__name__)
        made = MixedCorruption(seed) if isinstance(corruption, str) else Corruption(*corruption, seed)
        steps.insert(first_tensor, made)
    return transform


def _count(
    model: nn.Module, loader: EvaluationLoader, data: ImageSet, device: torch.device, amp: Amp, channels_last: bool,
    class_subset: Sequence[int] | None, progress: Progress, observe: Observe | None,
) -> _ProcessResult:  # fmt: skip
    """Evaluate this process's images. The device is not synchronised before the last batch."""
    started = time.perf_counter()
    columns = None if class_subset is None else outputs_for(class_subset, device)
    dtype = weights_dtype(model)
    autocast: AbstractContextManager[None] = (
        nullcontext() if amp == "float32" else torch.autocast(device.type, getattr(torch, amp))
    )
    rows: list[Tensor] = []
    losses: list[Tensor] = []
    unreadable: list[str] = []
    with torch.inference_mode(), autocast:
        for batch in loader:
            unreadable += batch.unreadable
            logits = None
            if len(batch.images):
                images = batch.images.to(device, dtype, non_blocking=True)
                if channels_last:
                    images = images.to(memory_format=torch.channels_last)
                targets = batch.targets.to(device, non_blocking=True)
                logits = scored(outputs_of(model, images), columns, len(data.class_names)).float()
                given, place = answers(logits), ranks(logits, targets)
                rows.append(torch.stack([targets, place == 0, (place >= 0) & (place < 5), given]))
                losses.append(F.cross_entropy(logits, targets, reduction="none"))
            if observe is not None:
                observe(batch, logits)
            progress(len(batch.images) + len(batch.unreadable))
    counts = torch.cat(rows, 1).cpu().numpy() if rows else np.zeros((4, 0), np.int64)
    losses_ = torch.cat(losses).cpu().double().numpy() if losses else np.zeros(0)
    return _ProcessResult(
        counts[0], counts[1].astype(bool), counts[2].astype(bool), counts[3], losses_, unreadable,
        time.perf_counter() - started,
    )  # fmt: skip


def _summary(parts: Sequence[_ProcessResult], data: ImageSet, classes: int) -> Evaluation:
    """Combine the results of all processes."""
    targets, right, right5, predicted, losses = (np.concatenate([part[i] for part in parts]) for i in range(5))
    unreadable = [name for part in parts for name in part.unreadable]
    if not len(targets):
        reason = f"none of the {len(unreadable)} can be read ({unreadable[0]})" if unreadable else "there is none"
        raise RequestError(f"expected images to evaluate on, but {reason}")
    images, hits = np.bincount(targets, minlength=classes), np.bincount(targets[right], minlength=classes)
    total = len(targets)
    return Evaluation(
        images=total,
        right=int(right.sum()),
        right5=int(right5.sum()) if classes >= 5 else None,
        top1=int(right.sum()) / total,
        top5=int(right5.sum()) / total if classes >= 5 else None,
        loss=math.fsum(losses) / total,
        per_class={
            name: ClassScore(images=int(n), right=int(k), top1=int(k) / int(n) if n else None)
            for name, n, k in zip(data.class_names, images, hits, strict=True)
        },
        confusions=confusions(targets, predicted, data.class_names),
        images_per_second=total / max(1e-9, *(part.seconds for part in parts)),
        unreadable=unreadable[:NAMED_UNREADABLE],
        unreadable_count=len(unreadable),
    )
