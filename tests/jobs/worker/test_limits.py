"""A job that runs for too long, or hangs, is ended by its worker, and told so in one line; grace follows the time
that a training step takes.
"""

import os
import signal

import pytest
from houses import House, processes_of
from sampled import sampled

from tcnn_jobs.attempts.running import LONGEST, Limits, StepTime, grace
from tcnn_jobs.model.jobs import Job, Kind, Progress, Status
from tcnn_jobs.worker.worker import Worker

AFTER = """
if json.loads((here / "assignment.json").read_text())["claim"] > 1: succeed(); sys.exit()
"""


def _job(**limits: float | None) -> Job:
    return Job(
        id="job_0", number=1, owner="ann", kind=Kind.TRANSFORM, status=Status.RUNNING, request={}, created_at=0.0,
        not_before=0.0, **limits,
    )  # fmt: skip


def _later(worker: Worker, seconds: float) -> None:
    """So much time has passed for the limits of the job that it runs."""
    limits = worker._running[0].limits
    limits._heard -= seconds
    if limits._end is not None:
        limits._end -= seconds


def test_a_job_without_limits_has_none() -> None:
    limits = Limits(_job(), 0.0)
    assert limits.overrun(1e9) is None and limits.stuck(1e9) is None


def test_the_time_of_earlier_attempts_counts() -> None:
    limits = Limits(_job(max_runtime=100.0, ran=70.0), 1000.0)
    assert limits.overrun(1029.9) is None
    breach = limits.overrun(1030.0)
    assert breach is not None and not breach.again
    assert breach.failure.code == "timed_out" and "has run for 100 s" in breach.failure.message


def test_silence_counts_from_the_last_word_and_not_while_it_waits_for_others() -> None:
    limits = Limits(_job(stall_minutes=2.0), 1000.0)
    assert limits.stuck(1119.9) is None and limits.stuck(1120.0) is not None
    limits.heard(1110.0)
    assert limits.stuck(1229.9) is None and limits.stuck(1230.0) is not None
    for phase in ("fetching", "waiting", "uploading"):
        limits.heard(2000.0, Progress(phase=phase))
        limits.heard(2001.0)
        assert limits.stuck(9000.0) is None, phase
    limits.heard(9000.0, Progress(phase="training"))
    breach = limits.stuck(9120.0)
    assert breach is not None and breach.again
    assert breach.failure.code == "no_progress" and "for 2 minutes" in breach.failure.message


def test_a_job_that_runs_for_too_long_saves_what_it_has_and_fails_for_good(house: House) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *a: ((here / "saved").touch(), sys.exit(75))); event("ready")
for step in range(1000): progress(step=step); time.sleep(0.02)
"""
    job = house.submit(max_runtime=3600, max_attempts=3)
    worker = house.worker(script)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    _later(worker, 3600)
    worker.run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.FAILED, 1)
    assert after.error is not None and after.error.code == "timed_out"
    assert (
        after.error.message
        == "it has run for 3600 s, its max_runtime, and was stopped; submit it with more, or resume it"
    )
    assert (house.home.attempt(job.id, 1) / "saved").exists()
    assert house.kinds(job)[-1] == "failed"


def test_what_does_not_leave_when_its_time_is_over_is_killed(house: House) -> None:
    job = house.submit(max_runtime=0.3)
    house.worker("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)", grace=0.2).run(until_empty=True)
    error = house.store.get(job.id).error
    assert error is not None and error.code == "timed_out"
    assert processes_of(house.home.job(job.id)) == []


def test_a_job_whose_time_came_when_it_was_done_has_succeeded(house: House) -> None:
    script = "signal.signal(signal.SIGTERM, lambda *a: (succeed(), sys.exit(0))); event('ready'); time.sleep(60)"
    job = house.submit(max_runtime=3600)
    worker = house.worker(script)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    _later(worker, 3600)
    worker.run(until_empty=True)
    assert house.store.get(job.id).status is Status.SUCCEEDED


@pytest.mark.parametrize("stopped", [False, True], ids=["hangs", "stopped"])
def test_a_job_that_hangs_is_killed_and_tried_again(house: House, stopped: bool) -> None:
    """Whether it hangs in its own code, deaf to signals, or the kernel has stopped it."""
    script = AFTER + "signal.signal(signal.SIGTERM, signal.SIG_IGN); progress(step=1); event('ready'); time.sleep(60)"
    job = house.submit(stall_minutes=60)
    worker = house.worker(script)
    house.step_until(worker, lambda: "ready" in house.kinds(job))
    if stopped:
        os.kill(worker._running[0].process.pid, signal.SIGSTOP)  # type: ignore[attr-defined]
    _later(worker, 3600)
    worker.run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.SUCCEEDED, 2)
    (retrying,) = [event.data for event in house.store.events(job.id) if event.kind == "retrying"]
    assert retrying["code"] == "no_progress" and "was killed" in retrying["message"]


def test_a_job_that_goes_on_slowly_is_left_alone(house: House) -> None:
    """Each word is a sign of life: it says three of them, most of an hour after each other."""
    script = """
for step in range(3):
    event("message", text=str(step))
    while not (here / f"go-{step}").exists(): time.sleep(0.01)
succeed()
"""
    job = house.submit(stall_minutes=60)
    worker = house.worker(script)
    for step in range(3):
        house.step_until(worker, lambda step=step: str(step) in house.messages(job))
        _later(worker, 3000)
        worker.step()
        (house.home.attempt(job.id, 1) / f"go-{step}").touch()
    worker.run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.SUCCEEDED, 1)


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
