"""What happened to a job: numbered without gaps, in the order of commits, whoever writes; and a webhook call is due
when it ends, in the very transaction that ends it.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from deeds import OUCH, RESULT, hold, info, kinds, new
from sampled import ON_POSTGRES, ON_SQLITE

from tcnn_jobs.errors import JobNotFound
from tcnn_jobs.model.jobs import Beat, Delivery, Job, NewEvent
from tcnn_jobs.store import Store


@ON_SQLITE
def test_replay_from_anywhere(store: Store) -> None:
    """`after` and `limit` page through them; each says what is to be known."""
    job = store.enqueue(new()).id
    claim = hold(store.claim("w1"))
    store.heartbeat(info(), [Beat(claim=claim, events=tuple(NewEvent(kind="epoch", data={"n": n}) for n in range(3)))])
    store.fail(claim, OUCH, retry_after=5)
    events = store.events(job)
    assert [event.kind for event in events] == ["queued", "started", "epoch", "epoch", "epoch", "retrying"]
    assert [event.data.get("n") for event in events[2:5]] == [0, 1, 2]
    assert events[1].data == {"attempt": 1, "worker": "w1"}
    assert events[5].data == {"code": OUCH.code, "message": OUCH.message, "after": 5}
    assert all(before.at <= after.at for before, after in pairwise(events))
    assert store.events(job, after=2, limit=2) == events[2:4]
    assert store.events(job, after=6) == store.events(job, after=10**30) == []
    assert store.events(job, "ann") == events
    assert [store.count_events(job, kind) for kind in ("epoch", "queued", "failed")] == [3, 1, 0]
    with pytest.raises(JobNotFound):
        store.events(job, "bob")
    with pytest.raises(JobNotFound):
        store.count_events("job_of_nobody", "epoch")


@ON_POSTGRES
def test_no_gaps_when_many_write_at_once(store: Store) -> None:
    """Beats, a wish to cancel, and readers that follow by `after`: all see one sequence."""
    job = store.enqueue(new()).id
    claim = hold(store.claim("w1"))

    def beat(number: int) -> None:
        store.heartbeat(info(f"w{number}"), [Beat(claim=claim, events=(NewEvent(kind=f"e{number}"),) * (number % 3))])

    def follow(_: int) -> list[int]:
        seen: list[int] = []
        while not seen or len(seen) < 43:
            seen += [event.seq for event in store.events(job, after=seen[-1] if seen else 0, limit=7)]
        return seen

    with ThreadPoolExecutor(10) as pool:
        readers = [pool.submit(follow, number) for number in range(2)]
        writers = [pool.submit(beat, number) for number in range(40)]
        wish = pool.submit(store.cancel, job)
        for writer in (*writers, wish):
            writer.result(60)
        written = 2 + sum(number % 3 for number in range(40)) + 1
        assert written == 42
        store.cancelled(claim)
        for reader in readers:
            assert reader.result(60) == list(range(1, 44))
    found = kinds(store, job)
    assert sorted(found[2:-1]) == sorted(
        ["cancel_requested"] + [f"e{number}" for number in range(40) for _ in range(number % 3)]
    )


URL = "https://example.org/hook"

ENDS: dict[str, Callable[[Store, Job], Job]] = {
    "succeeded": lambda store, job: store.finish(hold(store.claim("w1")), RESULT),
    "failed": lambda store, job: store.fail(hold(store.claim("w1")), OUCH),
    "cancelled": lambda store, job: store.cancel(job.id),
}


@ON_SQLITE
@pytest.mark.parametrize("status", ENDS)
def test_one_call_for_every_end(store: Store, status: str) -> None:
    """It says what happened, without a word about where files lie; a job that runs again ends again."""
    job = store.enqueue(new(webhook=URL, max_attempts=2))
    store.fail(hold(store.claim("w1")), OUCH, retry_after=0)
    assert store.due_deliveries() == []
    ended = ENDS[status](store, job)
    (call,) = store.due_deliveries()
    assert (call.job, call.url, call.attempt) == (job.id, URL, 1)
    told = call.body["job"]
    assert (call.body["type"], told["id"], told["status"]) == (f"job.{status}", job.id, status)
    assert told["finished_at"] == ended.finished_at
    assert "path" not in str(call.body) and "owner" not in told and "worker" not in told
    if status == "succeeded":
        assert told["result"]["checkpoint"]["sha256"] == "0" * 64
    else:
        assert told["error"] == (OUCH.model_dump() if status == "failed" or ended.error else None)
        store.resume(job.id)
        store.cancel(job.id)
        assert [other.body["type"] for other in store.due_deliveries()] == ["job.cancelled"]


@ON_SQLITE
def test_no_webhook_no_call(store: Store) -> None:
    """Nor for a job that ends by its worker's death."""
    store.cancel(store.enqueue(new()).id)
    assert store.due_deliveries() == []
    store.enqueue(new(webhook=URL, max_attempts=1))
    store.claim("w1")
    store.reap(-1)
    assert [call.body["type"] for call in store.due_deliveries()] == ["job.failed"]


def _due(store: Store, number: int) -> None:
    for _ in range(number):
        store.cancel(store.enqueue(new(webhook=URL)).id)


def _wait(store: Store) -> list[Delivery]:
    deadline = time.monotonic() + 60
    while not (found := store.due_deliveries()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@ON_SQLITE
def test_a_call_is_repeated_until_it_is_made(store: Store) -> None:
    """After a caller's death, after a failure; not after success, and not after giving up."""
    _due(store, 2)
    first = store.due_deliveries(limit=1, lease=0.2)
    (second,) = store.due_deliveries()
    assert [call.job for call in first] != [second.job]
    assert store.due_deliveries() == []
    store.delivered(second.id)
    (again,) = _wait(store)  # whoever had the first one is dead
    assert (again.id, again.attempt) == (first[0].id, 2)
    store.delivery_failed(again.id, retry_after=0.2)
    assert store.due_deliveries() == []
    (third,) = _wait(store)
    assert (third.id, third.attempt) == (again.id, 3)
    store.delivery_failed(third.id, retry_after=None)
    store.delivered(third.id)  # whose row is gone already
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM deliveries").scalar() == 0


@ON_POSTGRES
def test_callers_at_once_never_get_the_same_call(store: Store) -> None:
    """Every call is handed out once, and none is forgotten."""
    _due(store, 24)

    def take(_: int) -> list[str]:
        taken: list[str] = []
        for _ in range(30):
            taken += [call.id for call in store.due_deliveries(limit=2)]
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [id for part in pool.map(take, range(4)) for id in part]
    assert len(taken) == len(set(taken)) == 24
