"""The queue in numbers; and its workers: busy, present, since when, and forgotten when they are long dead."""

import math
import time

import pytest
from deeds import OUCH, RESULT, hold, info, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.model.jobs import Kind
from tcnn_jobs.model.operation import Statistics, WorkerInfo
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import KEPT


@ON_SQLITE
def test_an_empty_queue(store: Store) -> None:
    """Zeros."""
    assert store.statistics() == Statistics()


def test_counts_and_seconds(store: Store) -> None:
    """By kind and outcome; what was deleted stays counted; a retry is not an end."""
    for kind in (Kind.TRANSFORM, Kind.TRANSFORM, Kind.FINETUNE, Kind.TRANSFORM):
        store.enqueue(new(kind=kind))
    for _ in range(2):
        claim = hold(store.claim("w1", [Kind.TRANSFORM]))
        time.sleep(0.05)
        store.finish(claim, RESULT)
    store.fail(hold(store.claim("w1", [Kind.FINETUNE])), OUCH, retry_after=0)
    store.fail(hold(store.claim("w1", [Kind.FINETUNE])), OUCH)
    store.claim("w1")
    store.cancel(store.enqueue(new(kind=Kind.EVALUATE)).id)
    store.enqueue(new(kind=Kind.EVALUATE))
    time.sleep(0.1)
    for job in store.expired(None):
        store.delete(job.id)
    found = store.statistics()
    assert (found.queued, found.running) == ({"evaluate": 1}, {"transform": 1})
    assert 0.1 <= found.oldest_queued_seconds < 30
    assert {kind: {outcome: jobs for outcome, (jobs, _) in ends.items()} for kind, ends in found.finished.items()} == {
        "transform": {"succeeded": 2},
        "finetune": {"failed": 1},
        "evaluate": {"cancelled": 1},
    }
    assert 0.1 <= found.finished["transform"]["succeeded"][1] < 30
    assert found.finished["evaluate"]["cancelled"][1] == 0  # it never ran


@ON_SQLITE
def test_a_job_that_waits_for_its_retry_is_not_old(store: Store) -> None:
    """Age counts from when a job could have been taken."""
    store.enqueue(new())
    time.sleep(0.1)
    store.fail(hold(store.claim("w1")), OUCH, retry_after=60)
    found = store.statistics()
    assert (found.queued, found.oldest_queued_seconds) == ({"transform": 1}, 0)


def test_jobs_that_a_quota_holds_back_are_counted_apart(store: Store) -> None:
    """While they wait no slot is idle and no job forgotten. As soon as the quota lets one start, they are as others."""
    for owner in ("ann", "ann", "bob", "eve"):
        store.enqueue(new(owner=owner))
    store.set_quotas("ann", running=0)
    time.sleep(0.1)
    found = store.statistics()
    assert (found.queued, found.held) == ({"transform": 4}, {"transform": 2})
    for owner in ("bob", "eve"):
        store.set_quotas(owner, gpu_hours=0)
    found = store.statistics()
    assert (found.queued, found.held, found.oldest_queued_seconds) == ({"transform": 4}, {"transform": 4}, 0)
    store.set_quotas("ann", running=1)
    found = store.statistics()
    assert found.held == {"transform": 2} and found.oldest_queued_seconds >= 0.1
    assert store.claim("w1") is not None
    found = store.statistics()
    assert (found.queued, found.held) == ({"transform": 3}, {"transform": 3})


@ON_SQLITE
def test_workers(store: Store) -> None:
    """Who was heard of, how long ago, until they say goodbye."""
    gpu = {"index": 0, "name": "H200", "memory_used": 3 * 2**30, "memory_total": 139 * 2**30}
    told = WorkerInfo(name="w2", host="there", slots=4, version="0.1", gpus=(gpu,))
    for worker in (told.model_copy(update={"slots": 1}), told, info("w1")):
        assert store.heartbeat(worker, []) == {}
    first, second = store.statistics().workers
    assert (first.name, second.model_copy(update={"heartbeat_at": None, "started_at": None})) == ("w1", told)
    assert second.heartbeat_at == pytest.approx(0, abs=10)
    assert store.count_workers() == 2
    store.forget_worker("w1")
    store.forget_worker("nobody")
    assert store.count_workers() == 1
    assert [worker.name for worker in store.statistics().workers] == ["w2"]


def _silent(store: Store, name: str, seconds: float) -> None:
    with store.writing() as connection:
        connection.execute(
            text("UPDATE workers SET heartbeat_at = heartbeat_at - :by WHERE name = :name"),
            {"by": seconds, "name": name},
        )


@ON_SQLITE
def test_slots_of_those_who_are_present(store: Store) -> None:
    """A job takes as many as it has; those of a worker that was killed are nobody's."""
    for name in ("w1", "w2", "killed"):
        store.heartbeat(info(name).model_copy(update={"slots": 2}), [])
    store.enqueue(new(slots=2))
    hold(store.claim("w1", slots=2))
    store.enqueue(new())
    hold(store.claim("killed"))
    _silent(store, "killed", 61)
    assert store.statistics().slots == {"w1": (2, 2, 0), "w2": (2, 0, 0)}
    assert [worker.name for worker in store.statistics().workers] == ["killed", "w1", "w2"]


def test_how_busy_they_are_and_since_when(store: Store) -> None:
    assert store.workers() == []
    store.heartbeat(info("w2").model_copy(update={"slots": 4, "host": "a"}), [])
    (before,) = store.workers()
    assert (before.busy, before.present, before.info.slots) == (0, True, 4)
    for wide in (1, 3):
        store.enqueue(new(slots=wide))
        store.claim("w2", slots=4)
    store.heartbeat(info("w1"), [])
    store.heartbeat(info("w2").model_copy(update={"slots": 4, "host": "b"}), [])
    first, second = store.workers()
    assert [(one.info.name, one.busy) for one in (first, second)] == [("w2", 4), ("w1", 0)]
    assert second.info.host == "here" and first.info.host == "b"
    assert first.info.started_at == before.info.started_at, "it is the same worker"
    assert (first.info.heartbeat_at or 0) > (before.info.heartbeat_at or 0)


@ON_SQLITE
def test_the_long_dead_are_forgotten_and_nobody_else(store: Store) -> None:
    for name, lease in (("alive", 60.0), ("silent", 60.0), ("dead", 60.0), ("endless", math.inf)):
        store.heartbeat(info(name).model_copy(update={"lease": lease}), [])
    assert store.forget_dead_workers() == 0
    _silent(store, "silent", KEPT - 60)
    for name in ("dead", "endless"):
        _silent(store, name, KEPT + 60)
    present = {one.info.name: one.present for one in store.workers()}
    assert present == {"alive": True, "silent": False}
    assert store.forget_dead_workers() == 2
    with store.reading() as connection:
        assert set(connection.scalars(text("SELECT name FROM workers"))) == {"alive", "silent"}


@ON_SQLITE
def test_a_dead_workers_jobs_are_not_forgotten_with_it(store: Store) -> None:
    store.heartbeat(info("dead"), [])
    job = store.enqueue(new())
    claim = hold(store.claim("dead"))
    _silent(store, "dead", KEPT + 60)
    assert store.forget_dead_workers() == 1
    assert store.get(job.id).worker == claim.worker
    (taken,) = store.reap(-1)
    assert taken.id == job.id
