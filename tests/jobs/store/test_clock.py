"""Leases and times are the database's: a host whose clock is wrong takes nothing from anybody."""

import time

import pytest
from deeds import hold, info, new

from tcnn_jobs.model import Beat, Status
from tcnn_jobs.store import Store


@pytest.fixture(params=[-86400.0, 86400.0], ids=["a day behind", "a day ahead"])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """What Python believes is the time."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + request.param)
    monkeypatch.setattr(time, "time_ns", lambda: int((right() + request.param) * 1e9))
    return float(request.param)


def test_a_wrong_clock_reaps_nobody(store: Store, wrong: float) -> None:
    """Neither a held job is taken, nor one that was left is kept, nor is any time that is written down a wrong one."""
    true = time.time() - wrong
    job = store.enqueue(new())
    claim = hold(store.claim("w1"))
    assert store.reap(60) == []
    store.heartbeat(info(), [Beat(claim=claim)])
    held = store.get(job.id)
    assert held.heartbeat_at is not None
    for written in (held.created_at, held.heartbeat_at, store.events(job.id)[0].at):
        assert abs(written - true) < 60
    assert store.statistics().workers[0].heartbeat_at == pytest.approx(0, abs=30)
    time.sleep(0.3)
    (reaped,) = store.reap(0.2)
    assert (reaped.id, reaped.status) == (job.id, Status.QUEUED)
    store.cancel(job.id)
    assert store.expired(0.5) == []
    assert [found.id for found in store.expired(0)] == [job.id]


def test_a_heartbeat_keeps_a_job(store: Store) -> None:
    """Only those that were silent for the whole lease are taken."""
    kept, left = store.enqueue(new()), store.enqueue(new())
    claim = hold(store.claim("w1"))
    store.claim("w2")
    for _ in range(4):
        time.sleep(0.2)
        store.heartbeat(info(), [Beat(claim=claim)])
    assert [job.id for job in store.reap(0.5)] == [left.id]
    assert store.reap(0.5) == []
    assert store.get(kept.id).status == Status.RUNNING
    assert store.events(left.id)[-1].data == {"worker": "w2"}
