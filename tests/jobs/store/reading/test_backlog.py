"""What Prometheus hears of the queue: exact while it is short, and at no cost that grows with it."""

import time

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


@ON_SQLITE
def test_who_asks_while_another_counts_for_the_first_time_hears_of_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does not wait."""
    count, heard = statistics._count, []

    def counted(*given: object) -> object:
        heard.append(store.statistics())
        return count(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(statistics, "_count", counted)
    store.enqueue(new())
    assert store.statistics().queued == {"transform": 1}
    assert [(one.queued, one.blocked, one.oldest_queued_seconds) for one in heard] == [({}, {}, 0)]
