"""Who listens hears of every job that becomes due, by whatever way; who cannot listen goes on looking."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from deeds import OUCH, RESULT, hold, new
from houses import House, wait_for
from postgres import Server
from sqlalchemy import delete

from tcnn_jobs.database.schema import jobs
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.store import Store
from tcnn_jobs.worker.service import Listening


class Ear:
    """Somebody in a thread who listens; `hears` does something and says whether that was told."""

    def __init__(self, store: Store) -> None:
        self._heard = threading.Semaphore(0)
        self.told, self.end = threading.Event(), None
        self.thread = threading.Thread(target=self._listen, args=(store,))
        self.thread.start()
        assert self._heard.acquire(timeout=60), "it looks when it begins"

    def _listen(self, store: Store) -> None:
        try:
            store.listen(self._heard.release, self.told)
        except StoreUnavailable as error:
            self.end: StoreUnavailable | None = error

    def hears(self, what: Callable[[], object]) -> bool:
        what()
        return self._heard.acquire(timeout=90)

    def silent(self) -> bool:
        """Whether it has heard nothing else."""
        return not self._heard.acquire(blocking=False)


@contextmanager
def _listening(store: Store) -> Iterator[Ear]:
    ear = Ear(store)
    try:
        yield ear
    finally:
        ear.told.set()
        ear.thread.join(60)
    assert not ear.thread.is_alive()


def test_every_way_to_become_due_is_told(postgres_url: str) -> None:
    store, other = Store(postgres_url), Store(postgres_url)
    with _listening(store) as ear:
        assert ear.hears(lambda: other.enqueue(new()))
        first = hold(other.claim("w1"))
        assert ear.hears(lambda: other.hand_back(first))
        first = hold(other.claim("w1"))
        assert ear.hears(lambda: other.fail(first, OUCH, retry_after=0.0))
        first = hold(other.claim("w1"))
        assert ear.hears(lambda: other.enqueue(new(request={"job": first.job})))
        assert ear.hears(lambda: other.finish(first, RESULT)), "another job waited for it"
        second = hold(other.claim("w1"))
        other.fail(second, OUCH)
        assert ear.hears(lambda: other.resume(second.job))
        second = hold(other.claim("w1"))
        other.reap(60)
        assert ear.hears(lambda: other.reap(-1.0)), "its worker is silent"
        assert ear.silent()
    store.close()
    other.close()


def test_what_has_not_happened_is_not_told(postgres_url: str) -> None:
    """A transaction that is rolled back, a job that ends, one that is due later."""
    store = Store(postgres_url)
    with _listening(store) as ear:
        with pytest.raises(ZeroDivisionError), store.writing() as connection:
            connection.info["tcnn_due"] = True
            _ = 1 / 0
        store.check()
        job = store.enqueue(new())
        assert ear.hears(lambda: None)
        store.fail(hold(store.claim("w1")), OUCH, retry_after=100.0)
        store.cancel(job.id)
        assert ear.hears(lambda: store.enqueue(new())) and ear.silent(), "the last one and nothing before it"
    store.close()


@contextmanager
def _notices_wait(server: Server, database: str) -> Iterator[None]:
    """Another application hangs in the commit of its notice: the standby that it waits for is away."""
    with psycopg.connect(server.address("postgres"), autocommit=True) as admin:
        try:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'away'")
            admin.execute("SELECT pg_reload_conf()")
            other = threading.Thread(target=_notify, args=(database,), daemon=True)
            other.start()
            hangs = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            wait_for(lambda: admin.execute(hangs).fetchone())
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
    other.join(60)


def _notify(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE elsewhere (number int); NOTIFY elsewhere")


def test_after_a_notice_that_fails_transactions_are_whole(postgres_server: Server, postgres_url: str) -> None:
    store = Store(f"{postgres_url}&options=-c%20synchronous_commit%3Dlocal", wait=0.2)
    with _notices_wait(postgres_server, postgres_url):
        made = store.enqueue(new())
    assert store.claim("w1", slots=1) is not None, "the job is there, whoever was told"
    with pytest.raises(ZeroDivisionError), store.writing() as connection:
        connection.execute(delete(jobs))
        _ = 1 / 0
    assert store.get(made.id).id == made.id
    store.close()


def test_a_file_tells_nobody(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    assert store.listen(pytest.fail, threading.Event()) is False
    store.close()


def test_a_listener_whose_server_is_gone_says_so(postgres_server: Server, postgres_url: str) -> None:
    store = Store(postgres_url, wait=0.2)
    try:
        with _listening(store) as ear:
            postgres_server.stop()
            ear.thread.join(60)
            assert ear.end is not None and "the database cannot be used" not in str(ear.end)
            assert "\n" not in str(ear.end)
    finally:
        postgres_server.start()
        store.close()


def test_a_worker_starts_a_job_when_it_is_told(postgres_server: Server, postgres_url: str, tmp_path: Path) -> None:
    """Its next look at the queue would be an hour away; after the server was gone it listens again."""
    house = House(tmp_path / "home")
    house.store.close()
    house.store = Store(postgres_url)
    worker = house.worker("succeed()", poll=3600.0)
    listening = Listening(house.store, worker)
    working = threading.Thread(target=worker.run)
    try:
        listening.start()
        working.start()
        wait_for(lambda: worker._due["claim"] > 0)
        first = house.submit()
        wait_for(lambda: house.store.get(first.id).status is Status.SUCCEEDED)
        postgres_server.stop()
        postgres_server.start()
        listeners = "SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN tcnn_due'"
        wait_for(lambda: _count(house.store, listeners))
        second = house.submit()
        wait_for(lambda: house.store.get(second.id).status is Status.SUCCEEDED)
    finally:
        listening.stop()
        worker.drain()
        working.join(60)
        listening.join(60)


def _count(store: Store, query: str) -> int:
    with store.reading() as connection:
        return connection.exec_driver_sql(query).scalar() or 0


def test_of_a_large_fleet_some_answer() -> None:
    """About as many as would ask within a poll in any case."""
    assert [coordination.answering(workers) for workers in (0, 1, 20, 40, 1000)] == [1.0, 1.0, 1.0, 0.5, 0.02]
