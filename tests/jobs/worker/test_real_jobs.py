"""Real fine-tuning jobs in real worker processes, which are killed, frozen and drained in the middle of training."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from houses import House, RealWorkers, processes_of, wait_for
from safetensors.torch import load_file
from tiny_runs import colours

import tcnn
from jobs.model import Job, Kind, Status
from tcnn.conversion.pipeline import file_digest
from tcnn.training.rundir import RunDirectory

CONFIG: dict[str, Any] = {
    "epochs": 6, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 1, "val_split": 0.2, "checkpoint_steps": 1,
    "anneal_epochs": None, "log_steps": 1,
}  # fmt: skip
"""18 steps of 8 images, each with a resume point."""


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("images"))


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


def test_a_killed_workers_job_resumes_elsewhere_and_ends_as_if_nothing_had_happened(
    house: House, workers: RealWorkers, images: Path
) -> None:
    calm, job = submit(house, images), submit(house, images)
    first = workers.start()
    wait_for_end(house, calm)
    wait_for_training(house, job)
    first.send_signal(signal.SIGSTOP)  # its last words will not arrive: the child gets further than anybody hears of
    run = RunDirectory(house.home.attempt(job.id, 1) / "run")
    heard = house.kinds(job).count("epoch")
    wait_for(lambda: len(run.rows("epoch")) > heard)
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_for(lambda: not processes_of(house.home.jobs), 5)  # the child and its loader are gone with their worker
    assert house.store.get(job.id).status is Status.RUNNING, "nobody knows yet"

    workers.start()
    after = wait_for_end(house, job)
    assert (after.status, after.attempt, after.claim) == (Status.SUCCEEDED, 2, 2)
    kinds = house.kinds(job)
    assert kinds.index("stalled") < kinds.index("started", kinds.index("stalled"))
    texts = [event.data["text"] for event in house.store.events(job.id) if event.kind == "message"]
    assert any(text.startswith("going on in epoch") for text in texts)
    told = [event.data["epoch"] for event in house.store.events(job.id) if event.kind == "epoch"]
    assert told == list(range(CONFIG["epochs"])), "every epoch is told once, whoever trained it"
    ours, theirs = (load_file(published(house, one).with_name("last.safetensors")) for one in (job, calm))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [path.name for path in house.home.job(job.id).iterdir()] == ["2"]


def test_a_frozen_worker_that_wakes_up_changes_nothing(house: House, workers: RealWorkers, images: Path) -> None:
    job = submit(house, images, epochs=60)
    frozen = workers.start()
    wait_for_training(house, job)
    frozen.send_signal(signal.SIGSTOP)
    workers.start()
    wait_for(lambda: house.store.get(job.id).claim == 2)
    wait_for(lambda: len(list(house.home.job(job.id).glob("*/run"))) == 2)
    assert processes_of(house.home.attempt(job.id, 1)), "the frozen worker's child trains on, beside the new one"
    house.store.cancel(job.id)
    after = wait_for_end(house, job)
    frozen.send_signal(signal.SIGCONT)
    wait_for(lambda: not processes_of(house.home.job(job.id)), 20)
    assert house.store.get(job.id) == after
    assert after.status is Status.CANCELLED
    wait_for(lambda: [path.name for path in house.home.job(job.id).iterdir()] == ["2"], 10)


def test_a_cancelled_job_leaves_the_slot_and_can_be_resumed(house: House, workers: RealWorkers, images: Path) -> None:
    job = submit(house, images, epochs=40)
    workers.start()
    wait_for_training(house, job)
    assert len(processes_of(house.home.job(job.id))) >= 2, "the child and its loader"
    house.store.cancel(job.id)
    after = wait_for_end(house, job)
    assert after.status is Status.CANCELLED
    assert processes_of(house.home.job(job.id)) == []
    epoch = after.progress.epoch if after.progress else 0
    house.store.resume(job.id)
    wait_for_training(house, job, (epoch or 1) + 1)
    first = next(event for event in house.store.events(job.id) if event.data.get("text", "").startswith("going on"))
    assert first.data["text"] != "going on in epoch 1 at step 0 of 3"
    assert house.store.get(job.id).attempt == 1, "its owner has asked: the count begins anew"


def test_a_drained_workers_job_goes_on_elsewhere_without_losing_an_attempt(
    house: House, workers: RealWorkers, images: Path
) -> None:
    job = submit(house, images)
    first = workers.start()
    wait_for_training(house, job)
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=30) == 0
    assert processes_of(house.home.jobs) == []
    handed = house.store.get(job.id)
    assert (handed.status, handed.attempt) == (Status.QUEUED, 0)
    workers.start("--burst")
    assert wait_for_end(house, job).attempt == 1
    published(house, job)
