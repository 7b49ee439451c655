"""How long a job has run counts all its attempts, and nothing else."""

import pytest
from deeds import OUCH, hold, info, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.model.jobs import Beat, Claim, Job
from tcnn_jobs.store import Store


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
