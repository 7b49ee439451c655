"""Through a real PgBouncer that pools transactions: each may have another process of the server."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deeds import RESULT, hold, info, new
from houses import House
from pgbouncer import NoPgbouncer, Pooler, pgbouncer
from postgres import Server

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Hold, Status
from tcnn_jobs.store import Store


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", id="refuses"),
        pytest.param("ignore_startup_parameters = options", id="ignores", marks=pytest.mark.slow),
    ],
)
def pooler(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[Pooler]:
    """One that refuses settings of connections, and one that passes over them."""
    try:
        with pgbouncer(postgres_server, request.param) as found:
            yield found
    except NoPgbouncer as error:
        pytest.skip(f"PGBOUNCER IS NOT TESTED: {error}")


@pytest.fixture
def pooled(pooler: Pooler, postgres_url: str) -> str:
    """The migrated database of this test alone, through the pooler."""
    return pooler.address(postgres_url.partition("@/")[2].partition("?")[0])


def _work(store: Store, jobs: int, workers: int = 4) -> None:
    """Submit, hold and finish, in so many threads: often enough for the driver to prepare what it repeats."""

    def work(name: str) -> None:
        for _ in range(jobs // workers):
            store.enqueue(new())
            claim = hold(store.claim(name))
            assert store.heartbeat(info(name), [Beat(claim=claim)]) == {claim: Hold.HELD}
            store.finish(claim, RESULT)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(work, (f"w{number}" for number in range(workers))))


def test_a_queue_behind_a_pooler(pooled: str) -> None:
    """More clients than connections to the server; nothing stays behind in them."""
    store = Store(pooled)
    _work(store, 24)
    done, more = store.list(limit=100)
    assert (len(done), more) == (24, None)
    assert Counter(job.status for job in done) == {Status.SUCCEEDED: 24}
    assert all(job.claim == 1 for job in done)
    with store.writing() as connection:
        found = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
        }
        prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar()
    assert found == {
        "lock_timeout": "5s", "statement_timeout": "11s", "idle_in_transaction_session_timeout": "51s",
    }  # fmt: skip
    assert prepared == 0
    store.close()


def test_a_transaction_leaves_no_setting_behind(pooled: str, postgres_url: str) -> None:
    """Neither for other clients of the pooler nor for us."""
    store = Store(pooled, wait=0.5)
    store.enqueue(new())
    driver = store.engine.raw_connection()
    try:
        cursor = driver.cursor()
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    finally:
        driver.close()
    store.close()


def test_a_schema_is_made_through_a_pooler(pooler: Pooler, postgres_server: Server) -> None:
    """By several at once: one does it, the others wait."""
    name = "pooled_empty"
    postgres_server.create(name)
    stores = [Store(pooler.address(name)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(Store.migrate, stores))
    for store in stores:
        store.check()
        store.close()
    postgres_server.drop(name)


def test_a_worker_behind_a_pooler_looks_and_one_before_it_hears(pooled: str, postgres_url: str, tmp_path: Path) -> None:
    """What is submitted through the pooler is told to those who can listen."""
    behind, before = Store(pooled), Store(postgres_url)
    assert behind.listen(pytest.fail, threading.Event()) is False
    heard, told = threading.Semaphore(0), threading.Event()
    ear = threading.Thread(target=before.listen, args=(heard.release, told))
    ear.start()
    assert heard.acquire(timeout=60)
    house = House(tmp_path / "home")
    house.store.close()
    house.store = behind
    job = house.submit()
    assert heard.acquire(timeout=60)
    house.worker("succeed()").run(until_empty=True)
    assert behind.get(job.id).status is Status.SUCCEEDED
    told.set()
    ear.join(60)
    before.close()


def test_a_pooler_that_is_killed_in_the_middle(pooler: Pooler, pooled: str) -> None:
    """What was said to be done is done, and all goes on when it is back."""
    store = Store(pooled, wait=0.5)
    job = store.enqueue(new())
    claim = hold(store.claim("w1"))
    pooler.stop()
    with pytest.raises(StoreUnavailable, match="the database cannot be used"):
        store.finish(claim, RESULT)
    pooler.start()
    assert store.finish(claim, RESULT).status is Status.SUCCEEDED
    assert store.get(job.id).claim == 1
    store.close()
