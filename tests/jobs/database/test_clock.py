"""Leases and times are the database's: a host whose clock is wrong takes nothing from anybody."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from deeds import OUCH, RESULT, hold, info, new
from sqlalchemy import event, exists, func, insert, select, update

from tcnn_jobs.database.engine import PORTION
from tcnn_jobs.database.schema import deliveries, jobs, tenants, usage, workers
from tcnn_jobs.model.accounts import NewKey
from tcnn_jobs.model.jobs import Beat, Status
from tcnn_jobs.store import Store, clocks


@pytest.fixture(params=[pytest.param(-86400.0, marks=pytest.mark.slow), 86400.0], ids=["a day behind", "a day ahead"])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What Python believes is the time."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + request.param)
    monkeypatch.setattr(time, "time_ns", lambda: int((right() + request.param) * 1e9))
    return float(request.param)


def test_a_wrong_clock_reaps_nobody(store: Store, wrong: float) -> None:
    """Neither a held job is taken, nor one that was left is kept, nor is any time that is written down a wrong one."""
    true = time.time() - wrong
    job = store.enqueue(new())
    claim = hold(store.claim("w1"))
    assert store.reap(60) == []
    store.heartbeat(info(), [Beat(claim=claim)])
    held = store.get(job.id)
    assert held.heartbeat_at is not None
    for written in (held.created_at, held.heartbeat_at, store.events(job.id)[0].at):
        assert abs(written - true) < 60
    assert store.statistics().workers[0].heartbeat_at == pytest.approx(0, abs=30)
    time.sleep(0.1)
    (reaped,) = store.reap(0.05)
    assert (reaped.id, reaped.status) == (job.id, Status.QUEUED)
    store.cancel(job.id)
    assert store.expired(60) == []
    assert [found.id for found in store.expired(0)] == [job.id]


def test_a_heartbeat_keeps_a_job(store: Store) -> None:
    """Only those that were silent for the whole lease are taken."""
    kept, left = store.enqueue(new()), store.enqueue(new())
    claim = hold(store.claim("w1"))
    store.claim("w2")
    with store.writing() as connection:  # that was an hour ago
        connection.execute(update(jobs).values(heartbeat_at=jobs.c.heartbeat_at - 3600))
    store.heartbeat(info(), [Beat(claim=claim)])
    assert [job.id for job in store.reap(1800)] == [left.id]
    assert store.reap(1800) == []
    assert store.get(kept.id).status == Status.RUNNING
    assert store.events(left.id)[-1].data == {"worker": "w2"}


class Settable:
    """A host whose clock is set while its processes run: SQLite's own function for the time, replaced."""

    def __init__(self, store: Store) -> None:
        self.ahead = 0.0
        event.listen(store.engine, "connect", self._replace)
        store.close()  # connections that are open already

    def _replace(self, connection: Any, record: Any) -> None:
        plain = sqlite3.connect(":memory:")
        connection.create_function(
            "julianday",
            1,
            lambda when: plain.execute("SELECT julianday(?)", (when,)).fetchone()[0] + self.ahead / 86400,
        )


@pytest.fixture
def clock(sqlite_store: Store) -> Settable:
    return Settable(sqlite_store)


@pytest.fixture
def sqlite_store(sqlite_url: str) -> Iterator[Store]:
    store = Store(sqlite_url)
    yield store
    store.close()


def test_a_clock_that_is_set_forward_takes_no_job_from_a_worker_that_lives(
    sqlite_store: Store, clock: Settable
) -> None:
    """It has a lease to say so; then those are taken that were silent."""
    store = sqlite_store
    kept, left = store.enqueue(new()), store.enqueue(new())
    claim = hold(store.claim("w1"))
    store.claim("w2")
    assert store.reap(0.5) == []
    clock.ahead = 120
    assert store.reap(0.5) == []
    time.sleep(0.55)
    store.heartbeat(info(), [Beat(claim=claim)])
    assert [job.id for job in store.reap(0.5)] == [left.id]
    assert store.get(kept.id).status == Status.RUNNING


def test_a_clock_that_is_set_back_holds_no_job_up(sqlite_store: Store, clock: Settable) -> None:
    """Neither one that waits, nor one whose worker is dead, for longer than a lease."""
    store = sqlite_store
    retried = store.enqueue(new())
    clock.ahead = 3600.0
    store.fail(hold(store.claim("w1")), OUCH, retry_after=600)
    dead, waiting = store.enqueue(new()), store.enqueue(new())
    store.claim("w1")
    assert store.reap(0.2) == []
    clock.ahead = 0.0
    assert store.claim("w1") is None
    assert store.reap(0.2) == []
    claimed = store.claim("w1")
    assert claimed is not None and claimed.id == waiting.id
    assert store.get(retried.id).not_before < time.time() + 601
    time.sleep(0.3)
    assert {job.id for job in store.reap(0.2)} == {dead.id, waiting.id}


def test_a_worker_that_starts_after_the_clock_was_set_back_mends_it(sqlite_store: Store, clock: Settable) -> None:
    """It has seen nothing, but the rows tell."""
    clock.ahead = 3600.0
    job = sqlite_store.enqueue(new())
    clock.ahead = 0.0
    assert sqlite_store.reap(60) == []
    claimed = sqlite_store.claim("w1")
    assert claimed is not None and claimed.id == job.id


def test_a_clock_that_is_set_back_holds_no_webhook_up(sqlite_store: Store, clock: Settable) -> None:
    """One that was due is due; one that is tried again waits ten minutes at most."""
    store = sqlite_store
    clock.ahead = 86400.0
    for _ in range(2):
        store.cancel(store.enqueue(new(webhook="http://receiver.example/")).id)
    (tried,) = store.due_deliveries(1)
    store.delivery_failed(tried.id, 600)
    clock.ahead = 0.0
    assert store.due_deliveries() == []
    store.reap(60)
    (due,) = store.due_deliveries()
    assert due.id != tried.id
    clock.ahead = 601.0
    assert tried.id in {delivery.id for delivery in store.due_deliveries()}


def test_a_worker_that_was_killed_before_the_clock_was_set_back_is_silent(sqlite_store: Store, clock: Settable) -> None:
    """At once where nobody keeps house any more; where somebody does, as if it had been heard of just then."""
    store = sqlite_store
    store.enqueue(new())
    clock.ahead = 86400.0
    store.heartbeat(info("dead"), [])
    assert store.count_workers() == 1
    clock.ahead = 0.0
    assert store.count_workers() == 0 and not any(worker.present for worker in store.workers())
    assert store.list()[0][0].waiting_for == "no worker is there"
    figures = store.statistics()
    assert (figures.workers, figures.slots) == ((), {})
    store.reap(60)
    clock.ahead = 100.0
    (worker,) = store.statistics().workers
    assert worker.heartbeat_at == pytest.approx(100, abs=30) and store.count_workers() == 0


def test_a_clock_that_is_set_back_makes_no_tenant_wait_for_its_turn(sqlite_store: Store, clock: Settable) -> None:
    store = sqlite_store
    clock.ahead = 86400.0
    store.enqueue(new())
    store.finish(hold(store.claim("w1")), RESULT)
    clock.ahead = 0.0
    store.reap(60)
    for owner in ("bob", "bob", "ann"):
        store.enqueue(new(owner=owner))
    turns = []
    for _ in range(3):
        clock.ahead += 10.0
        taken = store.claim("w1")
        assert taken is not None
        turns.append(taken.owner)
        store.finish(hold(taken), RESULT)
    assert turns == ["bob", "ann", "bob"]


def test_a_clock_that_is_set_back_keeps_what_was_used(sqlite_store: Store, clock: Settable) -> None:
    """What has run is today's, and forgotten as such; what runs has run for as long as its worker had told."""
    store = sqlite_store
    store.set_quotas("ann", gpu_hours=100.0)
    clock.ahead = 40 * 86400.0
    store.enqueue(new())
    ended = hold(store.claim("w1"))
    clock.ahead += 3600.0
    store.fail(ended, OUCH)
    running = store.enqueue(new())
    held = hold(store.claim("w1"))
    clock.ahead += 1800.0
    store.heartbeat(info(), [Beat(claim=held)])
    clock.ahead = 0.0
    store.reap(60)
    assert store.get(running.id).started_at == pytest.approx(time.time() - 1800, abs=30)
    assert store.tenants("ann")[0].use.gpu_hours == pytest.approx(1.5, abs=0.1)
    store.hand_back(held)
    clock.ahead = 31 * 86400.0
    assert store.tenants("ann")[0].use.gpu_hours == 0


def test_a_key_that_is_used_after_the_clock_was_set_back_says_so(sqlite_store: Store, clock: Settable) -> None:
    clock.ahead = 86400.0
    key, _ = sqlite_store.create_key(NewKey(tenant="ann"))
    sqlite_store.note_use(key.id, 5)
    clock.ahead = 0.0
    sqlite_store.note_use(key.id, 5)
    assert sqlite_store.api_keys()[0].used_at == pytest.approx(time.time(), abs=30)


def test_nothing_of_an_ordinary_queue_is_wrong_and_all_that_a_day_has_moved_is_mended(store: Store) -> None:
    store.set_quotas("ann", gpu_hours=100.0)
    for _ in range(4):
        store.enqueue(new(webhook="http://receiver.example/"))
    for retry_after in (None, 600):
        store.fail(hold(store.claim("w1")), OUCH, retry_after)
    store.heartbeat(info(), [Beat(claim=hold(store.claim("w1")))])
    (tried,) = store.due_deliveries()
    store.delivery_failed(tried.id, 600)
    with store.writing() as connection:
        assert not clocks.is_wrong(connection)
        connection.execute(update(jobs).values(
            {name: jobs.c[name] + 86400 for name in ("created_at", "not_before", "started_at", "heartbeat_at")}
        ))  # fmt: skip
        for column in (deliveries.c.due_at, workers.c.heartbeat_at, tenants.c.started_at):
            connection.execute(update(column.table).values({column: column + 86400}))
        connection.execute(update(usage).values(day=usage.c.day + 2))
        assert all(connection.scalar(select(exists().where(wrong.where))) for wrong in clocks.MENDED[:4])
    store.reap(60)
    with store.reading() as connection:
        assert not any(connection.scalar(select(exists().where(wrong.where))) for wrong in clocks.MENDED)
    assert store.claim("w1") is not None


def test_what_a_clock_has_left_in_many_rows_is_mended_in_portions(sqlite_store: Store) -> None:
    """One statement for all of them would be ended before it has mended one."""
    sqlite_store.heartbeat(info(), [])
    with sqlite_store.writing() as connection:
        row = connection.execute(select(workers)).one()._asdict() | {"heartbeat_at": time.time() + 86400}
        connection.execute(insert(workers), [row | {"name": f"of {number}"} for number in range(PORTION + 1)])

    def left() -> int:
        sqlite_store.reap(60)
        with sqlite_store.reading() as connection:
            ahead = select(func.count()).where(clocks.to_come(workers.c.heartbeat_at))
            return connection.scalar(ahead) or 0

    assert [left(), left()] == [1, 0]
