"""A SQLite file that is locked, full or none: one line within the wait, and all is well afterwards; and its
write-ahead log, emptied aside, never by whoever happens to write the thousandth page.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deeds import RESULT, Child, hold, info, new, unavailable

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Hold, Kind, NewJob, Status
from tcnn_jobs.store import Store


def test_nobody_naps_who_is_alone(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naps are for those whose turn it is not."""
    store = Store(sqlite_url)
    monkeypatch.setattr(time, "sleep", {}.__getitem__)
    assert store.enqueue(new()).id == hold(store.claim("w1")).job
    store.close()


def test_sqlite_locked_by_another_process(sqlite_url: str) -> None:
    """Writers wait and say so; readers do not wait at all; the lock gone, all goes on."""
    store = Store(sqlite_url, wait=0.2)
    job = store.enqueue(new())
    other = Child("lock", sqlite_url)
    assert other.hear() == "locked"
    try:
        start = time.monotonic()
        with unavailable(r"tcnn\.db: the database is locked or busy for more than 0\.2 s; try again", 30):
            store.enqueue(new())
        assert time.monotonic() - start >= 0.2
        with ThreadPoolExecutor(6) as pool:  # those who wait for their own process's turn wait no longer
            calls = [pool.submit(store.claim, "w1") for _ in range(6)]
            assert all(isinstance(call.exception(), StoreUnavailable) for call in calls)
        assert store.get(job.id) == job and store.due_deliveries() == [] and store.reap(0) == []
    finally:
        other.kill()
    assert store.claim("w1") is not None
    store.close()


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
    with unavailable("database or disk is full", 30):
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
        with unavailable(r"q\.db: ", 30):
            call()
    if damage != "no tables":
        with unavailable(r"q\.db: the database cannot be used", 30):
            store.migrate()
    store.close()


def test_a_file_that_may_not_be_written(sqlite_url: str) -> None:
    """Is refused on one line, and can be read. (Root may write everywhere, so SQLite itself is told to refuse.)"""
    store = Store(sqlite_url)
    job = store.enqueue(new())
    with store.reading() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with unavailable("readonly", 30):
        store.enqueue(new())
    assert store.list() == ([job], None)
    store.close()


def submit(store: Store, count: int) -> None:
    for _ in range(count):
        store.enqueue(NewJob(owner="local", kind=Kind.TRANSFORM, request={"model": "resnet18"}))


def test_the_log_is_emptied_when_asked_and_not_before(sqlite_url: str) -> None:
    store = Store(sqlite_url)
    store.checkpoint()
    file = Path(store.url.database or "")
    before = file.stat().st_size
    submit(store, 200)
    assert file.stat().st_size == before, "1,000 pages are SQLite's own limit, and these are more"
    assert file.with_name(file.name + "-wal").stat().st_size > 1000 * 4096
    log = file.with_name(file.name + "-wal")
    store.checkpoint(longer_than=log.stat().st_size)
    assert file.stat().st_size == before, "it is not longer than that"
    store.checkpoint(longer_than=log.stat().st_size - 1)
    assert file.stat().st_size > before
    submit(store, 1)
    assert log.stat().st_size < 1000 * 4096, "what the file has is cut off"
    assert len(store.list(limit=100)[0]) == 100
    store.close()


def test_elsewhere_there_is_nothing_to_do(postgres_url: str) -> None:
    store = Store(postgres_url)
    store.checkpoint()
    submit(store, 1)
    store.close()
