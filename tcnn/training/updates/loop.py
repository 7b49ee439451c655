"""The training loop: epochs of steps, validation after each epoch, and resume points for exact resumption."""

import math
from itertools import islice
from typing import Any

import torch
from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.data.loader import Batch, TrainingLoader, worker_death
from tcnn.data.order import step_seed
from tcnn.data.worker import deaths_after
from tcnn.errors import DivergedError, EnvironmentFailure, RequestError, StorageError
from tcnn.evaluation.evaluate import evaluate
from tcnn.evaluation.scores import Evaluation
from tcnn.formatting import some
from tcnn.training.distributed import Processes
from tcnn.training.preparing.converted import conversion_at
from tcnn.training.preparing.prepare import Start
from tcnn.training.recipe.annealing import is_single_value, reestimate_batch_norm
from tcnn.training.recipe.objective import NeighbourMixup, uses_mixup
from tcnn.training.runs.callbacks import Progress, Report, Say, StepTimer, StopRequest
from tcnn.training.runs.recorder import Recorder, epoch_scores, layer_state, temperatures
from tcnn.training.runs.resume import Position, ResumePoint, named_states
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.learner import Learner, Saver
from tcnn.training.updates.step import MicroBatch, MixedPrecision, StepLoss, halve_chunk
from tcnn.training.updates.sync_batch import sync_batch


class _StopRequested(Exception):
    """A stop was requested during validation."""


class Trainer:
    """Trains a model: create it, `restore` a resume point if there is one, `run` it.

    Args:
        start: the initial model.
        train: batches of augmented images.
        validation: the images that every epoch is evaluated on.
        config: in epochs of the training set at hand (`FinetuneConfig.scaled`).
        record: what checkpoints state about the run beside its metrics.
    """

    def __init__(
        self,
        start: Start,
        train: TrainingLoader,
        validation: ImageSet,
        config: FinetuneConfig,
        run: RunDirectory,
        *,
        device: torch.device,
        processes: Processes,
        teacher: nn.Module | None = None,
        record: dict[str, Any] | None = None,
        report: Report = lambda progress: None,
        warn: Say = lambda message: None,
    ) -> None:
        self.config, self.run_directory, self.train, self.validation = config, run, train, validation
        self.device, self.processes = device, processes
        self.position = Position(steps=train.steps)
        self.precision = MixedPrecision(config, device)
        self.timer = StepTimer()
        self._size, self._report = start.size, report
        self._mixup = NeighbourMixup(config, len(validation.class_names)) if uses_mixup(config) else None
        self._top1: float | None = None
        self.recorder = Recorder(run, config, processes.first, warn)
        self.saver = Saver(run, config, self.recorder, first=processes.first, record=record or {})
        self.learner = Learner(
            start.model, config, steps=train.steps, precision=self.precision, processes=processes, teacher=teacher,
            trunk=start.trunk,
        )  # fmt: skip

    @property
    def model(self) -> nn.Module:
        """The model in training, without wrappers."""
        return self.learner.model

    def restore(self, point: ResumePoint) -> None:
        """Restore a resume point; raises `CheckpointError` where it does not fit this run."""
        self.position = point.position.resized(self.train.steps)
        if self.position.converted_at is not None:
            self._convert(self.position.converted_at)
        self.learner.restore(point._replace(position=self.position))
        self.position.finished = self.position.epoch >= self.config.epochs  # more epochs may have been asked for since
        self.run_directory.rewind(self.position.updates, self.position.epoch)

    def run(self, stop: StopRequest) -> Position:
        """Train to the last epoch. Raises `Stopped` after saving if `stop` is set, `DivergedError`, `StorageError`."""
        try:
            while self.position.epoch < self.config.epochs:
                at = self.config.convert_at
                if at is not None and at <= self.position.epoch and self.position.converted_at is None:
                    with deaths_after():
                        self._convert(self.position.scheduled)
                        self.position.converted_at = self.position.scheduled
                self._train_epoch(stop)
                self._finish_epoch(stop)
            self.position.finished = True
            self.saver.point(self.learner, self.position)
            return self.position
        except StorageError as error:
            raise StorageError(f"{error}; {self._message('stopped')}") from error
        except (RuntimeError, EnvironmentFailure) as error:
            death = worker_death(error, f"{self._message('stopped')}, and with fewer workers if this comes again")
            if death is None:
                raise
            if self.position.step < self.train.steps:
                # It is told between updates: nothing is half done, as are statistics at an epoch's end.
                self.saver.catch_up(self.learner, self.position)
            if stop and self.processes.world == 1:  # whoever asks for an end may have ended the workers, too
                raise stop.stopped(self._message("stopped")) from error
            raise death from error
        finally:
            self.train.close()
            self.recorder.close()

    def _convert(self, at: int) -> None:
        self.learner.convert(conversion_at(self.config, self._size), self.position.scheduled, at, self.recorder.warn)

    def _train_epoch(self, stop: StopRequest) -> None:
        position, steps = self.position, self.train.steps
        if position.step == steps:
            return
        self.learner.train()
        batches = self.train.epoch(position.epoch, position.step)
        self.timer.start()
        while position.step < steps:
            self._prepare_step()
            micro_batches = self._micro_batches(list(islice(batches, self.train.micro_batches)))
            with deaths_after():
                step_loss = self._step(micro_batches)
                loss_sum, images, stopping, finite = self.processes.sum(
                    [step_loss.loss_sum, step_loss.images, float(bool(stop)), float(math.isfinite(step_loss.loss))],
                    self.device,
                )
                if finite < self.processes.world:
                    raise self._diverged()
                self.learner.update(position.scheduled + 1)
                position.updates += 1
                if position.updates == 1:  # an optimizer that cannot be resumed is refused before hours are lost
                    named_states(self.model, self.learner.optimizer)
                position.step += 1
                position.loss_sum += loss_sum
                position.images += int(images)
            self._log_step(loss_sum / images, images / max(1e-9, self.timer.lap()))
            if stopping or self.saver.due(position.updates):
                self.saver.point(self.learner, self.position)
            if stopping:
                raise stop.stopped(self._message("stopped"))

    def _prepare_step(self) -> None:
        """Set what a step depends on besides its images: random seeds, equal in all processes, and τ."""
        position = self.position
        torch.manual_seed(step_seed(self.config.seed, position.epoch, position.step))
        self.learner.set_temperatures(position.scheduled)

    def _micro_batches(self, batches: list[Batch]) -> list[MicroBatch]:
        position, micro_batches = self.position, []
        for batch in batches:
            self.recorder.add_unreadable(position, batch.unreadable)
            images, targets = self.precision.to_device(batch.images, batch.targets)
            if self._mixup is not None:
                images, targets = self._mixup(
                    images, targets, step_seed(self.config.seed, position.epoch, position.step)
                )
            micro_batches.append((images, targets))
        return micro_batches

    def _step(self, micro_batches: list[MicroBatch]) -> StepLoss:
        while True:
            try:
                return self.learner.accumulate(micro_batches, self.position.chunk)
            except ValueError as error:
                if not is_single_value(error):
                    raise
                raise RequestError(
                    "batch normalisation cannot learn from one image whose map is one pixel; choose a larger --size, "
                    "or a batch_size and micro_batch that leave no image alone"
                ) from error
            except torch.OutOfMemoryError as error:
                self.learner.optimizer.zero_grad(set_to_none=True)
                smaller = halve_chunk(self.position.chunk, micro_batches, error)
                if self.processes.world > 1:  # the others wait for gradients that will not come
                    raise EnvironmentFailure(
                        f"out of memory on device {self.device}; go on with --resume --set micro_batch={smaller}"
                    ) from error
            self.position.chunk = smaller
            self.recorder.warn(f"out of memory: going on with {some(smaller, 'image')} at a time")
            self._prepare_step()

    def _log_step(self, loss: float, rate: float) -> None:
        position = self.position
        facts: dict[str, Any] = {
            "loss": loss, "lr": self.learner.lr, **temperatures(self.learner.temperatures),
            "images_per_second": round(rate, 2),
        }  # fmt: skip
        self._report_progress("training", **facts)
        self.recorder.step(position.updates, epoch=position.epoch, step=position.step, **facts)

    def _finish_epoch(self, stop: StopRequest) -> None:
        """Validate, log and save the model; a resume point is saved before: a kill costs little training."""
        position = self.position
        if self.saver.due_at_epoch_end():
            self.saver.point(self.learner, self.position)
        if self.config.bn_reestimate and self.learner.annealing.over(position.scheduled):
            self._reestimate()
        result = self._validate(stop)
        self._top1 = result.top1
        position.unnamed = result.unreadable_count - len(result.unreadable)
        self.recorder.add_unreadable(position, result.unreadable)
        if not math.isfinite(result.loss):
            self.recorder.warn(f"the validation loss is not finite after epoch {position.epoch + 1}")
        better = self._is_best(result.top1)
        if better:
            position.best, position.best_epoch = result.top1, position.epoch
        pace = self.timer.step
        row: dict[str, Any] = {
            "kind": "epoch", "epoch": position.epoch, "updates": position.updates,
            "train_loss": position.loss_sum / max(1, position.images), "lr": self.learner.lr,
            **temperatures(self.learner.temperatures), "val": epoch_scores(result), "best": better,
            "unreadable": position.unreadable_count,
            "images_per_second": None if pace is None else round(self.config.batch_size / pace, 2),
            **layer_state(self.learner.result),
        }  # fmt: skip
        self.recorder.epoch(row)
        self.saver.model(self.learner, row, best=better)
        position.epoch, position.step = position.epoch + 1, 0
        position.loss_sum, position.images = 0.0, 0
        if position.epoch < self.config.epochs and self.saver.due_at_epoch_end():
            self.saver.point(self.learner, self.position)

    def _reestimate(self) -> None:
        """Re-estimate batch normalisation statistics over the first batches of this epoch, without mixup."""
        count = self.config.bn_reestimate * self.train.micro_batches
        batches = islice(self.train.epoch(self.position.epoch), count)
        images = (self.precision.to_device(batch.images, batch.targets)[0] for batch in batches)
        with sync_batch(self.processes, self.train.micro_batch), self.precision.autocast():
            reestimate_batch_norm(self.learner.result, images, self.learner.trunk)

    def _is_best(self, top1: float) -> bool:
        """Whether this epoch's model is the best; before annealing is over a later epoch always is."""
        best, epoch = self.position.best, self.position.best_epoch
        annealed = epoch is not None and self.learner.annealing.over((epoch + 1) * self.train.steps)
        return not annealed or best is None or top1 > best

    def _validate(self, stop: StopRequest) -> Evaluation:
        done = 0

        def advance(images: int) -> None:
            nonlocal done
            done += images * self.processes.world
            if stop and self.processes.world == 1:
                raise _StopRequested
            self._report_progress("validating", share=min(1.0, done / len(self.validation)))

        self.timer.start()
        try:
            result = evaluate(
                self.learner.result, self.validation, size=self._size, batch_size=self.train.micro_batch,
                workers=self.config.workers, device=self.device, amp=self.precision.amp,
                channels_last=self.config.channels_last, progress=advance,
                rank=self.processes.rank, world=self.processes.world, warn=False,
            )  # fmt: skip
        except _StopRequested:
            self.saver.catch_up(self.learner, self.position)
            raise stop.stopped(self._message("stopped during validation")) from None
        self.timer.lap_validation()
        return result

    def _report_progress(self, phase: str, share: float = 0.0, **values: Any) -> None:
        """Report progress; `share` is the part of a validation that is done."""
        position, epochs, steps = self.position, self.config.epochs, self.train.steps
        done = position.epoch * steps + position.step
        remaining = self.timer.remaining(epochs * steps - done, epochs - position.epoch)
        self._report(
            Progress(
                phase=phase, epoch=position.epoch + 1, epochs=epochs, step=position.step, steps=steps,
                percent=round(100 * done / (epochs * steps), 2), top1=self._top1,
                eta_seconds=None if remaining is None else round(remaining - share * (self.timer.validation or 0), 1),
                **values,
            )
        )  # fmt: skip

    def _diverged(self) -> DivergedError:
        return DivergedError(
            f"{self._message('the loss is not finite')}; {self.saver.newest()}; lower lr or gating_lr, "
            "set clip_grad=1, or use float32 (with --allow-changes)"
        )

    def _message(self, what: str) -> str:
        position = self.position
        return (
            f"{what} in epoch {position.epoch + 1}, step {position.step} of {self.train.steps} "
            f"(update {position.updates}); go on with --resume --out {self.run_directory.asked}"
        )
