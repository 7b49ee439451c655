"""Real fine-tuning jobs: small ones, and what has become of them."""

from pathlib import Path
from typing import Any

import torch
from houses import House, wait_for

import tcnn
from tcnn.files import file_digest
from tcnn_jobs.model.jobs import Job, Kind, Status

CONFIG: dict[str, Any] = {
    "epochs": 6, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 1, "val_split": 0.2, "checkpoint_steps": 1,
    "anneal_epochs": None, "log_steps": 1,
}  # fmt: skip
"""18 steps of 8 images, each with a resume point."""


def submit(house: House, images: Path, **config: object) -> Job:
    request = {
        "model": "test_resnet", "pretrained": False,
        "finetune": {"dataset": str(images), "preset": "quick", "config": CONFIG | config},
    }  # fmt: skip
    return house.submit(kind=Kind.TRANSFORM, request=request)


def epoch_of(house: House, job: Job) -> int:
    progress = house.store.get(job.id).progress
    return (progress.epoch or 0) if progress and progress.phase == "training" else 0


def wait_for_training(house: House, job: Job, epoch: int = 2) -> None:
    wait_for(lambda: epoch_of(house, job) >= epoch)


def wait_for_end(house: House, job: Job) -> Job:
    return wait_for(lambda: (now := house.store.get(job.id)).terminal and now)


def published(house: House, job: Job) -> Path:
    """The job's checkpoint, once it has been found to be what the row says."""
    after = house.store.get(job.id)
    assert after.status is Status.SUCCEEDED, after.error
    assert after.result is not None and after.result.checkpoint is not None
    for file in after.result.files:
        path = house.home.jobs / file.path
        assert (path.stat().st_size, file_digest(path)) == (file.size, file.sha256), file.name
    path = house.home.jobs / after.result.checkpoint.path
    assert isinstance(tcnn.load(path), torch.nn.Module)
    return path
