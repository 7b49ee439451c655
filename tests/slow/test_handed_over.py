"""Real fine-tuning jobs that are cancelled and resumed, and handed over by a worker that is drained."""

import signal
from pathlib import Path

import pytest
from houses import House, RealWorkers, processes_of
from real_jobs import published, submit, wait_for_end, wait_for_training
from tiny_runs import colours

from tcnn_jobs.model.jobs import Status


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return colours(tmp_path / "images")


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
