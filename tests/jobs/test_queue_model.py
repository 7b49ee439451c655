"""The model of the queue in `benchmarks/`: what it must say where the answer is known without it."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.jobqueue.costs import PARTS, Cost, Costs
from benchmarks.jobqueue.model import BEFORE, NOW, Fleet, Load, simulate

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
