"""A database that is locked, away or full: one line within the wait, and all is well afterwards."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from deeds import RESULT, Child, hold, info, new
from postgres import Server
from sqlalchemy.pool import QueuePool

from tcnn.errors import RequestError
from tcnn_jobs.database.silence import answers
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Hold, Status
from tcnn_jobs.store import Store

PATIENT = 60.0
"""Seconds that a store waits for a server that answers."""


@contextmanager
def _unavailable(match: str, within: float) -> Iterator[None]:
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=match) as caught:
        yield
    assert time.monotonic() - start < within
    assert "\n" not in str(caught.value)


def test_nobody_naps_who_is_alone(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naps are for those whose turn it is not."""
    store = Store(sqlite_url)
    monkeypatch.setattr(time, "sleep", {}.__getitem__)
    assert store.enqueue(new()).id == hold(store.claim("w1")).job
    store.close()


def test_sqlite_locked_by_another_process(sqlite_url: str) -> None:
    """Writers wait and say so; readers do not wait at all; the lock gone, all goes on."""
    store = Store(sqlite_url, wait=0.4)
    job = store.enqueue(new())
    other = Child("lock", sqlite_url)
    assert other.hear() == "locked"
    try:
        start = time.monotonic()
        with _unavailable(r"tcnn\.db: the database is locked or busy for more than 0\.4 s; try again", 30):
            store.enqueue(new())
        assert time.monotonic() - start >= 0.4
        with ThreadPoolExecutor(6) as pool:  # those who wait for their own process's turn wait no longer
            calls = [pool.submit(store.claim, "w1") for _ in range(6)]
            assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)
        assert store.get(job.id) == job and store.due_deliveries() == [] and store.reap(0) == []
        store.check()
    finally:
        other.kill()
    assert store.claim("w1") is not None
    store.close()


def test_connections_are_few_and_waited_for(tmp_path: Path) -> None:
    """However many threads: of a pool that never overflows."""
    for url, most in ((f"sqlite:///{tmp_path / 'tcnn.db'}", 64), ("postgresql://tcnn@nowhere.invalid/tcnn", 20)):
        pool = Store(url, wait=0.4).engine.pool
        assert isinstance(pool, QueuePool)
        assert (pool.size(), pool._max_overflow, pool.timeout()) == (most, 0, 0.4)


def test_a_lock_that_is_short_is_waited_for(sqlite_url: str) -> None:
    """Nobody notices."""
    store = Store(sqlite_url, wait=30)
    store.enqueue(new())
    other = Child("lock", sqlite_url)
    assert other.hear() == "locked"
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(store.claim, "w1")
        time.sleep(0.3)
        assert not claim.done()
        other.kill()
        assert claim.result(30) is not None
    store.close()


def test_sqlite_on_a_full_disk(sqlite_url: str) -> None:
    """What was accepted is there, what was refused is not; it can be read, and goes on once there is space."""
    child = Child("fill", sqlite_url, "w2", 1_500_000)
    said = child.rest()
    assert child.exitcode == 0
    refused = [line for line in said if line.startswith("refused: ")]
    assert len(refused) == 5
    assert all("tcnn.db: the database cannot be used (" in line and "\n" not in line for line in refused)
    accepted = [line for line in said if line.startswith("job_")]
    assert len(accepted) > 20 and said[-1] == accepted[-1] and said[-2] == "readable: 5"
    store = Store(sqlite_url)
    assert [job.id for job in reversed(store.list(limit=3000)[0])] == accepted
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    store.close()


def test_sqlite_that_may_not_grow(sqlite_url: str) -> None:
    """SQLite's own word for a full disk, in the middle of a transaction that a worker is finishing."""
    store = Store(sqlite_url)
    store.enqueue(new())
    claim = hold(store.claim("w1"))
    big = RESULT.model_copy(update={"notes": ("x" * 200_000,)})
    with store.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with _unavailable("database or disk is full", 30):
        store.finish(claim, big)
    assert store.get(claim.job).status == Status.RUNNING
    with store.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
    assert store.heartbeat(info(), [Beat(claim=claim)]) == {claim: Hold.HELD}
    assert store.finish(claim, big).status == Status.SUCCEEDED
    store.close()


@pytest.mark.parametrize("damage", ["missing folder", "not a database", "no tables", "a folder"])
def test_sqlite_files_that_are_none(tmp_path: Path, damage: str) -> None:
    """One line that names the file."""
    path = tmp_path / ("missing/q.db" if damage == "missing folder" else "q.db")
    if damage == "not a database":
        path.write_bytes(b"something else" * 1000)
    elif damage == "a folder":
        path.mkdir()
    store = Store(f"sqlite:///{path}", wait=0.2)
    for call in (store.check, store.statistics, lambda: store.enqueue(new()), lambda: store.claim("w1")):
        with _unavailable(r"q\.db: ", 30):
            call()
    if damage != "no tables":
        with _unavailable(r"q\.db: the database cannot be used", 30):
            store.migrate()
    store.close()


def test_a_file_that_may_not_be_written(sqlite_url: str) -> None:
    """Is refused on one line, and can be read. (Root may write everywhere, so SQLite itself is told to refuse.)"""
    store = Store(sqlite_url)
    job = store.enqueue(new())
    with store.reading() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with _unavailable("readonly", 30):
        store.enqueue(new())
    assert store.list() == ([job], False)
    store.close()


@pytest.fixture
def own_server(postgres_server: Server) -> Iterator[Server]:
    """The server of all tests, which is running again afterwards."""
    try:
        yield postgres_server
    finally:
        postgres_server.stop()
        postgres_server.start()


def test_postgres_away_and_back(own_server: Server, postgres_url: str) -> None:
    """Connections that were open and new ones; what was committed is there, and claims still hold."""
    store, late = Store(postgres_url, wait=0.5), Store(postgres_url, wait=0)
    job = store.enqueue(new())
    claim = hold(store.claim("w1"))
    own_server.stop()
    for call in (
        lambda: store.get(job.id),
        lambda: store.enqueue(new()),
        lambda: store.heartbeat(info(), [Beat(claim=claim)]),
        store.check,
        store.migrate,
    ):
        with _unavailable(r"^postgresql.*: the database cannot be used \(", 30):
            call()
    with _unavailable("the database cannot be used", 30):
        late.check()
    own_server.start()
    store.check()
    assert store.heartbeat(info(), [Beat(claim=claim)]) == {claim: Hold.HELD}
    assert store.finish(claim, RESULT).status == Status.SUCCEEDED
    assert [found.id for found in store.list()[0]] == [job.id]
    store.close()
    late.close()


def test_postgres_restarted_within_a_transaction(own_server: Server, postgres_url: str) -> None:
    """The transaction has not happened, and says so; the next call finds the server again."""
    store = Store(postgres_url, wait=2)
    job = store.enqueue(new())
    with _unavailable("the database cannot be used", 60), store.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET status = 'succeeded'")
        own_server.stop()
        own_server.start()
        connection.exec_driver_sql("UPDATE jobs SET owner = 'bob'")
    assert store.get(job.id) == job
    store.close()


def test_postgres_restart_is_waited_for(own_server: Server, postgres_url: str) -> None:
    """A server that is back within the wait was never away."""
    store = Store(postgres_url, wait=60)
    own_server.stop()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(store.enqueue, new())
        time.sleep(0.5)
        assert not call.done()
        own_server.start()
        assert call.result(60).status == Status.QUEUED
    store.close()


def test_a_row_that_another_holds(postgres_url: str) -> None:
    """PostgreSQL: its lock is waited for as long as was said, and claims do not wait for it at all."""
    store, other = Store(postgres_url, wait=0.3), Store(postgres_url)
    first, second = store.enqueue(new()), store.enqueue(new())
    with other.writing() as connection:
        connection.exec_driver_sql(f"SELECT * FROM jobs WHERE id = '{first.id}' FOR UPDATE")
        with _unavailable("locked or busy for more than 0.3 s", 30):
            store.cancel(first.id)
        claimed = store.claim("w1")
        assert claimed is not None and claimed.id == second.id
        assert store.get(first.id).status == Status.QUEUED
    assert store.cancel(first.id).status == Status.CANCELLED
    store.close()
    other.close()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        "mysql://me:secret@db/x",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "postgresql://me@db:x/n",
    ],
)
def test_wrong_addresses(wrong: str) -> None:
    """The variable, what is expected, and no password."""
    with pytest.raises(RequestError, match="TCNN_DATABASE_URL: expected sqlite:///FILE or postgresql://") as caught:
        Store(wrong)
    assert "secret" not in str(caught.value)


def test_the_password_stays_a_secret() -> None:
    """A server that nobody runs."""
    store = Store("postgresql://me:secret@127.0.0.1:1/queue", wait=0)
    with _unavailable(r"^postgresql\+psycopg://me:\*\*\*@127\.0\.0\.1:1/queue: the database cannot be used", 30):
        store.check()
    store.close()


def test_a_frozen_postgres_holds_nobody_up(postgres_server: Server, postgres_url: str) -> None:
    """Stopped by SIGSTOP it answers nothing and acknowledges all. Open connections, new ones, and a statement under
    way: each call ends within seconds, however patient it is with a server that answers, and all is well when it
    goes on."""
    store = Store(postgres_url, wait=PATIENT)
    job = store.enqueue(new())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.get(job.id), range(4)))
        with postgres_server.frozen():
            with _unavailable("the server answers nobody", PATIENT / 2):
                store.get(job.id)
            with _unavailable("the server answers nobody", PATIENT / 2):  # it is known now, and no connection is tried
                store.check()
    _back(store)
    with _unavailable("the server answers nobody", PATIENT / 2), store.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET owner = 'bob'")
        with postgres_server.frozen():
            connection.exec_driver_sql("UPDATE jobs SET owner = 'eve'")
    _back(store)
    assert store.get(job.id) == job
    with postgres_server.frozen(), ThreadPoolExecutor(8) as pool:  # more than there are connections
        start = time.monotonic()
        calls = [pool.submit(store.get, job.id) for _ in range(8)]
        assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)
        assert time.monotonic() - start < PATIENT / 2
    _back(store)
    store.close()


def _back(store: Store) -> None:
    """It is found to answer again."""
    deadline = time.monotonic() + 60
    while True:
        try:
            store.check()
            return
        except StoreUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_frozen_postgres_that_nobody_has_met(postgres_server: Server, postgres_url: str) -> None:
    """A process that begins then has libpq's own deadline, which is in whole seconds."""
    fresh = Store(postgres_url, wait=0.2)
    with postgres_server.frozen(), _unavailable("the database cannot be used", 30):
        fresh.check()
    fresh.check()
    fresh.close()


def test_what_takes_postgres_long_is_waited_for(postgres_url: str) -> None:
    """It is asked whether it answers, and does: a long statement goes on, and so does the wait for a lock."""
    store = Store(postgres_url)
    job = store.enqueue(new())
    with store.reading() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(1.5)")
    with ThreadPoolExecutor(1) as pool, store.writing() as connection:
        connection.exec_driver_sql("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        other = pool.submit(store.get, job.id)
        time.sleep(1.5)
        assert not other.done()
        connection.rollback()
        assert other.result(60) == job
    store.close()


def test_who_answers_nobody(tmp_path: Path) -> None:
    """One that accepts and says nothing, on TCP or a Unix socket; one that is not there is not silent, but away."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert not answers("127.0.0.1", port, 0.2)
    assert answers("127.0.0.1", port, 0.2)
    with socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / ".s.PGSQL.5432"))
        local.listen()
        assert not answers(str(tmp_path), 5432, 0.2)
    assert answers(str(tmp_path), 5432, 0.2)
