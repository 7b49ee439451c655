"""Every step of the transition table, and no other."""

from collections.abc import Callable

import pytest
from deeds import OUCH, RESULT, hold, kinds, new
from sampled import ON_SQLITE

from tcnn_jobs.errors import LostClaim, WrongState
from tcnn_jobs.model.jobs import TRANSITIONS, Claim, Failure, Job, Status
from tcnn_jobs.store import Store


def _queued(store: Store) -> Job:
    return store.enqueue(new())


def _running(store: Store) -> Job:
    _queued(store)
    job = store.claim("w1")
    assert job is not None
    return job


START: dict[Status, Callable[[Store], Job]] = {
    Status.QUEUED: _queued,
    Status.RUNNING: _running,
    Status.SUCCEEDED: lambda store: store.finish(hold(_running(store)), RESULT),
    Status.FAILED: lambda store: store.fail(hold(_running(store)), OUCH),
    Status.CANCELLED: lambda store: store.cancel(_queued(store).id),
}


def _claim(job: Job) -> Claim:
    return Claim(job=job.id, worker="w1", number=job.claim)


DEEDS: dict[str, Callable[[Store, Job], object]] = {
    "claim": lambda store, job: store.claim("w1"),
    "finish": lambda store, job: store.finish(_claim(job), RESULT.model_copy(update={"notes": ("other",)})),
    "fail": lambda store, job: store.fail(_claim(job), OUCH),
    "retry": lambda store, job: store.fail(_claim(job), OUCH, retry_after=0),
    "cancelled": lambda store, job: store.cancelled(_claim(job)),
    "hand_back": lambda store, job: store.hand_back(_claim(job)),
    "reap": lambda store, job: store.reap(-1),
    "cancel": lambda store, job: store.cancel(job.id),
    "resume": lambda store, job: store.resume(job.id),
}

STEPS = {
    (Status.QUEUED, "claim"): (Status.RUNNING, "started"),
    (Status.QUEUED, "cancel"): (Status.CANCELLED, "cancelled"),
    (Status.RUNNING, "finish"): (Status.SUCCEEDED, "succeeded"),
    (Status.RUNNING, "fail"): (Status.FAILED, "failed"),
    (Status.RUNNING, "retry"): (Status.QUEUED, "retrying"),
    (Status.RUNNING, "cancelled"): (Status.CANCELLED, "cancelled"),
    (Status.RUNNING, "hand_back"): (Status.QUEUED, "handed_back"),
    (Status.RUNNING, "reap"): (Status.QUEUED, "stalled"),
    (Status.RUNNING, "cancel"): (Status.RUNNING, "cancel_requested"),
    (Status.FAILED, "resume"): (Status.QUEUED, "resumed"),
    (Status.CANCELLED, "resume"): (Status.QUEUED, "resumed"),
}
"""What each call does to a job in each status; whatever is not here changes nothing."""


def test_steps_are_the_table() -> None:
    """This file tries every transition that there is, but for one that is another job's doing (`test_depends.py`)."""
    tried = {(before, after) for (before, _), (after, _) in STEPS.items() if before != after}
    tried.add((Status.QUEUED, Status.FAILED))
    assert tried == {(before, after) for before, follow in TRANSITIONS.items() for after in follow}


@ON_SQLITE
def test_every_deed_in_every_status(store: Store) -> None:
    """A job moves as the table says, one event a step; refused calls change nothing and say why."""
    for status, start in START.items():
        for name, deed in DEEDS.items():
            job = store.get(start(store).id)
            assert job.status == status
            before = kinds(store, job.id)
            refused = None
            try:
                deed(store, job)
            except (WrongState, LostClaim) as error:
                refused = error
            after = store.get(job.id)
            if (status, name) in STEPS:
                expected, event = STEPS[status, name]
                assert refused is None, (status, name)
                assert (after.status, kinds(store, job.id)) == (expected, [*before, event]), (status, name)
            else:
                assert after.model_copy(update={"queue_position": None}) == job.model_copy(
                    update={"queue_position": None}
                ), (status, name)
                assert kinds(store, job.id) == before
                silent = name in ("claim", "reap") or (status, name) == (Status.CANCELLED, "cancel")
                assert (refused is None) == silent, (status, name)
            _clear(store, after)


def _clear(store: Store, job: Job) -> None:
    if job.status == Status.QUEUED:
        store.cancel(job.id)
    elif job.status == Status.RUNNING:
        store.cancelled(_claim(job))
    store.delete(job.id)


@ON_SQLITE
def test_delete_only_what_has_ended(store: Store) -> None:
    """Queued and running jobs stay."""
    for status, start in START.items():
        job = start(store)
        if job.terminal:
            assert store.delete(job.id) == store_free(job)
            assert store.known([job.id]) == set()
        else:
            with pytest.raises(WrongState, match=rf"is {status}; cancel it"):
                store.delete(job.id)
            assert store.get(job.id).status == status


def store_free(job: Job) -> Job:
    """A job as `delete` gives it: without a place in the queue."""
    return job.model_copy(update={"queue_position": None})


@ON_SQLITE
@pytest.mark.parametrize("end", ["finish", "fail", "retry", "hand_back", "reap", "cancelled"])
def test_a_wish_to_cancel_comes_first(store: Store, end: str) -> None:
    """However a job's attempt ends after its owner wished to cancel it, it is cancelled and nothing is published."""
    job = _running(store)
    assert store.cancel(job.id).status == Status.RUNNING
    assert store.cancel(job.id).cancel_requested  # asking twice is one event
    DEEDS[end](store, job)
    after = store.get(job.id)
    assert (after.status, after.result, after.error) == (Status.CANCELLED, None, None)
    stalled = ["stalled"] if end == "reap" else []
    assert kinds(store, job.id) == ["queued", "started", "cancel_requested", *stalled, "cancelled"]
    again = store.resume(job.id)
    assert not again.cancel_requested and store.claim("w1") is not None


@ON_SQLITE
def test_what_a_job_shows_on_its_way(store: Store) -> None:
    """Attempts, claims, times and errors, from the first attempt that fails to the last that does not."""
    job = store.enqueue(new(max_attempts=2))
    assert (job.attempt, job.claim, job.worker, job.started_at, job.queue_position) == (0, 0, None, None, 0)
    first = store.claim("w1")
    assert first is not None and (first.attempt, first.claim, first.worker) == (1, 1, "w1")
    assert first.started_at is not None and first.heartbeat_at == first.started_at >= job.created_at
    retried = store.fail(hold(first), OUCH, retry_after=0)
    assert (retried.status, retried.error, retried.worker, retried.started_at) == (Status.QUEUED, OUCH, None, None)
    second = store.claim("w2")
    assert second is not None and (second.attempt, second.claim, second.error) == (2, 2, None)
    back = store.hand_back(hold(second))
    assert (back.attempt, back.claim) == (1, 2)  # a drain is no attempt, but its claim is over
    third = store.claim("w2")
    assert third is not None and (third.attempt, third.claim) == (2, 3)
    failed = store.fail(hold(third), OUCH)
    assert failed.finished_at is not None and failed.error == OUCH and failed.worker == "w2"
    resumed = store.resume(job.id)
    assert (resumed.attempt, resumed.claim, resumed.error, resumed.finished_at) == (0, 3, None, None)
    done = store.finish(hold(store.claim("w1")), RESULT)
    assert (done.status, done.result, done.claim) == (Status.SUCCEEDED, RESULT, 4)
    assert store.get(job.id) == done


@ON_SQLITE
def test_a_job_whose_worker_dies_every_time_fails(store: Store) -> None:
    """Not more than `max_attempts`, and it says so."""
    job = store.enqueue(new(max_attempts=2))
    for expected in (Status.QUEUED, Status.FAILED):
        assert store.claim("w1") is not None
        (reaped,) = store.reap(-1)
        assert reaped.status == expected
    message = "its worker was silent for -1 s in attempt 2 of 2"
    assert reaped.error == Failure(code="worker_lost", message=message)
    assert kinds(store, job.id) == ["queued", "started", "stalled", "started", "stalled", "failed"]
    assert store.events(job.id)[-1].data == {"code": "worker_lost", "message": message}
