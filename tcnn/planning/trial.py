"""A trial of a run: some of its real steps, timed in each of its phases."""

import math
import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

import torch

from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.data.loader import TrainingLoader
from tcnn.evaluation.evaluate import evaluate
from tcnn.layers.backends import convolution
from tcnn.models.running import gpsa_layers
from tcnn.training.preparing.converted import conversion_at
from tcnn.training.recipe.annealing import reestimate_batch_norm
from tcnn.training.recipe.objective import NeighbourMixup, uses_mixup
from tcnn.training.updates.learner import Learner
from tcnn.training.updates.step import MicroBatch

BUFFERED = 2
"""Batches that each process of torch's DataLoader has ready: those are there sooner than the next ones."""
LEAST = 2
"""Micro-batches that are timed at least."""


class Phase(NamedTuple):
    """A part of a run in which every update takes the same time."""

    name: str
    """CNN, convolution (converted, and still computed as a convolution) or attention."""
    begin: int
    """Updates done when it begins."""
    end: int


class Pace(NamedTuple):
    """How long the parts of a run take in one phase, in seconds."""

    micro_batch: float
    """Loading, forward and backward pass of one micro-batch."""
    update: float
    """The optimizer's step."""
    reestimation: float
    """Statistics of batch normalisation, taken anew after an epoch."""
    validation: float
    """One validation."""


class Trial:
    """Takes real steps of a run, without a directory: the model learns, and is thrown away.

    Args:
        learner: of the run, before its first update.
        loader: of training batches.
        validation: the images that every epoch is evaluated on.
        config: in epochs of the training set at hand (`FinetuneConfig.scaled`).
        size: (height, width) of the images.
    """

    def __init__(
        self,
        learner: Learner,
        loader: TrainingLoader,
        validation: ImageSet,
        config: FinetuneConfig,
        size: tuple[int, int],
    ) -> None:
        self.learner, self.loader, self.validation, self.config, self.size = learner, loader, validation, config, size
        self._mixup = NeighbourMixup(config, len(validation.class_names)) if uses_mixup(config) else None
        self._batches = self._endless()

    def phases(self) -> Iterator[Phase]:
        """The phases of the run, in order; the model is converted, and its τ set, for the one that comes."""
        steps, total = self.loader.steps, self.loader.steps * self.config.epochs
        annealing, at = self.learner.annealing, (self.config.convert_at or 0) * steps
        if at:
            yield Phase("CNN", 0, at)
            self.learner.convert(conversion_at(self.config, self.size), at, at)
            annealing = self.learner.annealing
        if not gpsa_layers(self.learner.model):
            yield Phase("CNN", 0, total)
            return
        leaves = self._leaves_limit(at, total)
        if leaves > at:
            self.learner.set_temperatures(at)
            yield Phase("convolution", at, leaves)
        ends = min(max(annealing.ends, leaves), total)
        matched = self.learner.matching is not None and leaves < ends
        if matched:
            self.learner.set_temperatures(ends - 1)
            yield Phase("attention, matched", leaves, ends)
        if (ends if matched else leaves) < total:
            self.learner.set_temperatures(total - 1)
            yield Phase("attention", ends if matched else leaves, total)

    def _leaves_limit(self, begin: int, total: int) -> int:
        """The first update, by λ, α and Δ as they are, in which a layer is not computed as a convolution."""
        annealing, layers = self.learner.annealing, gpsa_layers(self.learner.model).values()

        def hard(update: int) -> bool:
            taus = annealing.temperatures(update)
            for layer in layers:
                layer.set_temperatures(taus.gate, taus.position)
            return all(convolution.is_hard(layer.tensors, layer.geometry) for layer in layers)

        low, high = begin, total
        while low < high:  # τ never falls
            middle = (low + high) // 2
            low, high = (middle + 1, high) if hard(middle) else (low, middle)
        return low

    def time(self, phase: Phase, seconds: float) -> Pace:
        """Time the steps of a phase for about so many seconds; at least three micro-batches and a few validations."""
        learner, clock = self.learner, time.monotonic
        learner.train()
        learner.accumulate([next(self._batches)], None)
        learner.update(phase.end)  # memory is taken, kernels are chosen
        laps: list[float] = []
        started = mark = clock()
        while len(laps) < LEAST or clock() - started < seconds / 2:
            learner.accumulate([next(self._batches)], None)
            self._wait()
            laps.append(clock() - mark)
            mark = clock()
        buffered = BUFFERED * self.config.workers
        timed = laps[buffered:] if len(laps) >= 2 * buffered else laps
        learner.update(phase.end)
        self._wait()
        update = clock() - mark
        return Pace(
            micro_batch=sum(timed) / len(timed),
            update=update,
            reestimation=self._reestimation() if learner.annealing.over(phase.end) else 0.0,
            validation=self._validation(seconds / 2),
        )

    def _reestimation(self) -> float:
        """Seconds in which statistics of batch normalisation are taken anew after an epoch."""
        batches = self.config.bn_reestimate * self.loader.micro_batches
        if not batches:
            return 0.0
        images = [next(self._batches)[0] for _ in range(min(batches, LEAST))]
        started = time.monotonic()
        with self.learner.precision.autocast():
            reestimate_batch_norm(self.learner.result, images, self.learner.trunk)
        self._wait()
        return (time.monotonic() - started) * batches / len(images)

    def _validation(self, seconds: float) -> float:
        """Seconds that a validation takes, from two of parts of the images: what begins and ends it counts once."""
        total, few = len(self.validation), min(len(self.validation), self.loader.micro_batch)
        first = self._evaluate(few)
        more = min(total, few + math.ceil(few * seconds / max(first, 1e-6)))
        if more == few:
            return first
        second = self._evaluate(more)
        return second + max(0.0, second - first) / (more - few) * (total - more)

    def _evaluate(self, images: int) -> float:
        started = time.monotonic()
        evaluate(
            self.learner.result, self.validation.subset(range(images)), size=self.size,
            batch_size=self.loader.micro_batch, workers=self.config.workers, device=self.learner.precision.device,
            amp=self.learner.precision.amp, channels_last=self.config.channels_last, warn=False, quiet=True,
        )  # fmt: skip
        return time.monotonic() - started

    def _endless(self) -> Iterator[MicroBatch]:
        """Micro-batches, mixed and on the device, epoch after epoch."""
        for epoch in count():
            for batch in self.loader.epoch(epoch):
                images, targets = self.learner.precision.to_device(batch.images, batch.targets)
                yield (images, targets) if self._mixup is None else self._mixup(images, targets, epoch)

    def _wait(self) -> None:
        """Wait for the GPU, which the host is ahead of."""
        if self.learner.precision.device.type == "cuda":
            torch.cuda.synchronize(self.learner.precision.device)


def epoch_seconds(paces: Iterable[tuple[Phase, Pace]], steps: int, epochs: int, micro_batches: int) -> Iterator[float]:
    """Seconds of every epoch of `steps` updates, each of so many micro-batches, and of what follows the epoch."""
    paces = list(paces)
    for begin in range(0, steps * epochs, steps):
        end = begin + steps
        training = sum(
            max(0, min(end, phase.end) - max(begin, phase.begin)) * (micro_batches * pace.micro_batch + pace.update)
            for phase, pace in paces
        )
        after = next(pace for phase, pace in paces if phase.begin < end <= phase.end)
        yield training + after.reestimation + after.validation
