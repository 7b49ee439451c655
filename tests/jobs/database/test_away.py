"""A server that is away, frozen or busy, and wrong addresses: one line within the wait, and all is well afterwards."""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from deeds import RESULT, hold, info, new, unavailable
from postgres import Server
from sqlalchemy.pool import QueuePool

from tcnn.errors import RequestError
from tcnn_jobs.database import silence
from tcnn_jobs.database.address import misread
from tcnn_jobs.database.silence import answers
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Hold, Status
from tcnn_jobs.store import Store

PATIENT = 60.0
"""Seconds that a store waits for a server that answers."""


def test_connections_are_few_and_waited_for(tmp_path: Path) -> None:
    """However many threads: of a pool that never overflows."""
    for url, most in ((f"sqlite:///{tmp_path / 'tcnn.db'}", 64), ("postgresql://tcnn@nowhere.invalid/tcnn", 20)):
        pool = Store(url, wait=0.4).engine.pool
        assert isinstance(pool, QueuePool)
        assert (pool.size(), pool._max_overflow, pool.timeout()) == (most, 0, 0.4)


@pytest.fixture
def own_server(postgres_server: Server) -> Iterator[Server]:
    """The server of all tests, which is running again afterwards."""
    try:
        yield postgres_server
    finally:
        postgres_server.start()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is asked early whether it answers, and given a moment for it."""
    monkeypatch.setattr(silence, "SOON", 0.1)
    monkeypatch.setattr(silence, "PATIENCE", 0.3)
    monkeypatch.setattr(silence, "AGAIN", 0.05)


def test_postgres_away_and_back(own_server: Server, postgres_url: str) -> None:
    """Connections that were open and new ones; what was committed is there, and claims still hold."""
    store, late = Store(postgres_url, wait=0.1), Store(postgres_url, wait=0)
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
        with unavailable(r"^postgresql.*: the database cannot be used \(", 30):
            call()
    with unavailable("the database cannot be used", 30):
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
    with unavailable("the database cannot be used", 60), store.writing() as connection:
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
        time.sleep(0.3)
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
        with unavailable("locked or busy for more than 0.3 s", 30):
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
        "postgresql://me:a@secret@db/n",
        "postgresql://db:1/n?password=a@secret&user=me",
    ],
)
def test_wrong_addresses(wrong: str) -> None:
    """The variable, what is expected, and no password."""
    with pytest.raises(RequestError, match="TCNN_DATABASE_URL: expected sqlite:///FILE or postgresql://") as caught:
        Store(wrong)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("me:secret@127.0.0.1:1/queue", "me:***@127.0.0.1:1/queue"),
        ("127.0.0.1:1/queue?user=me&password=secret", "127.0.0.1:1/queue?user=me"),
        ("me@127.0.0.1:1/queue?sslpassword=secret&sslmode=prefer", "me@127.0.0.1:1/queue"),
        ("me@/queue?host=127.0.0.1&port=1&options=-c%20a.b%3Dsecret", "me@/queue?host=127.0.0.1&port=1"),
    ],
)
def test_the_password_stays_a_secret(given: str, shown: str) -> None:
    """A server that nobody runs."""
    store = Store(f"postgresql://{given}", wait=0)
    with pytest.raises(StoreUnavailable) as caught:
        store.check()
    assert str(caught.value).startswith(f"postgresql+psycopg://{shown}: the database cannot be used")
    assert "secret" not in str(caught.value)
    store.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("ssl=true", "no connection parameter 'ssl'; libpq has others, such as sslmode"),
        ("sslmod=require", "no connection parameter 'sslmod'; did you mean sslmode?"),
        ("autocommit=1", "no connection parameter 'autocommit'"),
        ("sslmode=secure", 'invalid sslmode value: "secure"'),
        ("target_session_attrs=any&target_session_attrs=primary", "expected one target_session_attrs, found 2"),
        ("keepalives=yes", "keepalives"),
        ("ssl_min_protocol_version=TLSv9", 'value: "TLSv9"'),
        ("ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2", "invalid SSL protocol version range"),
        ("sslrootcert=system&sslmode=prefer", 'weak sslmode "prefer"'),
        ("require_auth=md5,!none", 'negative require_auth method "!none"'),
        ("hostaddr=here", 'could not parse network address "here"'),
        ("connect_timeout=x", "expected connect_timeout in whole seconds, found 'x'"),
        ("tcp_user_timeout=x", 'invalid integer value "x"'),
        ("client_encoding=latin1", "expected client_encoding=utf8, found 'latin1'"),
        ("service=none", 'definition of service "none" not found'),
        ("port=x", "non-integer port"),
        ("port=99999", 'invalid port number: "99999"'),
        ("host=a,b&port=1,2,3", "number of hosts and ports"),
    ],
)
def test_wrong_parameters(given: str, told: str) -> None:
    """Nobody can wait for them to become right."""
    with pytest.raises(RequestError, match=f"^TCNN_DATABASE_URL: .*{re.escape(told)}"):
        Store(f"postgresql://me@127.0.0.1/queue?{given}", wait=0).check()


def test_parameters_are_wrong_in_the_words_of_an_older_libpq() -> None:
    """As 16 says what 18 calls an invalid integer value; of a server that refuses, all say that it does."""
    bad = psycopg.OperationalError('connection to server at "h" failed: keepalives parameter must be an integer')
    assert str(misread(bad)) == "TCNN_DATABASE_URL: keepalives parameter must be an integer"
    assert misread(psycopg.OperationalError("connection failed: Connection refused")) is None


def test_a_frozen_postgres_holds_nobody_up(postgres_server: Server, postgres_url: str, impatient: None) -> None:
    """Stopped by SIGSTOP it answers nothing and acknowledges all. Open connections, new ones, and a statement under
    way: each call ends within seconds, however patient it is with a server that answers, and all is well when it
    goes on."""
    store = Store(postgres_url, wait=PATIENT)
    job = store.enqueue(new())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.get(job.id), range(4)))
        with postgres_server.frozen():
            with unavailable("the server answers nobody", PATIENT / 2):
                store.get(job.id)
            with unavailable("the server answers nobody", PATIENT / 2):  # it is known now, and no connection is tried
                store.check()
    _back(store)
    with unavailable("the server answers nobody", PATIENT / 2), store.writing() as connection:
        connection.exec_driver_sql("UPDATE jobs SET owner = 'bob'")
        with postgres_server.frozen():
            connection.exec_driver_sql("UPDATE jobs SET owner = 'eve'")
    _back(store)
    assert store.get(job.id) == job
    store.close()


@pytest.mark.slow  # one call after the other is above
def test_a_frozen_postgres_holds_up_none_of_many(postgres_server: Server, postgres_url: str, impatient: None) -> None:
    store = Store(postgres_url, wait=PATIENT)
    job = store.enqueue(new())
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


@pytest.mark.slow  # two seconds at least; that it is silent once it is met is above
def test_a_frozen_postgres_that_nobody_has_met(postgres_server: Server, postgres_url: str) -> None:
    """A process that begins then has libpq's own deadline, which is in whole seconds."""
    fresh = Store(postgres_url, wait=0.2)
    with postgres_server.frozen(), unavailable("the database cannot be used", 30):
        fresh.check()
    fresh.check()
    fresh.close()


def test_what_takes_postgres_long_is_waited_for(postgres_url: str, impatient: None) -> None:
    """It is asked whether it answers, and does: a long statement goes on, and so does the wait for a lock."""
    store = Store(postgres_url)
    job = store.enqueue(new())
    with store.reading() as connection:
        connection.exec_driver_sql("SELECT pg_sleep(0.5)")
    with ThreadPoolExecutor(1) as pool, store.writing() as connection:
        connection.exec_driver_sql("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        other = pool.submit(store.get, job.id)
        time.sleep(0.5)
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
