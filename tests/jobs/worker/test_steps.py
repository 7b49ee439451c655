"""Grace follows the time that a training step takes."""

import pytest
from houses import House
from sampled import sampled

from tcnn_jobs.attempts.running import LONGEST, StepTime, grace
from tcnn_jobs.model.jobs import Progress, Status


def at(epoch: int, step: int, phase: str = "training") -> Progress:
    return Progress(phase=phase, epoch=epoch, step=step)


def test_a_step_is_as_long_as_the_last_one_or_as_it_takes_already() -> None:
    steps = StepTime()
    assert steps.longest(100.0) == 0.0
    steps.heard(Progress(phase="converting", step=1), 0.0)
    assert steps.longest(100.0) == 0.0, "nothing is saved between two steps of a conversion"
    steps.heard(at(1, 1), 100.0)
    assert steps.longest(130.0) == 30.0, "it has not ended yet"
    steps.heard(at(1, 2), 140.0)
    assert steps.longest(140.0) == 40.0
    steps.heard(at(1, 12), 160.0)
    assert steps.longest(160.0) == 2.0, "ten steps in twenty seconds"
    steps.heard(at(1, 12), 500.0)
    steps.heard(at(1, 12, "validating"), 500.0)
    assert steps.longest(900.0) == 2.0, "a validation can be left at any time"
    steps.heard(at(2, 1), 1000.0)
    assert steps.longest(1000.0) == 2.0


def test_grace_is_for_saving_and_for_two_steps() -> None:
    assert grace(30, 0.0) == 30
    assert grace(30, 20.0) == 70
    assert grace(30, 1e6) == 30 + LONGEST


@pytest.mark.parametrize("how", sampled(["drained", "cancelled"], always=["drained"]))
def test_a_step_that_is_longer_than_the_grace_time_is_not_cut_off(house: House, how: str) -> None:
    script = """
asked = []
signal.signal(signal.SIGTERM, lambda *a: asked.append(a))
for step in range(1, 100):
    progress(epoch=1, step=step)
    end = time.monotonic() + 0.3
    while time.monotonic() < end: time.sleep(0.01)
    if asked: (here / "saved").touch(); sys.exit(75)
"""
    job = house.submit()
    worker = house.worker(script, grace=0.1)

    def step() -> int:
        now = house.store.get(job.id).progress
        return (now.step or 0) if now else 0

    house.step_until(worker, lambda: step() == 2)
    if how == "drained":
        worker.drain()
    else:
        house.store.cancel(job.id)
    house.step_until(worker, lambda: not worker.busy)
    assert (house.home.attempt(job.id, 1) / "saved").exists()
    assert house.store.get(job.id).status is (Status.QUEUED if how == "drained" else Status.CANCELLED)
