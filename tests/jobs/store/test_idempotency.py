"""A POST that is repeated makes one thing."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from deeds import new
from sampled import ON_POSTGRES, ON_SQLITE

from tcnn_jobs.errors import IdempotencyMismatch, WrongState
from tcnn_jobs.model.jobs import IdempotencyKey
from tcnn_jobs.store import Store

KEY = IdempotencyKey("ann", "try-1", "digest-1")


@ON_SQLITE
def test_the_same_key_gives_the_same_job(store: Store) -> None:
    """As it is now; other owners' and other keys are others."""
    assert store.replay(KEY) is None
    job = store.enqueue(new(), KEY)
    assert store.enqueue(new(), KEY) == job
    store.cancel(job.id)
    assert store.enqueue(new(), KEY).status == "cancelled"
    assert store.replay(KEY) == job.id
    assert store.enqueue(new(), KEY._replace(owner="bob")).id != job.id
    assert store.enqueue(new(), KEY._replace(key="try-2")).id != job.id
    assert len(store.list(limit=10)[0]) == 3


@ON_SQLITE
def test_another_request_under_the_same_key(store: Store) -> None:
    """Is refused by every call, and makes nothing."""
    store.enqueue(new(), KEY)
    other = KEY._replace(digest="digest-2")
    for call in (lambda: store.enqueue(new(), other), lambda: store.replay(other)):
        with pytest.raises(IdempotencyMismatch, match="use a new key"):
            call()
    assert len(store.list()[0]) == 1


@ON_SQLITE
def test_keys_go_with_what_they_made(store: Store) -> None:
    """After a job was deleted its request is a new one."""
    job = store.cancel(store.enqueue(new(), KEY).id)
    store.delete(job.id)
    assert store.replay(KEY) is None
    assert store.enqueue(new(), KEY).id != job.id


@ON_POSTGRES
def test_a_race_has_one_winner(store: Store) -> None:
    """Eight threads with one key at once: one job, one event, and all hear of it; the same for a link."""
    for attempt in range(3):
        key = KEY._replace(key=f"race-{attempt}")
        with ThreadPoolExecutor(8) as pool:
            ids = set(pool.map(lambda _, key=key: store.enqueue(new(), key).id, range(8)))
            third, job = key._replace(key=f"share-{attempt}"), next(iter(ids))
            made = list(pool.map(lambda _, key=third, job=job: store.create_share(job, "ann", 60, key), range(8)))
        assert len(ids) == 1
        assert len({one and one[0] for one in made}) == len(store.shares(job, "ann")) == 1
        assert [one and one[1] for one in made].count(None) == 7, "its secret is told once"
    assert len(store.list(limit=100)[0]) == 3


def test_a_race_of_different_requests(store: Store) -> None:
    """One wins, the others are told."""

    def ask(number: int) -> str | None:
        try:
            return store.enqueue(new(), KEY._replace(digest=str(number))).id
        except IdempotencyMismatch:
            return None

    with ThreadPoolExecutor(8) as pool:
        ids = [job for job in pool.map(ask, range(8)) if job is not None]
    assert len(ids) == 1
    assert [job.id for job in store.list()[0]] == ids


def test_a_change_is_made_once_whoever_asks_at_once(store: Store) -> None:
    """Four resumes under one key: all hear of the same job, and it was resumed once; so for cancels."""
    job = store.cancel(store.enqueue(new()).id)
    with ThreadPoolExecutor(4) as pool:
        resumed = list(pool.map(lambda _: store.resume(job.id, "ann", KEY), range(4)))
        assert {found.status for found in resumed} == {"queued"}
        other = KEY._replace(key="try-2")
        cancelled = list(pool.map(lambda _: store.cancel(job.id, "ann", other), range(4)))
    assert {found.status for found in cancelled} == {"cancelled"}
    assert [event.kind for event in store.events(job.id)] == ["queued", "cancelled", "resumed", "cancelled"]
    assert store.resume(job.id, "ann", KEY).status == "cancelled"
    with pytest.raises(IdempotencyMismatch):
        store.resume(job.id, "ann", KEY._replace(digest="digest-2"))


@ON_SQLITE
def test_a_change_that_is_refused_uses_no_key_up(store: Store) -> None:
    """What could not be done then may be done later under the same key."""
    job = store.enqueue(new())
    with pytest.raises(WrongState):
        store.resume(job.id, "ann", KEY)
    store.cancel(job.id)
    assert store.resume(job.id, "ann", KEY).status == "queued"
