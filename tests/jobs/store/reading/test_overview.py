"""What an operator's page asks the store: load by tenant, what ended by hour; and links to jobs, on both databases."""

import math

import pytest
from deeds import RESULT, new
from sampled import ON_SQLITE
from sqlalchemy import text

from tcnn_jobs.errors import JobNotFound, KeyNotFound, WrongState
from tcnn_jobs.model.accounts import digest
from tcnn_jobs.model.jobs import Claim, Failure
from tcnn_jobs.store import Store, shares
from tcnn_jobs.store.reading import overview


def taken(store: Store, worker: str = "w") -> Claim:
    found = store.claim(worker)
    assert found is not None
    return Claim(job=found.id, worker=worker, number=found.claim)


def test_load_by_tenant(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "QUICK", math.inf)  # however slow the machine, every answer is counted anew
    assert store.load() == []
    store.enqueue(new(owner="alice"))
    claim = taken(store)
    first = store.enqueue(new(owner="bob"))
    store.enqueue(new(owner="bob", request={"job": first.id}))
    store.enqueue(new(owner="alice", slots=3))
    with store.writing() as connection:
        connection.execute(text("UPDATE jobs SET not_before = not_before - 30 WHERE owner = 'bob'"))
    alice, bob = store.load()
    assert (alice.tenant, alice.queued, alice.running, alice.slots, alice.stored) == ("alice", 1, 1, 1, 0)
    assert (bob.tenant, bob.queued, bob.blocked, bob.running) == ("bob", 2, 1, 0)
    assert bob.oldest_seconds is not None
    assert 30 <= bob.oldest_seconds < 600
    assert [one.tenant for one in store.load("bob")] == ["bob"]
    store.finish(claim, RESULT)
    assert store.load("nobody") == []
    assert store.load("alice")[0].running == 0


def test_what_ended_by_hour(store: Store) -> None:
    ids = []
    for hours in (0.0, 0.9, 1.4, 1.6, 23.5, 24.5):
        store.enqueue(new(owner="alice"))
        claim = taken(store)
        store.finish(claim, RESULT)
        ids.append((claim.job, hours))
    store.enqueue(new(owner="bob", max_attempts=1))
    store.fail(taken(store), Failure(code="x", message="x"))
    with store.writing() as connection:
        for job, hours in ids:
            connection.execute(
                text("UPDATE jobs SET finished_at = finished_at - :s WHERE id = :id"), {"s": 3600 * hours, "id": job}
            )
    found = store.ended()
    assert [one.hours_ago for one in found] == list(range(24))
    assert {one.hours_ago: one.succeeded for one in found if one.succeeded} == {0: 2, 1: 2, 23: 1}
    assert (found[0].failed, store.ended("alice")[0].failed) == (1, 0)


@ON_SQLITE
def test_links_to_a_job(store: Store) -> None:
    job, other = store.enqueue(new(owner="alice")), store.enqueue(new(owner="alice"))
    share, secret = store.create_share(job.id, "alice", 60)
    assert store.find_share(digest(secret)) == share
    assert store.shares(job.id, "alice") == [share]
    assert store.shares(other.id, "alice") == []
    for refused in (
        lambda: store.create_share(job.id, "bob", 60),
        lambda: store.shares(job.id, "bob"),
        lambda: store.revoke_share(share.id, job.id, "bob"),
    ):
        with pytest.raises(JobNotFound):
            refused()
    with pytest.raises(KeyNotFound):
        store.revoke_share(share.id, other.id, "alice")
    store.revoke_share(share.id, job.id, "alice")
    store.revoke_share(share.id, job.id, "alice")
    ended = store.find_share(digest(secret))
    assert ended is not None and (ended.id, ended.valid) == (share.id, False)
    assert store.find_share(digest(secret + "x")) is None
    fresh, _ = store.create_share(job.id, "alice", 60)
    with store.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shares")) == 1, "what has ended is gone"
    store.cancel(job.id)
    store.delete(job.id)
    assert store.shares(other.id, "alice") == []
    with store.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shares")) == 0, fresh


@ON_SQLITE
def test_a_job_has_so_many_links_whatever_others_have(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "MOST", 2)
    job, other = store.enqueue(new(owner="alice")), store.enqueue(new(owner="alice"))
    first, _ = store.create_share(job.id, "alice", 60)
    store.create_share(job.id, "alice", 60)
    with pytest.raises(WrongState, match="has 2 links already; revoke one of them first"):
        store.create_share(job.id, "alice", 60)
    store.create_share(other.id, "alice", 60)
    store.revoke_share(first.id, job.id, "alice")
    store.create_share(job.id, "alice", 60)


@ON_SQLITE
def test_a_long_count_is_believed_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.enqueue(new(owner="alice"))
    monkeypatch.setattr(overview, "QUICK", -1.0)
    monkeypatch.setattr(overview, "SHARE", 1e6)
    first = store.load("alice")
    store.enqueue(new(owner="alice"))
    assert store.load("alice") == first
    assert store.load()[0].queued == 2, "that of another question is its own"
    monkeypatch.setattr(overview, "MOST", 1)
    store.load("bob")
    assert store.load("alice")[0].queued == 2
