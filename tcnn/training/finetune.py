"""`finetune`: fine-tune a checkpoint or model on a data set and write a run directory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import nn

from tcnn.arguments import typed
from tcnn.config import FinetuneConfig, finetune_settings, settings_given
from tcnn.data.image_set import ImageSet
from tcnn.data.sources.opened import Opened
from tcnn.files import path_of
from tcnn.models.checks import unwrapped
from tcnn.training.baseline import baseline_config, baseline_start, check_baseline
from tcnn.training.before_after import FinishedRun, before_and_after
from tcnn.training.distributed import Processes, join_processes, process_device
from tcnn.training.preparing.inputs import DataSets, data_sets
from tcnn.training.preparing.settings import check_run
from tcnn.training.record import Sources
from tcnn.training.resumed import seen_from_here
from tcnn.training.runs import resume as points
from tcnn.training.runs.callbacks import BASELINE_PHASE, Callbacks, Progress, Report, Say, StopCheck
from tcnn.training.runs.display import run_callbacks
from tcnn.training.runs.rundir import BASELINE, RunDirectory
from tcnn.training.single_run import Destination, FinetuneResult, train_run
from tcnn.zoo.catalogue import cnn_of

_LEARNING = Lock()
"""Held by the run that learns in this process."""


@torch.inference_mode(False)  # with gradients, whatever the caller is about
@typed()
def finetune(
    model: str | Path | nn.Module,
    data: str | Path | ImageSet | Opened,
    val: str | Path | ImageSet | Opened | None = None,
    config: FinetuneConfig | None = None,
    out: str | Path = "run",
    *,
    resume: bool = False,
    force: bool = False,
    allow_changes: bool = False,
    pretrained: bool = True,
    weights: str | Path | None = None,
    names: Mapping[str, str] | None = None,
    baseline: bool = False,
    compare: bool = False,
    report: Report | None = None,
    say: Say | None = None,
    quiet: bool = False,
    stop: StopCheck = lambda: False,
    **options: object,
) -> FinetuneResult:
    """Fine-tune a T-CNN, or a CNN that is converted first, with the paper's recipe (Transformed CNNs, §3).

    Args:
        model: a tcnn checkpoint, a timm name, `local-dir:PATH`, `hf-hub:ORG/NAME`, or a module (which is not changed).
        data, val: data sets as `open_dataset` takes them: names, Hugging Face's, torchvision's. Without `val` the
            validation split of `data` is taken, or the share `val_split` of the training images, a tenth
            where there is neither.
        config: the recipe; settings given as keywords override it: ``finetune("resnet50", "photos/", epochs=10)``. In
            its place `preset` names one to begin with: ``finetune("resnet50", "photos/", preset="quick", epochs=10)``.
        out: the run's directory.
        resume: continue from the newest resume point in `out`, or start if there is none.
        force: replace an existing run in `out`, unless a model that this one needs lies in it.
        allow_changes: resume with other settings than the run had last; config.json lists what changed.
        pretrained, weights: as for `tcnn convert`.
        names: what config.json records as ``model``, ``data`` and ``val``, if not the arguments: a run is resumed with
            the same ones only, and on another host the same data may have another path.
        baseline: then fine-tune the CNN of the same geometry, too, in `out`/baseline: same start, batches and updates.
            It implies `compare`.
        compare: measure the models before and after on the validation images, and write before-after.json.
        report: called after every step with a `Progress`.
        say: called with notes for the user, one line each.
        quiet: show nothing. Otherwise, where neither `report` nor `say` is given, progress and notes are shown on
            stderr, as `tcnn finetune` does.
        stop: called after every step; if true, the run saves its state and ends. Signals are handled without it.

    Returns: a `FinetuneResult`. Under `torchrun` every process calls this; the first writes.

    Raises: `RequestError` for a wrong request, `Stopped` after SIGTERM or Ctrl-C, `DivergedError`,
    `EnvironmentFailure`.
    """
    config = finetune_settings(options, config)
    given = settings_given(config, options)
    check_run(
        model, resume=resume, force=force, allow_changes=allow_changes, weights=weights, convert=config.convert,
        both_sets=val is not None and options.get("val_split") is not None,
    )  # fmt: skip
    if isinstance(model, str):
        model = cnn_of(model)
    elif not isinstance(model, Path):
        model = unwrapped(model)
    file = None if weights is None else path_of(weights, "weights")
    data, val = data_sets(data, val, config.val_split)
    sources = Sources(model, data, val, pretrained, file, names or {})
    run = RunDirectory(path_of(out, "out"))
    destination = Destination(run, resume, force, allow_changes)
    if resume and run.started:
        sources, config = seen_from_here(sources, config, run.record())
    with run.released(), run_callbacks(report, say, stop, run.path, quiet) as callbacks:
        with _alone(callbacks.say), join_processes(config.device) as processes:
            own = callbacks if processes.first else Callbacks(stop=stop)
            if baseline:
                baseline_config(config)
                check_baseline(sources.model)
            result, sets = train_run(
                sources, destination, config, processes, own, more=baseline or compare, given=given
            )
            cnn = _baseline(sources, destination, config, processes, own, sets) if baseline else None
            device, first = process_device(config.device, processes), processes.first
        if first and (baseline or compare):
            height, width = run.record()["size"]
            finished = FinishedRun(
                sources.model, config, (height, width), Path(result.best), None if cnn is None else Path(cnn.best),
                pretrained, sources.weights,
            )  # fmt: skip
            found = before_and_after(finished, sets[1], device, callbacks.report, run.comparison)
            result.before_after = found.headline()
    return result


@contextmanager
def _alone(say: Say) -> Iterator[None]:
    """While a run learns; one that begins meanwhile, in another thread, is told what it shares with it."""
    first = _LEARNING.acquire(blocking=False)
    if not first:
        say(
            "another run learns in this process: both draw from one random state, so that neither can be repeated "
            "exactly; give each a process of its own"
        )
    try:
        yield
    finally:
        if first:
            _LEARNING.release()


def _baseline(
    sources: Sources, destination: Destination, config: FinetuneConfig, processes: Processes, callbacks: Callbacks,
    sets: DataSets,
) -> FinetuneResult:  # fmt: skip
    """Fine-tune the CNN beside the T-CNN; a run of its own, which is resumed by itself."""
    run = RunDirectory(destination.run.path / BASELINE, asked=destination.run.path)
    begun = destination.resume and run.started and bool(points.points(run.resume))
    # A resume point brings all weights but the teacher's.
    wanted = sources.pretrained and (not begun or config.teacher == "source")
    start = baseline_start(sources.model, config, sets[0].class_names, wanted, sources.weights)
    record = destination.run.record()
    names: dict[str, Any] = {
        key: record[key] for key in ("model", "data", "val", "weights", "directory") if key in record
    }
    cnn = sources._replace(model=start.model, pretrained=False, weights=None, names=names)
    callbacks.say("training the CNN with the same recipe")

    outer = callbacks.report

    def report(now: Progress) -> None:
        outer(now.model_copy(update={"phase": f"{BASELINE_PHASE}{now.phase}"}))

    own = baseline_config(sets[2]).model_copy(update={"size": start.size})
    callbacks = replace(callbacks, report=report)
    with run.released():
        result, _ = train_run(
            cnn, destination._replace(run=run), own, processes, callbacks, (*sets[:2], own), more=True
        )
    return result
