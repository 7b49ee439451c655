"""Attempts of a job: on another worker, if there is one; not again where it costs worker after worker and gets no
farther; and how long it has run counts all of them, and nothing else.
"""

import pytest
from deeds import OUCH, hold, info, kinds, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.model.jobs import Beat, Claim, Failure, Job, NewEvent, Progress, Status
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import ELSEWHERE
from tcnn_jobs.store.reaping import QUARANTINE, in_a_row


def _later(store: Store, seconds: float) -> None:
    """So much time goes by for jobs that wait."""
    with store.writing() as connection:
        connection.execute(text("UPDATE jobs SET not_before = not_before - :by"), {"by": seconds})


def _silent(store: Store, name: str, seconds: float) -> None:
    with store.writing() as connection:
        connection.execute(
            text("UPDATE workers SET heartbeat_at = heartbeat_at - :by WHERE name = :name"),
            {"by": seconds, "name": name},
        )


def _failed_on(store: Store, name: str, **options: object) -> Job:
    store.enqueue(new(**options))
    return store.fail(hold(store.claim(name)), OUCH, retry_after=0)


def test_it_is_left_to_the_other_worker(store: Store) -> None:
    for name in ("w1", "w2"):
        store.heartbeat(info(name), [])
    job = _failed_on(store, "w1")
    assert store.claim("w1") is None
    other = store.enqueue(new())
    taken = store.claim("w1")
    assert taken is not None and taken.id == other.id, "it does not hold up what comes after it"
    retried = store.claim("w2")
    assert retried is not None and retried.id == job.id
    store.fail(hold(retried), OUCH, retry_after=0)
    assert store.claim("w2") is None
    back = store.claim("w1")
    assert back is not None and back.id == job.id, "only where it failed last"


@ON_SQLITE
def test_not_for_ever(store: Store) -> None:
    for name in ("w1", "w2"):
        store.heartbeat(info(name), [])
    job = _failed_on(store, "w1")
    _later(store, ELSEWHERE - 5)
    assert store.claim("w1") is None
    _later(store, 5)
    taken = store.claim("w1")
    assert taken is not None and taken.id == job.id


@ON_SQLITE
@pytest.mark.parametrize("why", ["alone", "too small", "silent"])
def test_a_worker_without_another_that_could_takes_it_at_once(store: Store, why: str) -> None:
    wide = info("w1").model_copy(update={"slots": 2})
    store.heartbeat(wide, [])
    if why != "alone":
        store.heartbeat(info("w2") if why == "too small" else wide.model_copy(update={"name": "w2"}), [])
    if why == "silent":
        _silent(store, "w2", 61)
    store.enqueue(new(slots=2))
    store.fail(hold(store.claim("w1", slots=2)), OUCH, retry_after=0)
    assert store.claim("w1", slots=2) is not None


@ON_SQLITE
def test_a_worker_that_went_silent_does_not_get_it_back(store: Store) -> None:
    for name in ("w1", "w2"):
        store.heartbeat(info(name), [])
    job = store.enqueue(new())
    assert store.claim("w1") is not None
    (taken,) = store.reap(-1)
    assert taken.id == job.id
    assert store.claim("w1") is None
    assert store.claim("w2") is not None


@ON_SQLITE
def test_a_resumed_or_handed_back_job_is_anybodys(store: Store) -> None:
    for name in ("w1", "w2"):
        store.heartbeat(info(name), [])
    job = _failed_on(store, "w1", max_attempts=9)
    store.cancel(job.id)
    store.resume(job.id)
    claim = hold(store.claim("w1"))
    store.hand_back(claim)
    assert store.claim("w1") is not None
    assert kinds(store, job.id).count("started") == 3


@ON_SQLITE
def test_a_worker_is_there_for_as_long_as_its_lease(store: Store) -> None:
    """With a long lease it says so seldom."""
    for name, lease in (("patient", 600.0), ("usual", 60.0), ("quick", 5.0)):
        store.heartbeat(info(name).model_copy(update={"lease": lease, "version": name}), [])
        _silent(store, name, 59)
    assert set(store.versions()) == {"patient", "usual", "quick"}
    for name in ("patient", "usual", "quick"):
        _silent(store, name, 500)
    assert (store.count_workers(), set(store.versions())) == (1, {"patient"})
    _silent(store, "patient", 100)
    assert store.count_workers() == 0


def lose(store: Store, percent: float | None = None, epoch: int | None = 1, phase: str = "training") -> Job:
    """A worker claims the only job, gets so far with it, and is silent from then on."""
    claim = hold(store.claim("w1"))
    if percent is not None or epoch is None:
        progress = Progress(phase=phase, epoch=epoch, percent=percent)
        store.heartbeat(info(), [Beat(claim=claim, progress=progress, events=(NewEvent(kind="x"),))])
    (reaped,) = store.reap(-1)
    return reaped


@ON_SQLITE
def test_the_fifth_worker_is_the_last_until_its_owner_resumes_it(store: Store) -> None:
    job = store.enqueue(new(max_attempts=100))
    for again in (False, True):
        for number in range(QUARANTINE - 1):
            assert lose(store).status == Status.QUEUED, (again, number)
        last = lose(store)
        message = (
            f"{QUARANTINE} workers in a row were lost with it and it got no farther, so it is not tried again; "
            "look at its log and its memory, then resume it"
        )
        assert (last.status, last.error) == (Status.FAILED, Failure(code="quarantined", message=message))
        assert store.events(job.id)[-1].data == {"code": "quarantined", "message": message}
        assert kinds(store, job.id)[-2:] == ["stalled", "failed"]
        store.resume(job.id)


@ON_SQLITE
def test_one_that_gets_farther_every_time_is_tried_on(store: Store) -> None:
    job = store.enqueue(new(max_attempts=100))
    for number in range(2 * QUARANTINE):
        assert lose(store, percent=number + 1).status == Status.QUEUED
        assert store.events(job.id)[-1].data == {"worker": "w1", "percent": number + 1}


@ON_SQLITE
def test_only_training_is_progress(store: Store) -> None:
    """Conversion and transfers count from 0 to 100 every time; and not every report has a percentage."""
    job = store.enqueue(new(max_attempts=100))
    reports = [(60.0, None, "converting"), (80.0, None, "uploading"), (None, None, "loading"), (0.0, 1, "training")]
    for percent, epoch, phase in reports:
        assert lose(store, percent, epoch, phase).status == Status.QUEUED
        assert store.events(job.id)[-1].data == {"worker": "w1"}
    assert lose(store).status == Status.FAILED


def test_losses_in_a_row() -> None:
    assert in_a_row([]) == 0
    assert in_a_row([0.0]) == 1
    assert in_a_row([0.0, 0.0, 0.0]) == 3
    assert in_a_row([0.0, 5.0, 7.0]) == 1
    assert in_a_row([0.0, 5.0, 5.0, 3.0]) == 3


def _age(store: Store, job: Job, started: float, heard: float = 0.0) -> None:
    """Its attempt began so many seconds ago, and was last heard of so many seconds ago."""
    with store.writing() as connection:
        connection.execute(
            text("UPDATE jobs SET started_at = started_at - :by, heartbeat_at = heartbeat_at - :heard WHERE id = :job"),
            {"by": started, "heard": heard, "job": job.id},
        )


def _claimed(store: Store) -> tuple[Job, Claim]:
    job = store.claim("w1")
    return (job, hold(job)) if job else pytest.fail("nothing to claim")


def test_attempts_add_up_until_it_is_resumed(store: Store) -> None:
    new_job = store.enqueue(new(max_runtime=50.0, stall_minutes=2.0))
    assert (new_job.max_runtime, new_job.stall_minutes, new_job.ran) == (50, 2, 0)
    job, claim = _claimed(store)
    _age(store, job, 30)
    assert store.fail(claim, OUCH, retry_after=0).ran == pytest.approx(30, abs=5)
    job, claim = _claimed(store)
    assert job.ran == pytest.approx(30, abs=5)
    _age(store, job, 10)
    assert store.hand_back(claim).ran == pytest.approx(40, abs=5)
    job, claim = _claimed(store)
    store.heartbeat(info(), [Beat(claim=claim)])
    assert store.fail(claim, OUCH).ran == pytest.approx(40, abs=5)
    resumed = store.resume(job.id)
    assert (resumed.ran, resumed.max_runtime) == (0, 50)


@ON_SQLITE
def test_the_silence_of_a_lost_worker_does_not_count(store: Store) -> None:
    """A host that is switched off over a weekend has not run its jobs."""
    store.enqueue(new())
    job, _ = _claimed(store)
    store.reap(60)
    _age(store, job, started=1000, heard=900)
    (before,) = store.tenants("ann")
    (taken,) = store.reap(60)
    assert taken.ran == pytest.approx(100, abs=5)
    (after,) = store.tenants("ann")
    assert [tenant.use.gpu_hours * 3600 for tenant in (before, after)] == pytest.approx([100, 100], abs=5)


@ON_SQLITE
def test_a_clock_that_was_set_back_takes_nothing_away(store: Store) -> None:
    store.enqueue(new())
    job, claim = _claimed(store)
    _age(store, job, -1000)
    assert store.hand_back(claim).ran == 0


WAITED = {
    "handed back": lambda store, claim: store.hand_back(claim),
    "cancelled": lambda store, claim: store.cancelled(claim),
    "failed": lambda store, claim: store.fail(claim, OUCH),
    "lost": lambda store, claim: store.reap(-1)[0],
}


@pytest.mark.parametrize("end", WAITED)
def test_waiting_for_slots_of_a_worker_is_no_time_of_the_job(store: Store, end: str) -> None:
    """Neither its own nor its tenant's: no process of it has started."""
    store.enqueue(new(slots=2))
    job = store.claim("w1", slots=1, later=2)
    assert job is not None
    _age(store, job, started=1000)
    store.heartbeat(info(), [Beat(claim=hold(job), progress=Progress(phase="waiting"))])
    assert store.tenants("ann")[0].use.gpu_hours == 0, "while it waits"
    after = WAITED[end](store, hold(job))
    assert (after.ran, store.tenants("ann")[0].use.gpu_hours, after.started_at) == (0, 0, None)
    assert all(seconds == 0 for kind in store.statistics().finished.values() for _, seconds in kind.values())


def test_time_counts_from_the_start_of_the_process(store: Store) -> None:
    """Which the next heartbeat tells, however late; the next attempt, which did not wait, is as ever."""
    store.enqueue(new(slots=2))
    job = store.claim("w1", slots=1, later=2)
    assert job is not None
    _age(store, job, started=1000)
    store.heartbeat(info(), [Beat(claim=hold(job), ran=100.0)])
    store.heartbeat(info(), [Beat(claim=hold(job), ran=0.0)])
    assert store.tenants("ann")[0].use.gpu_hours * 3600 == pytest.approx(200, abs=10)
    assert store.hand_back(hold(job)).ran == pytest.approx(100, abs=5)
    again = store.claim("w2", slots=2)
    assert again is not None
    _age(store, again, started=50)
    store.heartbeat(info("w2"), [Beat(claim=hold(again), ran=0.0)])
    after = store.fail(hold(again), OUCH)
    assert after.ran == pytest.approx(150, abs=10)
    assert store.tenants("ann")[0].use.gpu_hours * 3600 == pytest.approx(300, abs=20)
