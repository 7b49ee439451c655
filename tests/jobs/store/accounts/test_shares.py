"""Fair share between tenants within a priority: whose job is next, and what it costs to know."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from deeds import RESULT, hold, new
from sampled import ON_SQLITE, sampled
from sqlalchemy import Connection, event, text, update

from tcnn_jobs.database import schema
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import Job, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store
from tcnn_jobs.store.reading import places


def _taken(store: Store, count: int) -> list[Job]:
    """The next jobs."""
    found = []
    for _ in range(count):
        time.sleep(0.002)  # SQLite's clock has milliseconds, and last starts are compared
        job = store.claim("w1")
        assert job is not None
        found.append(job)
    return found


def _claimed(store: Store, count: int) -> list[str]:
    """The tenants of the next jobs."""
    return [job.owner for job in _taken(store, count)]


def _many(store: Store, owner: str, count: int, priority: int = 0) -> None:
    """So many queued jobs, copied within the database."""
    first = store.enqueue(new(owner=owner, priority=priority))
    columns = (
        "owner, kind, status, request, priority, attempt, max_attempts, claim, created_at, not_before, "
        "cancel_requested, event_count, slots"
    )
    with store.writing() as connection:
        connection.execute(
            text(
                f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
                f"INSERT INTO jobs (id, {columns}) SELECT '{first.id}' || i, {columns} FROM n, jobs "
                f"WHERE jobs.number = {first.number}"
            )
        )


def test_one_job_is_next_whatever_another_tenant_has_queued(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its place says so."""
    _many(store, "ann", 1000)
    assert _claimed(store, 2) == ["ann", "ann"]
    for tenant in ("bob", "cat"):
        job = store.enqueue(new(owner=tenant))
        monkeypatch.setattr(store._places._snapshot, "_good_until", 0.0)
        assert store.get(job.id).queue_position == 0
        assert _claimed(store, 1) == [tenant]
    assert _claimed(store, 3) == ["ann"] * 3


@ON_SQLITE
def test_tenants_take_turns_where_one_job_runs_at_a_time(store: Store) -> None:
    """None of them has anything running then: whose last start is the longest ago is next."""
    for tenant, count in (("ann", 4), ("bob", 2), ("cat", 3)):
        for _ in range(count):
            store.enqueue(new(owner=tenant))
    order = []
    for _ in range(9):
        (job,) = _taken(store, 1)
        order.append(job.owner)
        store.finish(hold(job), RESULT)
    assert order == ["ann", "bob", "cat", "ann", "bob", "cat", "ann", "cat", "ann"]


def test_whoever_has_fewest_running_is_next(store: Store) -> None:
    """Until all have as many; then they take turns."""
    for tenant, count in (("ann", 6), ("bob", 3)):
        for _ in range(count):
            store.enqueue(new(owner=tenant))
    jobs = _taken(store, 6)
    assert [job.owner for job in jobs] == ["ann", "bob"] * 3
    for job in jobs:
        if job.owner == "bob":
            store.finish(hold(job), RESULT)
    store.enqueue(new(owner="bob"))
    store.enqueue(new(owner="bob"))
    assert _claimed(store, 5) == ["bob", "bob", "ann", "ann", "ann"]


@ON_SQLITE
def test_slots_count_and_not_jobs(store: Store) -> None:
    """One job on four GPUs is as much as four on one."""
    store.enqueue(new(owner="ann", slots=4))
    assert store.claim("w1", slots=4) is not None
    for tenant in ("ann", "bob"):
        for _ in range(6):
            store.enqueue(new(owner=tenant))
    assert _claimed(store, 6) == ["bob"] * 4 + ["ann", "bob"]


def test_a_higher_priority_comes_first_whoever_it_is(store: Store) -> None:
    """Shares are within a priority; a tenant's own jobs are by age."""
    low = store.enqueue(new(owner="bob", priority=-1))
    high = [store.enqueue(new(owner="ann", priority=1)).id for _ in range(3)]
    assert [job.id for job in _taken(store, 4)] == [*high, low.id]


@ON_SQLITE
def test_a_tenant_whose_jobs_cannot_start_is_in_nobodys_way(store: Store) -> None:
    """They wait for a retry, or are too wide; the next priority is looked at, too."""
    for slots in (1, 8):
        job = store.enqueue(new(owner="ann", priority=5, slots=slots))
        if slots == 1:
            with store.writing() as connection:
                connection.execute(update(schema.jobs).values(not_before=time.time() + 1000))
    other = store.enqueue(new(owner="bob"))
    claimed = store.claim("w1")
    assert claimed is not None and claimed.id == other.id
    assert store.claim("w1") is None
    wide = store.claim("w1", slots=8)
    assert wide is not None and wide.id == job.id


@ON_SQLITE
def test_a_tenant_that_nobody_has_noted_is_served(store: Store) -> None:
    """An older server submits without a row of `tenants`."""
    store.enqueue(new(owner="ann"))
    with store.writing() as connection:
        connection.execute(schema.tenants.delete())
    assert _claimed(store, 1) == ["ann"]


@ON_SQLITE
@pytest.mark.parametrize("seed", sampled(range(4), always=[0]))
def test_places_foretell_the_order(store: Store, seed: int) -> None:
    """Of jobs that are queued when some are running, if none ends."""
    chance = random.Random(seed)
    tenants = ["ann", "bob", "cat", "dan"]
    running = chance.randrange(5)
    for _ in range(running):
        store.enqueue(new(owner=chance.choice(tenants)))
    _taken(store, running)
    jobs = [store.enqueue(new(owner=chance.choice(tenants))) for _ in range(20)]
    foretold = sorted(jobs, key=lambda job: store.get(job.id).queue_position or 0)
    assert sorted(store.get(job.id).queue_position or 0 for job in jobs) == list(range(20))
    assert [job.id for job in _taken(store, 20)] == [job.id for job in foretold]


@pytest.mark.slow  # processes that race for the jobs of one tenant are in `tests/jobs/store/test_processes.py`
def test_many_workers_at_once_start_every_job_once(store: Store, url: str) -> None:
    """Those who race for them have connections of their own. In what order is not said: while a worker waits to finish
    its job, which is running then, the other tenant is next again and again."""
    for tenant in ("ann", "bob"):
        for _ in range(20):
            store.enqueue(new(owner=tenant))

    def work(name: str) -> list[Job]:
        own, found = Store(url), []
        while (job := own.claim(name)) is not None:
            found.append(job)
            own.finish(hold(job), RESULT)
        own.close()
        return found

    with ThreadPoolExecutor(4) as pool:
        done = [job for part in pool.map(work, (f"w{number}" for number in range(4))) for job in part]
    done += work("last")  # where all that a worker saw was taken by others, it came back without one
    assert Counter(job.id for job in done) == {job.id: 1 for job in store.list(limit=100)[0]}


READ = text(
    "SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) + pg_stat_get_xact_tuples_returned('jobs'::regclass) "
    "FROM pg_index WHERE indrelid = 'jobs'::regclass"
)


def test_what_a_claim_reads_does_not_grow_with_the_queue(
    own_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL counts what it reads of the table and of its indexes: beside many jobs of the same tenant, of the same
    priority and of others, with statistics that know nothing of them, and with plans that know no parameter."""
    store = Store(own_postgres_url)
    _many(store, "many", 700, priority=-5)
    with store.writing() as connection:
        connection.execute(text("ANALYZE"))
    _many(store, "many", 700)
    read: list[int] = []

    @contextmanager
    def counted(*given: Any) -> Iterator[Connection]:
        with transaction(*given) as connection:
            before = connection.scalar(READ)
            yield connection
            read.append(connection.scalar(READ) - before)

    transaction = store._transaction
    monkeypatch.setattr(store, "_transaction", counted)
    # Places are counted anew after a second, which a slow machine may take; that is not what claims read.
    store.list(limit=1)
    monkeypatch.setattr(store._places._snapshot, "_good_until", time.monotonic() + 1000)
    for mode, known in (("auto", False), ("force_generic_plan", False), ("force_generic_plan", True)):
        with store.writing() as connection:
            name = connection.scalar(text("SELECT current_database()"))
            connection.execute(text(f'ALTER DATABASE "{name}" SET plan_cache_mode = {mode}'))
            if known:
                connection.execute(text("ANALYZE"))
        store.close()
        read.clear()
        for number in range(12):  # after five times the driver has the server prepare it, after ten it may plan for all
            store.enqueue(new(owner=f"few{number % 2}"))
            assert store.claim("w1") is not None
        assert len(read) >= 36
        assert max(read) < 300, (mode, known, " ".join(map(str, read)))
    store.close()


def test_steps_of_sqlite_do_not_grow_with_the_queue(sqlite_url: str) -> None:
    """Its own count of what it does for a claim, for a list, and for a deletion that is refused."""
    store = Store(sqlite_url)
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    @event.listens_for(store.engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        connection.set_progress_handler(count, 10)

    found: dict[int, list[int]] = {}
    for size in (300, 3000):
        needed = Upload(id=new_id("ds"), owner="many", kind="dataset", name="a", path="a", size=1, sha256="0" * 64)
        store.add_upload(needed)
        _many(store, "many", size, priority=size // 3000)
        store.enqueue(new(owner="many", request={"model": "resnet18", "dataset": needed.id}, priority=-5))
        store.enqueue(new(owner="few"))
        store.list(limit=1)
        store._places._snapshot._good_until = time.monotonic() + 1000
        found[size] = []
        for call in (lambda: store.claim("w1"), lambda: store.list("few"), partial(store.remove_upload, needed.id)):
            before = steps[0]
            with suppress(WrongState):
                call()
            found[size].append(steps[0] - before)
    assert all(large < 2 * small + 20 for small, large in zip(found[300], found[3000], strict=True)), found
    store.close()


@ON_SQLITE
def test_jobs_that_a_quota_holds_back_are_in_nobodys_way(store: Store) -> None:
    """Of a tenant that may start two more its first two count; the others are behind all that could start, in order."""
    store.set_quotas("ann", running=3)
    store.enqueue(new())
    _taken(store, 1)
    low, high = store.enqueue(new()), [store.enqueue(new(priority=5)) for _ in range(4)]
    bob = store.enqueue(new(owner="bob"))
    delayed = store.enqueue(new(owner="bob", priority=9))
    with store.writing() as connection:
        waits = update(schema.jobs).where(schema.jobs.c.id == delayed.id)
        connection.execute(waits.values(not_before=time.time() + 900))
    expected = [high[0], high[1], bob, high[2], high[3], low, delayed]
    assert [store.get(job.id).queue_position for job in expected] == list(range(7))
    assert [job.id for job in _taken(store, 3)] == [job.id for job in expected[:3]]
    assert store.claim("w1") is None
    assert [store.get(job.id).queue_position for job in expected[3:]] == [0, 1, 2, 3]
    store.set_quotas("ann", running=None)
    assert store.get(low.id).queue_position == 2
    assert [job.id for job in _taken(store, 3)] == [high[2].id, high[3].id, low.id]


@ON_SQLITE
def test_a_place_behind_a_tenant_without_gpu_hours(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a long queue, too, and of jobs that came after it was counted."""
    monkeypatch.setattr(places, "HEAD", 3)
    _many(store, "ann", 10, priority=5)
    bob = store.enqueue(new(owner="bob"))
    store.set_quotas("ann", gpu_hours=0.0)
    monkeypatch.setattr(store._places._snapshot, "_good_until", 0.0)
    assert store.get(bob.id).queue_position == 0
    later = store.enqueue(new(owner="bob"))
    line = store._places._snapshot._value
    assert later.queue_position == 1
    number = later.number + 1
    assert [line.place(number, priority, "ann", 0.0) for priority in (5, 9)] == [11, 1]
