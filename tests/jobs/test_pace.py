"""How often workers ask: few as `poll` says, many together no more often than a few."""

import time

import pytest
from houses import House

from tcnn_jobs import pace
from tcnn_jobs.model.monitoring import WorkerInfo
from tcnn_jobs.settings import QueueSettings

POLL, LEASE = QueueSettings().poll, QueueSettings().lease


@pytest.mark.parametrize("workers", [1, 5, pace.TOGETHER])
def test_few_ask_at_every_poll(workers: int) -> None:
    assert pace.shared(POLL, workers) == POLL
    assert pace.heartbeat(POLL, workers, LEASE, busy=True) == POLL


@pytest.mark.parametrize("workers", [100, 1000, 10_000])
def test_many_ask_together_as_often_as_few(workers: int) -> None:
    assert workers / pace.shared(POLL, workers) == pytest.approx(pace.TOGETHER / POLL)


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("workers", [1, 100, 100_000])
def test_no_heartbeat_is_later_than_the_lease_allows(workers: int, busy: bool) -> None:
    assert pace.heartbeat(POLL, workers, LEASE, busy=busy) <= LEASE / 6


def test_a_poll_that_is_longer_is_kept() -> None:
    assert pace.heartbeat(5.0, 100, 6.0, busy=True) == 5.0


def test_no_two_ask_together_for_ever() -> None:
    drawn = [pace.spread(10.0) for _ in range(1000)]
    assert len(set(drawn)) > 990
    assert all(5.0 <= length <= 9.0 for length in drawn)


def test_a_worker_learns_how_many_there_are(tmp_path_factory: pytest.TempPathFactory) -> None:
    house = House(tmp_path_factory.mktemp("pace") / "home")
    try:
        worker = house.worker("succeed()")
        for number in range(60):
            house.store.heartbeat(WorkerInfo(name=f"other-{number}", host="there", slots=1, version="0"), [])
        worker.step()
        assert house.store.count_workers() == 61
        assert worker._due["count"] < time.monotonic() + worker.settings.poll
        worker._due["count"], before = 0.0, time.monotonic()
        worker.step()
        assert worker._due["count"] > before + 1.5 * worker.settings.poll
        worker.fellows = 60_000
        worker._due["count"] = worker._due["beat"] = 0.0
        worker.step()
        assert worker.fellows == 61, "counted again"
    finally:
        house.store.close()
