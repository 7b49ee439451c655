"""The queue in numbers."""

import time

import pytest
from deeds import OUCH, RESULT, hold, info, new
from sampled import ON_SQLITE

from tcnn_jobs.model.jobs import Kind
from tcnn_jobs.model.operation import Statistics, WorkerInfo
from tcnn_jobs.store import Store


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
