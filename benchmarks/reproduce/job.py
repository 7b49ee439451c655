"""What the processes of an experiment are told, where everything lies, and what tells one row from another.

WORK/train.pixels, val.pixels    decoded images
WORK/images/                     validation images, resized, cropped and corrupted
WORK/adapt-DIGEST/               the run that every arm starts from
WORK/ARM-SEED-DIGEST/            an arm's run (`tcnn.finetune`), measured/ while it is measured, at last right.npz
                                 and row.json
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiment import Experiment, identity

from tcnn.data.decoded import in_memory
from tcnn.data.image_set import ImageSet, class_balanced, open_dataset
from tcnn.errors import Stopped


class Job(NamedTuple):
    """What a process is told."""

    experiment: Experiment
    data: str
    weights: Path | None
    work: Path
    out: Path
    """The results so far: the times of other arms."""
    device: str = "cpu"
    loaders: int = 0
    """Processes that load images for each arm."""
    threads: int = 1
    cuda_graph: bool = False
    deadline: float = float("inf")
    """`time.time()` at which to save and stop."""

    @property
    def options(self) -> dict[str, Any]:
        """Settings that change how, not what, is computed."""
        return {"device": self.device, "workers": self.loaders, "cuda_graph": self.cuda_graph}

    def late(self) -> bool:
        return time.time() > self.deadline

    def check_time(self) -> None:
        """Raise `Stopped` after the deadline."""
        if self.late():
            raise Stopped("stopped at its time; run it again to go on")


class Sets(NamedTuple):
    """The images of an experiment."""

    train: ImageSet
    validation: ImageSet
    epoch: ImageSet
    """What every epoch is measured on."""


def sets(job: Job) -> Sets:
    """Open the data set; decode it the first time. Raises `RequestError` if there is none or no validation split."""
    experiment = job.experiment
    train = open_dataset(job.data, "train")
    validation = open_dataset(job.data, "validation", class_names=train.class_names)
    train = part(train, experiment.train_images)
    if experiment.decoded:
        job.work.mkdir(parents=True, exist_ok=True)
        train = in_memory(train, job.work / "train.pixels")
        validation = in_memory(validation, job.work / "val.pixels")
    return Sets(train, validation, part(validation, experiment.epoch_images))


def part(data: ImageSet, images: int | None) -> ImageSet:
    """A class-balanced part of so many images, the same every time."""
    return data if images is None else class_balanced(data, min(1.0, images / len(data)), 0)


def digest(job: Job, arm: str, seed: int) -> str:
    """What decides a row, in twelve letters: another start, recipe or measurement is another row."""
    experiment = job.experiment
    kind = experiment.start_of(arm)
    relation = experiment.arms[arm]
    return _digest(
        {
            **_common(job), "start": adapted(job).name if kind == "adapted" else kind, "trained": relation.train,
            "config": identity(experiment.config(arm, seed)), "sizes": experiment.sizes,
            **({"initialise": relation.initialise} if relation.initialise else {}),
            **({"model": relation.model} if relation.model else {}),
            **({"published_size": True} if relation.published_size else {}),
            "corrupted": experiment.corrupted and experiment.corrupted.model_dump(mode="json"),
            "equal_time": relation.equal_time_to and digest(job, relation.equal_time_to, seed),
        }
    )  # fmt: skip


def adapted(job: Job) -> Path:
    """Where the CNN is fitted to the data."""
    return job.work / f"adapt-{_digest({**_common(job), 'adapt': identity(job.experiment.adapt_config())})}"


def _common(job: Job) -> dict[str, Any]:
    experiment = job.experiment
    weights = hashlib.sha256(job.weights.read_bytes()).hexdigest() if job.weights else None
    return {
        "model": experiment.model, "pretrained": experiment.pretrained, "weights": weights,
        "train_images": experiment.train_images, "epoch_images": experiment.epoch_images,
    }  # fmt: skip


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def place(job: Job, arm: str, seed: int) -> Path:
    return job.work / f"{arm}-{seed}-{digest(job, arm, seed)}"
