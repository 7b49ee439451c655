"""SQLite's write-ahead log: emptied aside, never by whoever happens to write the thousandth page."""

from pathlib import Path

from tcnn_jobs.model.jobs import Kind, NewJob
from tcnn_jobs.store import Store


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
