"""`finetune`: fine-tune a checkpoint or model on a data set and write a run directory."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import nn

from tcnn.arguments import typed
from tcnn.config import FinetuneConfig, finetune_settings
from tcnn.config.finetune import DEFAULT_SPLIT
from tcnn.data.image_set import ImageSet
from tcnn.evaluation.comparing.before_after import BeforeAfter
from tcnn.files import path_of
from tcnn.models.checks import unwrapped
from tcnn.models.precision import emulated
from tcnn.training.baseline import baseline_config, baseline_start, check_baseline
from tcnn.training.before_after import FILE, Ran, before_and_after
from tcnn.training.distributed import Processes, join_processes, process_device
from tcnn.training.preparing.converted import Check
from tcnn.training.preparing.inputs import DataSets, data_set, open_data_sets, training_loader
from tcnn.training.preparing.prepare import in_chans, prepare, teacher_for
from tcnn.training.preparing.settings import check_run
from tcnn.training.recipe.annealing import annealing_notes
from tcnn.training.recipe.objective import check_teacher
from tcnn.training.recipe.optim import create_optimizer, gpsa_layers
from tcnn.training.record import (
    Sources,
    begun_in,
    check_settings,
    leaked,
    record_of,
    seen_from_here,
    validated_on_training,
)
from tcnn.training.runs import resume as points
from tcnn.training.runs.callbacks import (
    BASELINE_PHASE,
    Callbacks,
    Progress,
    Report,
    Say,
    StopCheck,
    StopRequest,
    stop_on_signal,
)
from tcnn.training.runs.recorder import check_tensorboard
from tcnn.training.runs.resume import Position
from tcnn.training.runs.rundir import BASELINE, RunDirectory
from tcnn.training.updates.cuda_graph import check_graph
from tcnn.training.updates.loop import Trainer
from tcnn.zoo.catalogue import cnn_of


class FinetuneResult(BaseModel):
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
    unreadable: list[str]
    notes: list[str]
    seconds: float
    before_after: BeforeAfter | None = None
    """The models before and after, if they were compared; without classes and single images."""


@typed()
def finetune(
    model: str | Path | nn.Module,
    data: str | Path | ImageSet,
    val: str | Path | ImageSet | None = None,
    config: FinetuneConfig | None = None,
    out: str | Path = "run",
    *,
    resume: bool = False,
    force: bool = False,
    allow_changes: bool = False,
    pretrained: bool = True,
    weights: Path | None = None,
    names: Mapping[str, str] | None = None,
    baseline: bool = False,
    compare: bool = False,
    report: Report = lambda progress: None,
    say: Say = lambda message: None,
    stop: StopCheck = lambda: False,
    **options: object,
) -> FinetuneResult:
    """Fine-tune a T-CNN, or a CNN that is converted first, with the paper's recipe (Transformed CNNs, §3).

    Args:
        model: a tcnn checkpoint, a timm name, `local-dir:PATH`, `hf-hub:ORG/NAME`, or a module (which is not changed).
        data, val: data sets as `open_dataset` takes them, or opened ones. Without `val` the validation split of `data`
            is taken, or the share `val_split` of the training images, a tenth where there is neither.
        config: the recipe; settings given as keywords override it: ``finetune("resnet50", "photos/", epochs=10)``. In
            its place `preset` names one to begin with: ``finetune("resnet50", "photos/", preset="quick", epochs=10)``.
        out: the run's directory.
        resume: continue from the newest resume point in `out`, or start if there is none.
        force: replace an existing run in `out`.
        allow_changes: resume with other settings than the run began with.
        pretrained, weights: as for `tcnn convert`.
        names: what config.json records as ``model``, ``data`` and ``val``, if not the arguments: a run is resumed with
            the same ones only, and on another host the same data may have another path.
        baseline: then fine-tune the CNN of the same geometry, too, in `out`/baseline: same start, batches and updates.
            It implies `compare`.
        compare: measure the models before and after on the validation images, and write before-after.json.
        report: called after every step with a `Progress`.
        say: called with notes for the user, one line each.
        stop: called after every step; if true, the run saves its state and ends. Signals are handled without it.

    Returns: a `FinetuneResult`. Under `torchrun` every process calls this; the first writes.

    Raises: `RequestError` for a wrong request, `Stopped` after SIGTERM or Ctrl-C, `DivergedError`,
    `EnvironmentFailure`.
    """
    config = finetune_settings(options, config)
    check_run(
        model, resume=resume, force=force, allow_changes=allow_changes, weights=weights, convert=config.convert,
        both_sets=val is not None and options.get("val_split") is not None,
    )  # fmt: skip
    if isinstance(model, str):
        model = cnn_of(model)
    elif not isinstance(model, Path):
        model = unwrapped(model)
    weights = None if weights is None else path_of(weights, "weights")
    data, val = data_set(data), None if val is None else data_set(val, "val")
    sources = Sources(model, data, val, pretrained, weights, names or {})
    directory = _Directory(RunDirectory(path_of(out, "out")), resume, force, allow_changes)
    if resume and directory.run.started:
        sources = seen_from_here(sources, directory.run)
    callbacks = Callbacks(report, say, stop)
    with join_processes(config.device) as processes:
        if not processes.first:
            callbacks = Callbacks(stop=stop)
        if baseline:
            baseline_config(config)
            check_baseline(sources.model)
        result, sets = _finetune(sources, directory, config, processes, callbacks, more=baseline or compare)
        cnn = _baseline(sources, directory, config, processes, callbacks, sets) if baseline else None
        device, first = process_device(config.device, processes), processes.first
    if first and (baseline or compare):
        best = Path(result.best), None if cnn is None else Path(cnn.best)
        ran = Ran(sources.model, config, _size(directory.run), *best, pretrained, weights)
        found = before_and_after(ran, sets[1], device, callbacks.report, directory.run.path / FILE)
        result.before_after = found.headline()
    return result


def _baseline(
    sources: Sources, directory: "_Directory", config: FinetuneConfig, processes: Processes, callbacks: Callbacks,
    sets: DataSets,
) -> FinetuneResult:  # fmt: skip
    """Fine-tune the CNN beside the T-CNN; a run of its own, which is resumed by itself."""
    run = RunDirectory(directory.run.path / BASELINE)
    begun = directory.resume and run.started and bool(points.points(run.resume))
    # A resume point brings all weights but the teacher's.
    wanted = sources.pretrained and (not begun or config.teacher == "source")
    start = baseline_start(sources.model, config, sets[0].class_names, wanted, sources.weights)
    record = directory.run.record()
    names: dict[str, Any] = {
        key: record[key] for key in ("model", "data", "val", "weights", "directory") if key in record
    }
    cnn = sources._replace(model=start.model, pretrained=False, weights=None, names=names)
    callbacks.say("training the CNN with the same recipe")

    def report(now: Progress) -> None:
        callbacks.report(now.model_copy(update={"phase": f"{BASELINE_PHASE}{now.phase}"}))

    own = baseline_config(sets[2]).model_copy(update={"size": start.size})
    own_sets = (*sets[:2], own)
    beside = replace(callbacks, report=report)
    result, _ = _finetune(cnn, directory._replace(run=run), own, processes, beside, own_sets, more=True)
    return result


def _size(run: RunDirectory) -> tuple[int, int]:
    height, width = run.record()["size"]
    return height, width


class _Directory(NamedTuple):
    """The run directory, and whether a run in it is resumed or replaced."""

    run: RunDirectory
    resume: bool
    force: bool
    allow_changes: bool


def _finetune(
    sources: Sources, directory: _Directory, config: FinetuneConfig, processes: Processes, callbacks: Callbacks,
    opened: DataSets | None = None, more: bool = False,
) -> tuple[FinetuneResult, DataSets]:  # fmt: skip
    started = time.monotonic()
    device = process_device(config.device, processes)
    if config.cuda_graph:
        check_graph(device, processes.world)
    run, source, say = directory.run, sources.model, callbacks.say
    resuming = directory.resume and run.started
    asked_split = config.val_split
    if not resuming:
        run.check(directory.force)
    train_set, val_set, config = opened or open_data_sets(sources.data, sources.val, config, in_chans(source))
    point, unreadable = points.latest_point(run.resume) if resuming else (None, [])
    for line in unreadable:
        say(line)
    # A resume point brings all weights, so the pretrained ones need not be there any more.
    fresh = point is None
    weights = sources.weights if fresh else None
    random = not sources.pretrained and weights is None and not isinstance(source, nn.Module)
    check = Check(config, device, random, callbacks.report)
    start = prepare(
        source, config, train_set.class_names, sources.pretrained and fresh, weights,
        check if fresh and processes.first else lambda *given: None,
    )  # fmt: skip
    teacher = teacher_for(source, config, sources.pretrained, sources.weights)
    if teacher is not None:
        check_teacher(teacher, start.model, train_set.class_names)
    record = record_of(sources, config, start, train_set)
    loader = training_loader(start, train_set, config, processes, device)
    # Before an existing run is replaced: an optimizer that cannot be created must not cost it.
    create_optimizer(start.model, config)
    notes = [*start.notes, *annealing_notes(start.model, config, loader.steps)]
    notes.extend(
        filter(
            None,
            (leaked(record), validated_on_training(record, train_set, val_set), emulated(config.amp, device)),
        )
    )
    if config.val_split != asked_split:
        notes.insert(0, f"no validation split, so {DEFAULT_SPLIT:.0%} of the images of every class are held out")
    check_tensorboard(config)
    processes.barrier()  # all have looked at the directory before one of them writes to it
    if resuming:
        check_settings(run, record, directory.allow_changes, say)
        if fresh and processes.first:
            run.rewind(0, 0)
    elif processes.first:
        run.create(record | begun_in(sources), directory.force)
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
            say(_resume_note(point.position, loader.steps))
        position = trainer.run(stop)
        _heed(stop, more, processes, config.device, directory)
    last = _last_scores(run)
    result = FinetuneResult(
        model=record["model"], out=str(run.path), best=str(run.best), last=str(run.last), epochs=position.epoch,
        updates=position.updates, top1=last["top1"], top5=last["top5"], best_top1=position.best or 0.0,
        best_epoch=position.best_epoch or 0, layers=len(gpsa_layers(trainer.model)),
        classes=len(train_set.class_names), train_images=len(train_set), val_images=len(val_set),
        unreadable=position.unreadable, notes=notes, seconds=round(time.monotonic() - started, 1),
    )  # fmt: skip
    return result, (train_set, val_set, config)


def _heed(stop: StopRequest, more: bool, processes: Processes, device: str, directory: _Directory) -> None:
    """Raise `Stopped` for a stop that came in the last validation, if `more` is to be done after it."""
    if more and any(processes.sum([float(bool(stop))], process_device(device, processes))):
        raise stop.stopped(f"stopped after the last epoch; go on with --resume --out {directory.run.path}")


def _last_scores(run: RunDirectory) -> dict[str, Any]:
    rows = run.rows("epoch")
    scores: dict[str, Any] = rows[-1]["val"] if rows else {"top1": 0.0, "top5": None}
    return scores


def _resume_note(position: Position, steps: int) -> str:
    if position.finished:
        return "the run is finished already"
    return f"going on in epoch {position.epoch + 1} at step {position.step} of {steps}"
