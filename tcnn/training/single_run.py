"""One run in its directory, new or resumed: all is opened and checked before the first step, then it is trained."""

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from torch import nn

from tcnn.config import FinetuneConfig
from tcnn.config.finetune import DEFAULT_SPLIT
from tcnn.data.image_set import ImageSet
from tcnn.data.loader import TrainingLoader
from tcnn.evaluation.comparing.before_after import BeforeAfter
from tcnn.formatting import Printed, some
from tcnn.models.copying import copied
from tcnn.models.precision import emulated
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import input_shape
from tcnn.training.distributed import Processes, process_device
from tcnn.training.preparing.converted import Check
from tcnn.training.preparing.inputs import DataSets, open_data_sets, training_loader
from tcnn.training.preparing.prepare import Start, in_chans, prepare, teacher_for
from tcnn.training.recipe.annealing import annealing_notes
from tcnn.training.recipe.effects import rate_notes, refuse_idle
from tcnn.training.recipe.freezing import set_trunk_eval
from tcnn.training.recipe.objective import check_teacher
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.record import (
    Sources,
    leakage_note,
    run_record,
    trained_on_note,
    trained_on_too,
    validated_on_training,
    working_directory,
)
from tcnn.training.resumed import Resumed
from tcnn.training.runs import resume as points
from tcnn.training.runs.callbacks import Callbacks, StopRequest, stop_on_signal
from tcnn.training.runs.recorder import check_tensorboard
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import RunDirectory
from tcnn.training.updates.cuda_graph import check_graph
from tcnn.training.updates.loop import Trainer
from tcnn.training.updates.sync_trial import apart, apart_note, trial_images


class FinetuneResult(Printed, BaseModel):
    """Result of fine-tuning, as `tcnn finetune --json` prints it. Accuracies are shares between 0 and 1."""

    model: str
    out: str
    best: str
    last: str
    epochs: int
    updates: int
    top1: float
    top5: float | None
    best_top1: float
    best_epoch: int
    """Counted from 0, as in metrics.jsonl."""
    layers: int
    classes: int
    train_images: int
    val_images: int
    val_trained_on: int | None = None
    """How many of the validation images are training images; None where it was not looked into."""
    unreadable: list[str]
    """Of the validation images, twenty at most."""
    unreadable_count: int
    notes: list[str]
    seconds: float
    before_after: BeforeAfter | None = None
    """The models before and after, if they were compared; without classes and single images."""

    def __str__(self) -> str:
        """Accuracy, what it gained, and checkpoints, in the lines of `tcnn finetune`."""
        top5 = "" if self.top5 is None else f", top-5 {self.top5:.2%}"
        lines = [
            f"{self.model}: top-1 {self.top1:.2%}{top5} after {some(self.epochs, 'epoch')} "
            f"({some(self.updates, 'update')}, {some(self.layers, 'GPSA layer')}); "
            f"best {self.best_top1:.2%} in epoch {self.best_epoch + 1}"
        ]
        if self.unreadable_count:
            lines.append(f"{some(self.unreadable_count, 'image')} could not be read and took no part")
        if self.before_after is not None:
            lines += self.before_after.lines()
        return "\n".join([*lines, f"best checkpoint: {self.best}", f"last checkpoint: {self.last}"])


class Destination(NamedTuple):
    """A run directory, and whether a run in it is resumed or replaced."""

    run: RunDirectory
    resume: bool
    force: bool
    allow_changes: bool


def train_run(
    sources: Sources, destination: Destination, config: FinetuneConfig, processes: Processes, callbacks: Callbacks,
    opened: DataSets | None = None, more: bool = False, given: Collection[str] = (),
) -> tuple[FinetuneResult, DataSets]:  # fmt: skip
    """Fine-tune in a directory; returns the result and the data sets.

    Args:
        opened: the data sets, if they are open.
        more: whether something follows the training, which a stop in its last validation stops as well.
        given: names of settings that are refused if they have no effect on the model (`refuse_idle`).
    """
    started = time.monotonic()
    device = process_device(config.device, processes)
    if config.cuda_graph:
        check_graph(device, processes.world)
    run, say = destination.run, callbacks.say
    resuming = destination.resume and run.started
    if not resuming:
        run.check(destination.force, _named_models(sources, config))
    if processes.first and run.path.is_dir():
        run.hold()  # before anything of it is read; one that is not there yet is held once it is made
    asked_split = config.val_split
    train_set, val_set, config = opened or open_data_sets(sources.data, sources.val, config, in_chans(sources.model))
    point, unreadable = points.latest_point(run.resume) if resuming else (None, [])
    for line in unreadable:
        say(line)
    fresh = point is None
    start, check = _initial_model(sources, config, train_set.class_names, fresh, device, processes, callbacks)
    teacher = _teacher(sources, config, start, train_set.class_names)
    record = run_record(sources, config, start, train_set, val_set)
    resumed = Resumed(run, record, None if point is None else point.position) if resuming else None
    record = record if resumed is None else resumed.record
    loader = training_loader(start, train_set, config, processes, device)
    _check_settings(start.model, config, given if resumed is None else resumed.changed(given), loader.steps)
    notes, shared = _notes(
        start, record, train_set, val_set, config, loader, device, config.val_split != asked_split, processes
    )  # fmt: skip
    check_tensorboard(config)
    processes.barrier()  # all have looked at the directory before one of them writes to it
    if resumed is not None:
        resumed.check(destination.allow_changes, say)
        if fresh and processes.first:
            run.rewind(0, 0)
    elif processes.first:
        run.create(record | working_directory(sources), destination.force)
    check.keep(start.model, run.path, record["weights"])
    for note in (*notes, *filter(None, (check.line(),))):
        say(note)
    processes.barrier()
    if processes.first:
        run.remove_partial_files()
        points.remove_partial_files(run.resume)
    with stop_on_signal(callbacks.stop) as stop:
        trainer = Trainer(
            start, loader, val_set, config.scaled(), run, device=device, processes=processes, teacher=teacher,
            record=record, report=callbacks.report, warn=say,
        )  # fmt: skip
        if point is not None:
            trainer.restore(point)
            say(_going_on(trainer.position, resumed, loader.steps))
        if processes.first and not trainer.position.finished:
            _learns_on(run, resumed, sources)
        position = trainer.run(stop)
        if more:
            _check_stop(stop, processes, device, run)
    last = _last_scores(run)
    result = FinetuneResult(
        model=record["model"], out=str(run.path), best=str(run.best), last=str(run.last), epochs=position.epoch,
        updates=position.updates, top1=last["top1"], top5=last["top5"], best_top1=position.best or 0.0,
        best_epoch=position.best_epoch or 0, layers=len(gpsa_layers(trainer.model)),
        classes=len(train_set.class_names), train_images=len(train_set), val_images=len(val_set),
        val_trained_on=shared,
        unreadable=position.unreadable, unreadable_count=position.unreadable_count, notes=notes,
        seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip
    return result, (train_set, val_set, config)


def _initial_model(
    sources: Sources, config: FinetuneConfig, class_names: Sequence[str], fresh: bool, device: torch.device,
    processes: Processes, callbacks: Callbacks,
) -> tuple[Start, Check]:  # fmt: skip
    """The model before the first step, verified if it is converted here.

    `fresh`: without a resume point, which brings all weights, so that the pretrained ones need not be there any more.
    """
    weights = sources.weights if fresh else None
    random = not sources.pretrained and weights is None and not isinstance(sources.model, nn.Module)
    check = Check(config, device, random, callbacks.report)
    start = prepare(
        sources.model, config, class_names, sources.pretrained and fresh, weights,
        check if fresh and processes.first else None,
    )  # fmt: skip
    return start, check


def _teacher(sources: Sources, config: FinetuneConfig, start: Start, class_names: Sequence[str]) -> nn.Module | None:
    teacher = teacher_for(sources.model, config, sources.pretrained, sources.weights)
    if teacher is not None:
        check_teacher(teacher, start.model, class_names, start.size)
    return teacher


def _named_models(sources: Sources, config: FinetuneConfig) -> list[str | Path]:
    """The models that a run reads more than once: when it is resumed, or compared with what it began with."""
    named = (sources.model, sources.weights, None if config.teacher == "source" else config.teacher)
    return [one for one in named if isinstance(one, str | Path)]


def _check_settings(model: nn.Module, config: FinetuneConfig, given: Collection[str], steps: int) -> None:
    """Raise `RequestError` before an existing run is replaced: what is refused must not cost it."""
    create_optimizer(model, config)
    refuse_idle(model, config, given, steps)


def _notes(
    start: Start, record: dict[str, Any], train_set: ImageSet, val_set: ImageSet, config: FinetuneConfig,
    loader: TrainingLoader, device: torch.device, split_by_default: bool, processes: Processes,
) -> tuple[list[str], int | None]:  # fmt: skip
    """Notes for the user before the first step, one line each, and how many validation images are training images.

    The first process reads images to find these.
    """
    default = f"no validation split, so {DEFAULT_SPLIT:.0%} of the images of every class are held out"
    first = [default] if split_by_default else []
    held_out = record["val"] is None and val_set.beside(train_set)  # by the run itself
    shared = trained_on_too(train_set, val_set) if processes.first and not held_out else None
    others = (
        *dict.fromkeys((train_set.left_out, val_set.left_out)),
        leakage_note(record),
        validated_on_training(record, train_set, val_set) or trained_on_note(shared or (), val_set),
        emulated(config.amp, device),
        _note_of_processes(start, loader.micro_batch, config, processes, device),
    )
    recipe = (*annealing_notes(start.model, config, loader.steps), *rate_notes(start.model, config))
    notes = [*first, *start.notes, *recipe, *filter(None, others)]
    return notes, None if shared is None else len(shared)


def _note_of_processes(
    start: Start, images: int, config: FinetuneConfig, processes: Processes, device: torch.device
) -> str | None:
    """A note on modules that do not compute what they would in one process, if any, with passes of so many images."""
    if processes.world == 1:
        return None
    model = copied(start.model).to(device)
    set_trunk_eval(model, start.trunk)
    generator = torch.Generator().manual_seed(config.seed)
    x = torch.randn(trial_images(images) * processes.world, *input_shape(model, start.size), generator=generator)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    return apart_note(model, apart(model, x.to(device, memory_format=layout), processes))


def _learns_on(run: RunDirectory, resumed: Resumed | None, sources: Sources) -> None:
    """What its directory says of a run whose model is about to learn, or to learn on."""
    if resumed is not None:
        resumed.write(sources)
    run.comparison.unlink(missing_ok=True)  # of models as they were


def _check_stop(stop: StopRequest, processes: Processes, device: torch.device, run: RunDirectory) -> None:
    """Raise `Stopped` in all processes if one of them was asked to stop in the last validation."""
    if any(processes.sum([float(bool(stop))], device)):
        raise stop.stopped(f"stopped after the last epoch; go on with --resume --out {run.asked}")


def _last_scores(run: RunDirectory) -> dict[str, Any]:
    rows = run.rows("epoch")
    scores: dict[str, Any] = rows[-1]["val"] if rows else {"top1": 0.0, "top5": None}
    return scores


def _going_on(position: Position, resumed: Resumed | None, steps: int) -> str:
    """Say where a run goes on, and forget its best epoch if it is compared with no other one."""
    if position.finished:
        return "the run is finished already"
    anew = "; the best epoch is chosen anew" if resumed is not None and resumed.forget_best(position) else ""
    return f"going on in epoch {position.epoch + 1} at step {position.step} of {steps}{anew}"
