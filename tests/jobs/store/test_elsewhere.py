"""A job that failed is tried again on another worker, if there is one; one that is silent within its lease is there."""

import pytest
from deeds import OUCH, hold, info, kinds, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.model.jobs import Job
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import ELSEWHERE


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
