"""One optimizer step: gradient accumulation over micro-batches, then the parameter update.

A micro-batch that does not fit into the GPU's memory is halved and the step is repeated; the gradient is that of the
whole batch either way.
"""

import gc
import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from timm.task import TrainingTask
from torch import Tensor
from torch.optim import Optimizer

from tcnn.config import FinetuneConfig
from tcnn.errors import EnvironmentFailure
from tcnn.training.distributed import Processes
from tcnn.training.updates.sync_batch import sync_batch

MicroBatch = tuple[Tensor, Tensor]
"""A micro-batch: images (B, C, H, W) and targets, (B,) or (B, classes)."""


class StepLoss(NamedTuple):
    """Loss of a step, summed over its images, and their number."""

    loss_sum: float
    images: int

    @property
    def loss(self) -> float:
        """Mean loss per image."""
        return self.loss_sum / max(1, self.images)


class MixedPrecision:
    """Mixed precision on one device: autocast, loss scaling and memory format."""

    def __init__(self, config: FinetuneConfig, device: torch.device) -> None:
        amp = config.amp
        if amp == "auto":
            amp = "bfloat16" if device.type == "cuda" else "float32"
        self.amp = amp
        self.device = device
        self.dtype: torch.dtype = getattr(torch, amp)
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16")
        self.memory_format = torch.channels_last if config.channels_last else torch.contiguous_format

    def autocast(self, cache: bool = True) -> AbstractContextManager[object]:
        """The autocast context of every forward pass; with `cache` a weight is converted once in it."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype, cache_enabled=cache)

    def to_device(self, images: Tensor, targets: Tensor) -> MicroBatch:
        """Move a batch to the device, in the memory format of the run."""
        images = images.to(self.device, non_blocking=True, memory_format=self.memory_format)
        return images, targets.to(self.device, non_blocking=True)


class Passes:
    """Forward and backward passes of a task, operation by operation, in step with those of the other processes."""

    def __init__(self, task: TrainingTask, precision: MixedPrecision, processes: Processes) -> None:
        self.task, self.precision, self._processes = task, precision, processes

    def begin(self) -> None:
        """Begin a step."""

    def accumulate(self, x: Tensor, y: Tensor, share: float) -> Tensor:
        """Add the gradients of share · loss; returns the loss, a scalar that the next call may overwrite."""
        with sync_batch(self._processes, len(x)):
            with self.precision.autocast():
                loss: Tensor = self.task(x, y)["loss"]
            self.precision.scaler.scale(loss * share).backward()
        return loss.detach()


def accumulate(passes: Passes, micro_batches: list[MicroBatch], chunk: int | None) -> StepLoss:
    """Accumulate the gradient of the mean loss over all micro-batches, `chunk` images at a time.

    Raises `torch.OutOfMemoryError`; the gradients are then incomplete.
    """
    images = sum(len(micro_batch[0]) for micro_batch in micro_batches)
    chunks = [
        (x[i : i + size], y[i : i + size])
        for x, y in micro_batches
        for size in (chunk or len(x),)
        for i in range(0, len(x), size)
    ]
    device = passes.precision.device
    total = torch.zeros((), dtype=torch.float64 if device.type != "mps" else torch.float32).to(device)
    passes.begin()
    for number, (x, y) in enumerate(chunks):
        last = number == len(chunks) - 1
        with nullcontext() if last else passes.task.no_sync():  # several processes exchange gradients once a step
            total += passes.accumulate(x, y, len(x) / images) * len(x)
    return StepLoss(float(total), images)


def update(task: TrainingTask, optimizer: Optimizer, precision: MixedPrecision, clip_grad: float | None) -> None:
    """Update the parameters from the gradients, clipped to a norm if one is given, and clear the gradients."""
    if clip_grad is not None:
        precision.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(task.get_clip_parameters(), clip_grad)
    precision.scaler.step(optimizer)
    precision.scaler.update()
    optimizer.zero_grad(set_to_none=True)


def halve_chunk(chunk: int | None, micro_batches: list[MicroBatch], error: BaseException) -> int:
    """Halve the chunk size after running out of memory; raises `EnvironmentFailure` when one image is too much."""
    now = chunk or max(len(x) for x, _ in micro_batches)
    if now == 1:
        raise EnvironmentFailure(
            "out of memory with one image at a time; choose a smaller --size, a smaller model, or amp=bfloat16"
        ) from error
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return math.ceil(now / 2)
