"""What Prometheus hears of the queue: exact while it is short, and at no cost that grows with it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from deeds import hold, new
from sampled import ON_SQLITE

from tcnn_jobs.model.jobs import Kind
from tcnn_jobs.store import Store
from tcnn_jobs.store.reading import snapshot, statistics


@ON_SQLITE
def test_a_short_queue_is_counted_for_every_answer(store: Store) -> None:
    for number in range(1, 4):
        store.enqueue(new())
        assert store.statistics().queued == {"transform": number}


def test_a_long_queue_is_counted_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW", 3)
    monkeypatch.setattr(snapshot, "OLDEST", 3600.0)
    counts = 0
    count = statistics._count

    def counted(*given: object) -> object:
        nonlocal counts
        counts += 1
        return count(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(statistics, "_count", counted)
    for _ in range(4):
        store.enqueue(new(kind=Kind.FINETUNE))
    assert store.statistics().queued == {"finetune": 4}
    store.enqueue(new())
    assert hold(store.claim("w1"))
    for _ in range(20):
        found = store.statistics()
        assert (found.queued, found.running) == ({"finetune": 4}, {"finetune": 1}), "what runs is always exact"
    assert counts == 1
    store._backlog._good_until = 0.0  # an hour later
    assert store.statistics().queued == {"finetune": 3, "transform": 1}
    assert counts == 2


@ON_SQLITE
def test_the_oldest_grows_older_while_nobody_counts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "FEW", 0)
    store.enqueue(new())
    first = store.statistics().oldest_queued_seconds
    time.sleep(0.2)
    assert store.statistics().oldest_queued_seconds >= first + 0.2


@ON_SQLITE
def test_a_count_that_failed_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> object:
        raise RuntimeError("away")

    store.enqueue(new())
    with monkeypatch.context() as broken:
        broken.setattr(statistics, "_count", fail)
        with pytest.raises(RuntimeError):
            store.statistics()
    assert store.statistics().queued == {"transform": 1}


class Slow:
    """Reads its number when it is told to; `begun` when it has begun."""

    def __init__(self, number: int = 0) -> None:
        self.begun, self.told = threading.Event(), threading.Event()
        self.number = number

    def __call__(self) -> int:
        self.begun.set()
        assert self.told.wait(60)
        return self.number


@contextmanager
def _asking(ask: Callable[[], Any]) -> Iterator[Future[Any]]:
    """What a thread is told that asks."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(ask)


@ON_SQLITE
def test_who_asks_while_another_counts_for_the_first_time_hears_of_that_count(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, with a long queue: it is not told of an empty one."""
    count, slow = statistics._count, Slow()
    monkeypatch.setattr(statistics, "FEW", 0)
    monkeypatch.setattr(statistics, "_count", lambda connection: (slow(), count(connection))[1])
    store.enqueue(new())
    with _asking(store.statistics) as first:
        assert slow.begun.wait(60)
        with _asking(store.statistics) as second:
            with pytest.raises(TimeoutError):
                second.result(0.1)
            slow.told.set()
        assert [one.result().queued for one in (first, second)] == [{"transform": 1}] * 2


def test_who_asks_while_another_reads_is_told_the_last_value_unless_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    kept = snapshot.Snapshot[int]()
    assert kept.get(lambda: 1) == 1
    clock[0] += 1.5 * snapshot.OLDEST
    slow = Slow(2)
    with _asking(lambda: kept.get(slow)) as first:
        assert slow.begun.wait(60)
        assert kept.get(lambda: 3) == 1
        clock[0] += snapshot.OLDEST  # nobody has asked for long
        with _asking(lambda: kept.get(lambda: 3)) as second:
            with pytest.raises(TimeoutError):
                second.result(0.1)
            slow.told.set()
        assert (first.result(), second.result()) == (2, 2)


def test_of_those_who_wait_for_a_value_that_does_not_last_one_reads_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever had asked before it was read; a reader that fails leaves it to the next."""
    clock = [0.0]
    monkeypatch.setattr(snapshot, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    kept, slow, read = snapshot.Snapshot[int](), Slow(), iter(range(1, 9))

    def fail() -> int:
        raise RuntimeError(f"away {slow()}")

    with _asking(lambda: kept.get(fail)) as first, ThreadPoolExecutor(8) as pool:
        assert slow.begun.wait(60)
        others = [pool.submit(kept.get, lambda: next(read), lambda value: False) for _ in range(8)]
        slow.told.set()
        assert {one.result() for one in others} == {1}
        with pytest.raises(RuntimeError):
            first.result()
    clock[0] += 0.1
    assert kept.get(lambda: next(read)) == 2
