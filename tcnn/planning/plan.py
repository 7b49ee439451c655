"""`plan`: what a fine-tuning run takes in memory, time and disk, from shapes and from a few of its real steps."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from tcnn.arguments import typed
from tcnn.config import FinetuneConfig, finetune_settings, settings_given
from tcnn.config.effects import refuse_without_part
from tcnn.conversion.surgery import convert
from tcnn.data.image_set import ImageSet
from tcnn.data.loader import TrainingLoader
from tcnn.data.sources.opened import Opened
from tcnn.errors import RequestError
from tcnn.files import path_of
from tcnn.models.checks import unwrapped
from tcnn.models.copying import copied
from tcnn.models.running import gpsa_layers
from tcnn.models.trace import flops, input_shape, meta_copy, parameter_count
from tcnn.planning.memory import (
    free_bytes,
    free_disk_bytes,
    optimizer_bytes,
    peak_bytes,
    reset_peak,
    step_bytes,
    taken_bytes,
)
from tcnn.planning.report import PlannedDisk, PlannedMemory, PlannedModel, PlannedPhase, TrainingPlan, short_of_memory
from tcnn.planning.trial import Pace, Phase, Trial, epoch_seconds
from tcnn.state import parts
from tcnn.training.baseline import baseline_config, baseline_start, check_baseline
from tcnn.training.distributed import Processes, process_device
from tcnn.training.preparing.converted import conversion_at, is_kept
from tcnn.training.preparing.inputs import data_sets, open_data_sets, training_loader
from tcnn.training.preparing.prepare import Start, in_chans, is_checkpoint, prepare, teacher_for
from tcnn.training.preparing.settings import check_run
from tcnn.training.recipe.annealing import annealing_notes, annealing_schedule, is_single_value, set_temperatures
from tcnn.training.recipe.effects import parts_of
from tcnn.training.recipe.optim import create_optimizer
from tcnn.training.runs.callbacks import Say
from tcnn.training.updates.learner import Learner
from tcnn.training.updates.step import MixedPrecision

SECONDS = 20.0
"""Seconds of real steps, shared by the phases of the run."""
MOST_SECONDS = 86_400

MAPS_NOTE = (
    "memory: computed, not measured, as of attention in chunks; in 16 bits a GPU may keep whole maps, which can take "
    "more where they are large"
)


def keeps_maps(config: FinetuneConfig, device: torch.device) -> bool:
    """Whether a run takes the backend that keeps maps in 16 bits, whose memory only a real step on that GPU tells."""
    return device.type == "cuda" and MixedPrecision(config, device).dtype != torch.float32


class Target(NamedTuple):
    """The machine that a run is planned for, where that is not this one: its steps can only be computed."""

    device: torch.device
    free: int | None
    """Bytes of memory that a run may take there, if known."""


class _Run(NamedTuple):
    """What is the same for the run and for its baseline."""

    train: ImageSet
    validation: ImageSet
    out: Path
    target: Target
    seconds: float
    say: Say


@torch.inference_mode(False)
@typed()
def plan(
    model: str | Path | nn.Module,
    data: str | Path | ImageSet | Opened,
    val: str | Path | ImageSet | Opened | None = None,
    config: FinetuneConfig | None = None,
    out: str | Path = "run",
    *,
    seconds: float = SECONDS,
    pretrained: bool = True,
    weights: str | Path | None = None,
    baseline: bool = False,
    target: Target | None = None,
    say: Say = lambda message: None,
    **options: object,
) -> TrainingPlan:
    """Plan a run of `finetune`: its memory, time and disk space, the models' sizes, and what would make it fail.

    The steps of a trial are those of the run, with random weights: no weights are downloaded and nothing is written.
    Where they would not fit into the memory there is none, and the plan says how many images would.

    Args:
        model, data, val, config, options: as for `finetune`.
        out: where the run is to be: only its disk is looked at.
        seconds: of real steps; 0 for a plan by computation alone.
        pretrained, weights: as for `finetune`, and refused alike; they are not loaded, for they take the same whatever
            they are, but their file must be there.
        baseline: as for `finetune`: the CNN is trained afterwards, and planned for as well.
        target: another machine than this one, for a plan by computation alone.
        say: called with what is being done, one line each.

    Raises: what `finetune` raises for a wrong request.
    """
    config = finetune_settings(options, config)
    check_run(
        model, weights=weights, pretrained=pretrained, convert=config.convert,
        both_sets=val is not None and options.get("val_split") is not None,
    )  # fmt: skip
    model = model if isinstance(model, str | Path) else unwrapped(model)
    if not 0 <= seconds <= MOST_SECONDS:
        raise RequestError(f"seconds: expected 0 or more, at most {MOST_SECONDS}, found {seconds:g}")
    if target is not None and seconds:
        raise RequestError("seconds: steps are taken on this machine; a plan for another one needs seconds=0")
    if baseline:
        baseline_config(config)
        check_baseline(model)
    if target is None:
        device = process_device(config.device, Processes())
        target = Target(device, free_bytes(device))
    train, validation, config = open_data_sets(*data_sets(data, val, config.val_split), config, in_chans(model))
    run = _Run(train, validation, path_of(out, "out"), target, seconds, say)
    say("building the model")
    start = prepare(model, config, train.class_names, pretrained=False)
    refuse_without_part(config, settings_given(config, options), parts_of(start.model, config))
    source = _before(model, config, train, start)
    teacher = teacher_for(model, config, pretrained=False)
    made = _planned(run, start, config, teacher, source)
    named = {"model": str(model) if not isinstance(model, nn.Module) else type(model).__name__}
    del start, source
    if baseline:
        say("building the CNN beside it")
        beside = baseline_start(model, config, train.class_names, pretrained=False)
        own = baseline_config(config).model_copy(update={"size": beside.size})
        made = made.model_copy(update={"baseline": _planned(run, beside, own, teacher, None).model_copy(update=named)})
    problems = tuple(_problems(made, target.device))
    return made.model_copy(update={**named, "problems": problems})


def _planned(
    run: _Run, start: Start, config: FinetuneConfig, teacher: nn.Module | None, source: nn.Module | None
) -> TrainingPlan:
    """The plan of one run from its start; `source` is the CNN before a conversion."""
    scaled, processes, device = config.scaled(), Processes(), run.target.device
    loader = training_loader(start, run.train, config, processes, device)
    notes = [*filter(None, [run.train.left_out]), *start.notes, *annealing_notes(start.model, config, loader.steps)]
    run.say("computing memory")
    end = _at_end(start, config, loader.steps)
    memory = _memory(end, start.size, config, loader, run.target, teacher)
    if not (run.seconds and memory.fits) and gpsa_layers(end) and keeps_maps(config, device):
        notes.append(MAPS_NOTE)
    disk = _disk(end, config, run.out, converted=source is not None and source is not start.model)
    result = _described(end, start.size)
    before = _described(source, start.size) if source is not None and gpsa_layers(end) else None
    before = None if before == result else before
    del end, source
    paces: list[tuple[Phase, Pace]] = []
    if run.seconds and memory.fits:
        reset_peak(device)
        learner = Learner(
            start.model, scaled, steps=loader.steps, precision=MixedPrecision(scaled, device), processes=processes,
            teacher=teacher, trunk=start.trunk,
        )  # fmt: skip
        trial = Trial(learner, loader, run.validation, scaled, start.size)
        try:
            for phase in trial.phases():
                run.say(f"taking a few steps: {phase.name}")
                paces.append((phase, trial.time(phase, run.seconds / 3)))
        finally:
            loader.close()
        peak = peak_bytes(device)
        memory = memory.model_copy(update={"measured": None if peak is None else peak + memory.waiting})
    return TrainingPlan(
        model="", device=str(device), size=start.size, classes=len(run.train.class_names),
        train_images=len(run.train), val_images=len(run.validation), epochs=scaled.epochs,
        updates=scaled.epochs * loader.steps, batch_size=config.batch_size, source=before, result=result,
        memory=memory, phases=tuple(_timed(phase, pace, loader, config.batch_size) for phase, pace in paces),
        epoch_seconds=tuple(epoch_seconds(paces, loader.steps, scaled.epochs, loader.micro_batches)) if paces else (),
        disk=disk, notes=tuple(notes),
    )  # fmt: skip


def _before(model: str | Path | nn.Module, config: FinetuneConfig, train: ImageSet, start: Start) -> nn.Module:
    """The CNN before its conversion; a T-CNN that is given is what it is."""
    if config.convert_at is not None or (not isinstance(model, nn.Module) and is_checkpoint(model)):
        return start.model
    if isinstance(model, nn.Module) and gpsa_layers(model):
        return start.model
    unfrozen = config.model_copy(update={"convert": False, "freeze": "none"})
    return prepare(model, unfrozen, train.class_names, pretrained=False).model


def _at_end(start: Start, config: FinetuneConfig, steps: int) -> nn.Module:
    """A copy of the model as the last update finds it: converted, at its last τ."""
    scaled, model = config.scaled(), start.model
    at_end = config.convert_at is not None
    model = convert(model, conversion_at(config, start.size)).model if at_end else copied(model)
    taus = annealing_schedule(model, scaled, steps).temperatures(scaled.epochs * steps - 1)
    for layer in gpsa_layers(model).values():
        set_temperatures(layer, taus)
    return model.train()


def _described(model: nn.Module, size: tuple[int, int]) -> PlannedModel:
    return PlannedModel(
        parameters=parameter_count(model),
        trained_parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        layers=len(gpsa_layers(model)),
        flops=flops(meta_copy(model).eval(), input_shape(model, size)),
    )


def _memory(
    model: nn.Module,
    size: tuple[int, int],
    config: FinetuneConfig,
    loader: TrainingLoader,
    target: Target,
    teacher: nn.Module | None,
) -> PlannedMemory:
    """Memory by computation: of the configured micro-batch, and of a smaller one where that does not fit."""
    shape = input_shape(model, size)
    image = 4 * math.prod(shape)
    own = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    taken, free = taken_bytes(target.device), target.free
    configured = micro = loader.micro_batch
    while True:
        try:
            tensors = step_bytes(
                model, lambda made: create_optimizer(made, config), (micro, *shape),
                MixedPrecision(config, target.device).dtype,
                teacher,
            )  # fmt: skip
        except ValueError as error:
            if micro == configured or not is_single_value(error):
                raise
            break  # what was computed last does not fit
        waiting = image * (loader.share - micro)
        needed = tensors + waiting + (own if config.ema is not None else 0)
        if free is None or needed <= free or micro == 1:
            break
        # What a pass takes is proportional to its images, but for parameters, gradients and the optimizer's state.
        passes = micro * max(0, free - 4 * own - waiting) // max(1, tensors - 4 * own)
        micro = max(1, min(micro // 2, 1 << max(0, passes.bit_length() - 1)))
    enough = free is None or needed <= free
    return PlannedMemory(
        micro_batch=micro if enough else 0, configured=configured, computed=tensors, waiting=waiting,
        expected=taken + needed, measured=None, free=free,
    )  # fmt: skip


def _disk(model: nn.Module, config: FinetuneConfig, out: Path, *, converted: bool) -> PlannedDisk:
    """`converted`: whether the model is one that was converted before its first step."""
    weights = parts(model.state_dict()).bytes
    point = weights * (1 if config.ema is None else 2) + optimizer_bytes(model, lambda m: create_optimizer(m, config))
    checkpoints = 3 if converted and gpsa_layers(model) and is_kept(config) else 2
    return PlannedDisk(
        checkpoint=weights, resume_point=point, total=checkpoints * weights + (config.keep + 1) * point,
        free=free_disk_bytes(out),
    )  # fmt: skip


def _timed(phase: Phase, pace: Pace, loader: TrainingLoader, batch_size: int) -> PlannedPhase:
    seconds = loader.micro_batches * pace.micro_batch + pace.update
    return PlannedPhase(
        name=phase.name, begin=phase.begin, end=phase.end, seconds_per_update=seconds,
        images_per_second=batch_size / seconds, seconds_per_validation=pace.reestimation + pace.validation,
    )  # fmt: skip


def _problems(made: TrainingPlan, device: torch.device) -> Iterator[str]:
    """What would end the run, one line each."""
    for run in (made, made.baseline):
        if run is not None and not run.memory.fits:
            yield short_of_memory(run.memory, device, "" if run is made else " of the CNN beside it")
    total, free = made.disk_bytes, made.disk.free
    if total > free:
        yield f"disk: the run takes {total / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; choose another --out"
