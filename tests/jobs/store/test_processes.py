"""Real processes: workers that race, workers that are killed where it hurts most, children that are forked."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from deeds import RESULT, Child, hold, kinds, new
from sampled import ON_POSTGRES, ON_SQLITE

from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.store import Store


def _claimed(store: Store) -> Job:
    """The next job; PostgreSQL needs a moment to notice that whoever held it is dead."""
    deadline = time.monotonic() + 90
    while (job := store.claim("survivor")) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return job


def _assert_consistent(store: Store) -> None:
    """Every row agrees with its events, and the tallies with the rows."""
    jobs, more = store.list(limit=1000)
    assert not more
    ends = {"started": Status.RUNNING, "queued": Status.QUEUED, "succeeded": Status.SUCCEEDED, "stalled": Status.QUEUED}
    for job in jobs:
        happened = kinds(store, job.id)
        assert job.status == ends[happened[-1]], happened
        assert job.claim == happened.count("started")
        assert happened.count("succeeded") == (job.status == Status.SUCCEEDED) == (job.result is not None)
    finished = store.statistics().finished.get("transform", {}).get("succeeded", (0, 0.0))[0]
    assert finished == sum(job.status == Status.SUCCEEDED for job in jobs)


@ON_POSTGRES
def test_no_job_twice_and_none_lost(store: Store, url: str) -> None:
    """Four processes empty one queue, while this one puts more into it."""
    workers = [Child("work", url, f"w{number}") for number in range(4)]
    ids = [store.enqueue(new(priority=number % 3)).id for number in range(24)]
    assert [worker.hear() for worker in workers] == ["ready"] * 4
    for worker in workers:
        worker.go()
    ids += [store.enqueue(new()).id for _ in range(15)]
    claimed = [worker.rest() for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * 4
    while (job := store.claim("last")) is not None:  # submitted when all had gone home
        claimed.append([job.id])
        store.finish(hold(job), RESULT)
    counts = Counter(job for part in claimed for job in part)
    assert counts == dict.fromkeys(ids, 1)
    assert sum(bool(part) for part in claimed[:4]) > 1  # they did share
    _assert_consistent(store)


@ON_SQLITE
@pytest.mark.parametrize(
    ("where", "status"),
    [
        ("queue:record", Status.QUEUED),  # the row is claimed, its event is not written
        ("changes:record", Status.RUNNING),  # the row has succeeded, its event is not written
        ("changes:_tally", Status.RUNNING),  # both are written, nothing is committed
    ],
)
def test_killed_within_a_transaction(store: Store, url: str, where: str, status: Status) -> None:
    """SIGKILL between two statements: it is as if the transaction had never begun, and nobody waits for the dead."""
    job = store.enqueue(new())
    victim = Child("die", url, "victim", *where.split(":"))
    assert victim.rest() == ["dying"]
    assert victim.exitcode == -signal.SIGKILL
    found = store.get(job.id)
    assert (found.status, found.result) == (status, None)
    _assert_consistent(store)
    if status == Status.RUNNING:
        old = hold(found)
        deadline = time.monotonic() + 90
        while not store.reap(-1):
            assert time.monotonic() < deadline
        with pytest.raises(LostClaim):
            store.finish(old, RESULT)
    assert store.finish(hold(_claimed(store)), RESULT).id == job.id
    _assert_consistent(store)


@ON_POSTGRES
def test_killed_at_any_time(store: Store, url: str) -> None:
    """Workers in full swing are killed at random; what they held is reaped, and all is finished once."""
    chance = random.Random(11)
    # A victim goes on between what is heard of it and the signal, on a busy machine for dozens of jobs.
    ids = [store.enqueue(new()).id for _ in range(100)]
    victims = [Child("work", url, f"victim{number}") for number in range(3)]
    for victim in victims:
        victim.go()
        for _ in range(2 + chance.randrange(6)):  # it has begun
            victim.hear()
        time.sleep(chance.random() * 0.01)
        victim.kill()
    _assert_consistent(store)
    assert store.list(status=Status.QUEUED)[0]  # else there was nothing to be killed in
    while store.list(status=Status.QUEUED, limit=1)[0] or store.list(status=Status.RUNNING, limit=1)[0]:
        store.reap(-1)
        store.finish(hold(_claimed(store)), RESULT)
    assert {job.id for job in store.list(status=Status.SUCCEEDED, limit=1000)[0]} == set(ids)
    _assert_consistent(store)
    if store.is_sqlite:
        with store.reading() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"


def test_a_forked_child_has_connections_of_its_own(store: Store) -> None:
    """Even one that is forked while another thread of its parent is within a transaction."""
    store.enqueue(new())
    with store.writing():
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if len(store.list()[0]) == 1 and store.engine.pool.checkedout() == 0 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    child = os.fork()
    if child == 0:
        status = 1
        try:
            store.enqueue(new())
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store.list()[0]) == 2
    store.finish(hold(store.claim("w1")), RESULT)
