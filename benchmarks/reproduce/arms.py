"""One piece of an experiment, in one process: fit the CNN to the data, train an arm, measure it. Each goes on where it
was stopped or killed."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measuring
import numpy
import torch
from experiment import Arm, identity
from job import Job, Sets, adapted, digest, place, sets
from networks.building import network, shaped
from torch import nn

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.data.image_set import ImageSet
from tcnn.files import replacing
from tcnn.training.preparing.settings import size_for
from tcnn.training.runs.rundir import RunDirectory


def start(
    job: Job, kind: str, config: FinetuneConfig, class_names: tuple[str, ...], name: str | None = None
) -> nn.Module:
    """The network that an arm starts from, the experiment's where it is not named: adapted, published or untrained."""
    published = kind != "untrained" and job.experiment.pretrained
    model = network(name or job.experiment.model, job.weights, class_names, config, pretrained=published)
    return tcnn.load(RunDirectory(adapted(job)).last, source=model) if kind == "adapted" else model


def adapt(job: Job, say: Callable[[str], None]) -> None:
    """The first phase: the CNN fine-tuned to the data, once, for all arms."""
    if (adapted(job) / "finished").is_file():
        return
    config = job.experiment.adapt_config(job.options)
    images = sets(job)
    kind = "published" if job.experiment.pretrained else "untrained"
    fit(job, start(job, kind, config, images.train.class_names), images, config, adapted(job), say)
    (adapted(job) / "finished").touch()


def prepare(job: Job) -> None:
    """Corrupt the validation images while the CNN is being adapted; what is not ready is made when it is needed."""
    images, experiment = sets(job), job.experiment
    for arm in experiment.arms:
        config = experiment.config(arm, experiment.seeds[0])
        # Weights are of no matter, only how the network takes its images.
        model = network(experiment.model_of(arm), None, images.train.class_names, config, pretrained=False)
        config = sized(experiment.arms[arm], config, model)
        for case in measuring.cases(experiment, size(model, config)):
            data, file = of_case(job, case, images)
            if not file.is_file():
                job.check_time()
                measuring.prepared(case, data, model, file)


def run(job: Job, arm: str, seed: int, say: Callable[[str], None]) -> None:
    """Train an arm with a seed and measure it: its row. Raises `Stopped` with everything saved."""
    experiment, out = job.experiment, place(job, arm, seed)
    if (out / "row.json").is_file():
        return
    config = timed(job, arm, experiment.config(arm, seed, job.options))
    images = sets(job)
    source = start(job, experiment.start_of(arm), config, images.train.class_names, experiment.model_of(arm))
    config = sized(experiment.arms[arm], config, source)
    if experiment.arms[arm].initialise is not None:
        tcnn.initialise(source, experiment.arms[arm].initialise, seed=seed)
    model = shaped(source, config, size(source, config))
    history: list[dict[str, Any]] = []
    if experiment.arms[arm].train:
        fit(job, model, images, config, out, say)
        history = RunDirectory(out).rows("epoch")
        model = tcnn.load(RunDirectory(out).last, source=model)
    row = {
        "arm": arm, "seed": seed, "digest": digest(job, arm, seed), "settings": identity(config),
        "size": list(size(model, config)),
        "parameters": sum(p.numel() for p in model.parameters()),
        **training(history, config, seed == experiment.seeds[0]),
    }  # fmt: skip
    row |= measure(job, model, images, config, out, say)
    with replacing(out / "row.json", force=True) as temporary:
        temporary.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")


def fit(
    job: Job, model: nn.Module, images: Sets, config: FinetuneConfig, out: Path, say: Callable[[str], None]
) -> None:
    """`tcnn.finetune`, from where it was stopped."""
    told = 0

    def report(now: Any) -> None:
        nonlocal told
        if now.top1 is not None and now.epoch > told:
            told = now.epoch
            say(f"epoch {now.epoch} of {now.epochs}, {now.top1:.2%} after the one before")

    tcnn.finetune(
        model, images.train, images.epoch, config, out, resume=True, report=report, say=say, stop=job.late
    )  # fmt: skip


def timed(job: Job, arm: str, config: FinetuneConfig) -> FinetuneConfig:
    """The configuration with the epochs that fit into the time of another arm; their pace is that of the first seed."""
    relation, seed = job.experiment.arms[arm], job.experiment.seeds[0]
    if relation.equal_time_to is None or relation.like is None:
        return config
    rows = json.loads(job.out.read_text(encoding="utf-8"))["rows"]
    seconds = {row["arm"]: row["train_seconds"] for row in rows if row["seed"] == seed and "train_seconds" in row}
    epochs = max(1, round(config.epochs * seconds[relation.equal_time_to] / seconds[relation.like]))
    # As on a part of the data, which has more and shorter epochs: all that is counted in epochs grows alike.
    scaled = config.model_copy(update={"fraction": config.epochs / epochs}).scaled()
    return scaled.model_copy(update={"fraction": config.fraction})


def training(history: list[dict[str, Any]], config: FinetuneConfig, heads: bool) -> dict[str, Any]:
    """What a run has recorded after every epoch. Seconds are of training alone, by its own images a second.

    A run that was stopped at the end of every epoch has none.
    """
    if not history:
        return {}
    updates = numpy.diff([0, *(epoch["updates"] for epoch in history)])
    rates = [epoch["images_per_second"] for epoch in history]
    images = updates * config.batch_size
    facts: dict[str, Any] = {
        "epochs": {
            "top1": [round(epoch["val"]["top1"], 5) for epoch in history],
            "train_loss": [round(epoch["train_loss"], 4) for epoch in history],
            "gate": [_mean(epoch["gate_mean"]) for epoch in history],
            "span": [_mean(epoch["span_mean"]) for epoch in history],
        },
        "updates": history[-1]["updates"],
    }
    if any(rates):
        usual = statistics.median(rate for rate in rates if rate)  # an epoch that was stopped at its end has none
        seconds = float(sum(count / (rate or usual) for count, rate in zip(images, rates, strict=True)))
        facts |= {
            "train_seconds": round(seconds, 1), "images_per_second": round(float(images.sum()) / seconds, 1),
        }  # fmt: skip
    if heads and history[-1]["gates"]:  # of one seed, every head of every layer, as metrics.jsonl has them
        facts["heads"] = [
            {"kind": "epoch", "epoch": epoch["epoch"], **{key: _rounded(epoch[key]) for key in ("gates", "spans")}}
            for epoch in history
        ]
    return facts


def _mean(by_layer: dict[str, float]) -> float | None:
    return round(sum(by_layer.values()) / len(by_layer), 4) if by_layer else None


def _rounded(by_layer: dict[str, list[float]]) -> dict[str, list[float]]:
    return {layer: [round(value, 3) for value in values] for layer, values in by_layer.items()}


def sized(arm: Arm, config: FinetuneConfig, model: nn.Module) -> FinetuneConfig:
    """The configuration with the size that the network was published at, for an arm that asks for it."""
    if not arm.published_size:
        return config
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return config.model_copy(update={"size": tuple(cfg["input_size"][1:])})


def size(model: nn.Module, config: FinetuneConfig) -> tuple[int, int]:
    """(height, width) that an arm is trained and measured at."""
    cfg: dict[str, Any] = getattr(model, "pretrained_cfg", None) or {}
    return size_for(config, str(cfg.get("architecture")).removeprefix("t_"), cfg)


def of_case(job: Job, case: measuring.Case, images: Sets) -> tuple[ImageSet, Path]:
    """The images of a case, and the file of their pixels."""
    data = measuring.chosen(case, images.validation, job.experiment.corrupted)
    name = f"{case.name.replace('/', '-')}-{case.size[0]}x{case.size[1]}-{len(data)}.npy"
    return data, job.work / "images" / name


def measure(
    job: Job, model: nn.Module, images: Sets, config: FinetuneConfig, out: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Accuracies and losses of every case; which images were right goes to right.npz. Cases that are done are kept."""
    device = torch.device(job.device)
    kept = out / "measured"
    kept.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, measuring.Right]] = {}
    for case in measuring.cases(job.experiment, size(model, config)):
        file = kept / f"{case.kind}-{case.name.replace('/', '-')}.npz"
        if not file.is_file():
            job.check_time()
            data, pixels = of_case(job, case, images)
            amp = "float32" if config.amp == "auto" and device.type == "cpu" else config.amp.replace("auto", "bfloat16")
            result = measuring.classify(
                model,
                measuring.prepared(case, data, model, pixels),
                data.targets,
                device=device,
                amp=amp,
                asked=job.check_time,
            )
            with replacing(file, force=True) as temporary, temporary.open("wb") as handle:
                numpy.savez(handle, right=result.right, loss=result.loss)
        with numpy.load(file) as content:
            found.setdefault(case.kind, {})[case.name] = measuring.Right(content["right"], float(content["loss"]))
    with replacing(out / "right.npz", force=True) as temporary, temporary.open("wb") as handle:
        numpy.savez(handle, **{kind: measuring.packed([r.right for r in by.values()]) for kind, by in found.items()})
    accuracy = {kind: {name: float(r.right.mean()) for name, r in by.items()} for kind, by in found.items()}
    say(f"{accuracy['clean']['clean']:.2%} clean" + _corrupted(accuracy))
    return {
        "top1": accuracy["clean"]["clean"], "loss": round(found["clean"]["clean"].loss, 5),
        "accuracy": {kind: {name: round(value, 5) for name, value in by.items()} for kind, by in accuracy.items()},
        "images": {kind: len(next(iter(by.values())).right) for kind, by in found.items()},
    }  # fmt: skip


def _corrupted(accuracy: dict[str, dict[str, float]]) -> str:
    values = accuracy.get("corrupted")
    return f", {sum(values.values()) / len(values):.2%} corrupted" if values else ""
