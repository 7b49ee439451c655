"""PostgreSQL is restarted, or fails over, while jobs are submitted and run: nothing is lost, nothing doubled."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from houses import House, wait_for
from postgres import NoPostgres, Server, postgres

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import IdempotencyKey, Kind, NewJob, Status
from tcnn_jobs.store import Store
from tcnn_jobs.worker.service import Listening
from tcnn_jobs.worker.worker import Worker

JOBS = 60


@pytest.fixture
def server() -> Iterator[Server]:
    try:
        with postgres(durable=True) as server:
            server.create("queue")
            yield server
    except NoPostgres as error:
        pytest.skip(f"POSTGRESQL IS NOT TESTED: {error}")


@contextmanager
def _working(house: House, url: str) -> Iterator[list[Worker]]:
    """Two workers of two slots, each with a store of its own, until the block ends."""
    with ThreadPoolExecutor(4) as pool:
        workers, running, listening = [], [], []
        for _ in range(2):
            house.store = Store(url, wait=1.0)
            worker = house.worker("time.sleep(0.05); succeed()", slots=2, poll=0.2, lease=60)
            workers.append(worker)
            listening.append(Listening(house.store, worker))
            listening[-1].start()
            running.append(pool.submit(worker.run))
        yield workers
        for worker in workers:
            worker.drain()
        for one in listening:
            one.stop()
            one.join(60)
        for run in running:
            run.result(120)
    for worker in workers:
        worker.store.close()


def _submitted(url: str, broken: Callable[[], None]) -> list[str]:
    """Jobs that four clients were told are accepted; each repeats what got no answer. In between something breaks."""
    store, numbers, done = Store(url, wait=1.0), itertools.count(), threading.Semaphore(0)

    def submit(_: int) -> list[str]:
        accepted = []
        while (number := next(numbers)) < JOBS:
            new = NewJob(owner="ann", kind=Kind.TRANSFORM, request={"model": "resnet18"})
            key = IdempotencyKey("ann", f"key-{number}", "0")
            while True:
                try:
                    accepted.append(store.enqueue(new, key).id)
                    break
                except StoreUnavailable:
                    time.sleep(0.1)
            done.release()
            time.sleep(0.05)
        return accepted

    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(submit, client) for client in range(4)]
        for _ in range(JOBS // 3):
            assert done.acquire(timeout=60)
        broken()
        accepted = [job for part in parts for job in part.result(120)]
    store.close()
    return accepted


def _all_is_well(url: str, accepted: list[str]) -> None:
    store = Store(url)
    assert len(set(accepted)) == JOBS, "as many as were asked for, whatever was repeated"
    wait_for(lambda: all(store.get(job).terminal for job in accepted))
    jobs, more = store.list(limit=2 * JOBS)
    assert ({job.id for job in jobs}, more) == (set(accepted), None)
    assert Counter(job.status for job in jobs) == {Status.SUCCEEDED: JOBS}
    for job in jobs:
        kinds = [event.kind for event in store.events(job.id)]
        assert (kinds[0], kinds[-1], kinds.count("succeeded"), kinds.count("queued")) == ("queued", "succeeded", 1, 1)
    store.close()


def test_restarts_in_the_middle(server: Server, tmp_path: Path) -> None:
    """As by a crash, three times; away for a second, which is longer than anybody waits for an answer."""
    url = server.address("queue")
    Store(url).migrate()
    house = House(tmp_path / "home")

    def crash() -> None:
        for _ in range(3):
            server.stop()
            time.sleep(1.0)
            server.start()
            time.sleep(0.5)

    with _working(house, url):
        _all_is_well(url, _submitted(url, crash))


def test_a_failover_in_the_middle(server: Server, tmp_path: Path) -> None:
    """The first server is gone for good, the standby takes over; all were given the addresses of both."""
    house = House(tmp_path / "home")
    with server.standby() as standby:
        url = (
            f"postgresql://tcnn@/queue?host={server.folder},{standby.folder}&port=5432,5432"
            "&target_session_attrs=read-write"
        )
        Store(url).migrate()

        def fail_over() -> None:
            server.stop()
            time.sleep(1.0)
            standby.promote()

        with _working(house, url):
            _all_is_well(url, _submitted(url, fail_over))
        assert Store(standby.address("queue")).list(limit=1)[0], "it is there that they are"
