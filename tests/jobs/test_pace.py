"""How often workers ask: few as `poll` says, many together no more often than a few; and the model of the queue in
`benchmarks/`, where the answer is known without it."""

import json
import random
import time
from pathlib import Path

import pytest
from houses import House

from benchmarks.jobqueue.costs import PARTS, Cost, Costs
from benchmarks.jobqueue.model import BEFORE, NOW, Fleet, Load, simulate
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.settings import QueueSettings

POLL, LEASE = QueueSettings().poll, QueueSettings().lease


@pytest.mark.parametrize("workers", [1, 5, coordination.TOGETHER])
def test_few_ask_at_every_poll(workers: int) -> None:
    assert coordination.shared(POLL, workers) == POLL
    assert coordination.heartbeat(POLL, workers, LEASE, busy=True) == POLL


@pytest.mark.parametrize("workers", [100, 1000, 10_000])
def test_many_ask_together_as_often_as_few(workers: int) -> None:
    assert workers / coordination.shared(POLL, workers) == pytest.approx(coordination.TOGETHER / POLL)


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize("workers", [1, 100, 100_000])
def test_no_heartbeat_is_later_than_the_lease_allows(workers: int, busy: bool) -> None:
    assert coordination.heartbeat(POLL, workers, LEASE, busy=busy) <= LEASE / 6


def test_a_poll_that_is_longer_is_kept() -> None:
    assert coordination.heartbeat(5.0, 100, 6.0, busy=True) == 5.0


def test_no_two_ask_together_for_ever() -> None:
    drawn = [coordination.spread(10.0) for _ in range(1000)]
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


ROOT = Path(__file__).parents[2]
CALLS = ("claim", "poll", "look up", "heartbeat", "finish", "reap", "count", "webhooks", "enqueue")
RESULTS = json.loads((ROOT / "benchmarks/results/queue_simulation.json").read_text())


def same(seconds: float, at_once: int = 2) -> Costs:
    """Every call takes the same."""
    return Costs(at_once, {name: Cost((seconds,) * len(PARTS), 0.0) for name in CALLS})


def test_alone_a_worker_waits_for_its_tick_and_its_calls() -> None:
    found = simulate(same(0.001), NOW, Fleet(1), Load(300, 5.0), seed=0)
    assert 0.04 < found["p50"] < 0.07  # half a tick, a heartbeat, a finish, a claim
    assert found["max"] < 0.12
    assert found["busy"] < 0.01


def test_an_idle_worker_hears_of_a_job_within_a_poll() -> None:
    found = simulate(same(0.001), NOW, Fleet(1, starts=0.0), Load(200, 0.01, rate=0.1), seed=0)
    assert 0.2 < found["p50"] < 0.6
    assert found["max"] < 1.05


def test_a_fixed_pace_drowns_a_database_that_the_fleets_pace_does_not() -> None:
    before, now = (
        simulate(same(0.005), policy, Fleet(300, starts=5.0), Load(900, 20.0), seed=0) for policy in (BEFORE, NOW)
    )
    assert before["busy"] > 0.95 and before["p99"] > 1.0
    assert now["busy"] < 0.6 and now["p99"] < 1.0


def test_work_is_as_much_as_calls_take() -> None:
    found = simulate(same(0.002), NOW, Fleet(20), Load(200, 10.0), seed=0)
    assert sum(found["busy_with"].values()) == pytest.approx(found["busy"], abs=1e-3)
    assert simulate(same(0.002), NOW, Fleet(20), Load(200, 10.0), seed=0) == found, "one seed, one result"


def test_costs_are_drawn_as_they_were_measured() -> None:
    cost = Cost(tuple(part**2 for part in PARTS), 0.0)
    lot = random.Random(0)
    drawn = sorted(cost.draw(lot) for _ in range(10_000))
    assert drawn[5000] == pytest.approx(0.25, abs=0.02)
    assert Costs.from_json(Costs(4, {"claim": cost}).as_json()).calls["claim"].waits == pytest.approx(cost.waits)


def test_the_kept_results_meet_the_requirement() -> None:
    found = RESULTS["simulation"]
    assert (found["workers"], found["jobs"]) == (1000, 10_000)
    assert found["scenarios"]["a full queue"]["now"]["p99"] < 1.0
    check = RESULTS["check"]
    assert 0.5 < check["real"]["p50"] / check["modelled"]["p50"] < 2.0
