"""Real fine-tuning jobs in real worker processes, which are killed, frozen and drained in the middle of training;
jobs that are cancelled and resumed.
"""

import signal
from pathlib import Path

import pytest
import torch
from houses import House, RealWorkers, processes_of, published, submit, wait_for, wait_for_end, wait_for_training
from safetensors.torch import load_file
from tiny_runs import colours

from tcnn.training.runs.rundir import RunDirectory
from tcnn_jobs.model.jobs import Status


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colours(tmp_path_factory.mktemp("images"))


@pytest.mark.slow
def test_a_killed_workers_job_resumes_elsewhere_and_ends_as_if_nothing_had_happened(
    house: House, workers: RealWorkers, images: Path
) -> None:
    epochs = 10  # so many that it has not learned them all before it is killed
    calm, job = submit(house, images, epochs=epochs), submit(house, images, epochs=epochs)
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
    assert told == list(range(epochs)), "every epoch is told once, whoever trained it"
    ours, theirs = (load_file(published(house, one).with_name("last.safetensors")) for one in (job, calm))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [path.name for path in house.home.job(job.id).iterdir()] == ["2"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_job_whose_target_takes_for_ever_to_match_can_be_cancelled(house: House, workers: RealWorkers) -> None:
    target = f"{'(' * 8}.{')+' * 8}!"  # eight times as long with every character of a name
    job = house.submit(request={"model": "test_resnet", "pretrained": False, "target": target})
    workers.start()
    wait_for(lambda: (progress := house.store.get(job.id).progress) and progress.phase == "converting")
    house.store.cancel(job.id)
    assert wait_for_end(house, job).status is Status.CANCELLED
    assert processes_of(house.home.job(job.id)) == []


@pytest.mark.slow
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
