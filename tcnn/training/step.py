"""One optimizer step: forward and backward over the parts of a batch, then the update.

A part that does not fit into the GPU's memory is halved and the step begun again; the gradient is that of the whole
batch either way.
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

Part = tuple[Tensor, Tensor]
"""Images (B, C, H, W) and targets, (B,) or (B, classes)."""


class Outcome(NamedTuple):
    """What a step saw: the sum of the loss over its images, and how many there were."""

    loss_sum: float
    images: int

    @property
    def loss(self) -> float:
        return self.loss_sum / max(1, self.images)


class Arithmetic:
    """Autocast, loss scaling and memory layout on one device."""

    def __init__(self, config: FinetuneConfig, device: torch.device) -> None:
        amp = config.amp
        if amp == "auto":
            amp = "bfloat16" if device.type == "cuda" else "float32"
        self.amp = amp
        self.device = device
        self.dtype: torch.dtype = getattr(torch, amp)
        self.scaler = torch.amp.GradScaler(device.type, enabled=amp == "float16")
        self.memory_format = torch.channels_last if config.channels_last else torch.contiguous_format

    def autocast(self) -> AbstractContextManager[object]:
        """The context of every forward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def place(self, images: Tensor, targets: Tensor) -> Part:
        """A batch where the model is."""
        images = images.to(self.device, non_blocking=True, memory_format=self.memory_format)
        return images, targets.to(self.device, non_blocking=True)


def accumulate(task: TrainingTask, parts: list[Part], arithmetic: Arithmetic, chunk: int | None) -> Outcome:
    """Gradients of the mean loss over all parts, added up in `chunk` images at a time.

    Raises `torch.OutOfMemoryError`; the gradients are then incomplete.
    """
    images = sum(len(part[0]) for part in parts)
    chunks = [
        (x[i : i + size], y[i : i + size])
        for x, y in parts
        for size in (chunk or len(x),)
        for i in range(0, len(x), size)
    ]
    total = torch.zeros((), dtype=torch.float64 if arithmetic.device.type != "mps" else torch.float32)
    total = total.to(arithmetic.device)
    for number, (x, y) in enumerate(chunks):
        last = number == len(chunks) - 1
        with nullcontext() if last else task.no_sync():  # several processes exchange gradients once a step
            with arithmetic.autocast():
                loss = task(x, y)["loss"]
            arithmetic.scaler.scale(loss * (len(x) / images)).backward()
        total += loss.detach() * len(x)
    return Outcome(float(total), images)


def update(task: TrainingTask, optimizer: Optimizer, arithmetic: Arithmetic, clip_grad: float | None) -> None:
    """Apply the gradients, clipped to a norm if one is given, and forget them."""
    if clip_grad is not None:
        arithmetic.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(task.get_clip_parameters(), clip_grad)
    arithmetic.scaler.step(optimizer)
    arithmetic.scaler.update()
    optimizer.zero_grad(set_to_none=True)


def halved(chunk: int | None, parts: list[Part], error: BaseException) -> int:
    """The next smaller chunk after running out of memory; raises `EnvironmentFailure` when one image is too much."""
    now = chunk or max(len(x) for x, _ in parts)
    if now == 1:
        raise EnvironmentFailure(
            "out of memory with one image at a time; choose a smaller --size, a smaller model, or amp=bfloat16"
        ) from error
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return math.ceil(now / 2)
