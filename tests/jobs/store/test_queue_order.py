"""Which job is next, and when."""

import random
import time

import pytest
from deeds import OUCH, hold, new
from sampled import ON_SQLITE
from sqlalchemy import update

from tcnn_jobs.database import schema
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Kind, Status
from tcnn_jobs.store import Store
from tcnn_jobs.store.reading import places


def _claim_all(store: Store) -> list[str]:
    claimed = []
    while (job := store.claim("w1")) is not None:
        claimed.append(job.id)
    return claimed


@ON_SQLITE
def test_priority_then_age(store: Store) -> None:
    """Higher ones first, and of these the oldest; `queue_position` foretells it."""
    priorities = [random.Random(7).choice([-100, -1, 0, 0, 3, 100]) for _ in range(24)]
    jobs = [store.enqueue(new(priority=priority)) for priority in priorities]
    expected = [job.id for job in sorted(jobs, key=lambda job: (-job.priority, job.number))]
    found = {job.id: job.queue_position for job in store.list(limit=100)[0]}
    assert found == {job: place for place, job in enumerate(expected)}
    assert [store.get(job).queue_position for job in expected] == list(range(24))
    assert _claim_all(store) == expected


@ON_SQLITE
def test_what_waits_for_its_retry_comes_after_all_that_could_start_whatever_its_priority(store: Store) -> None:
    high = [hold(store.claim("w1")) for _ in range(2) if store.enqueue(new(priority=5))]
    due = [store.enqueue(new(priority=priority)).id for priority in (0, 9, 5)]
    for claim, seconds in zip(high, (900, 300), strict=True):
        store.fail(claim, OUCH, retry_after=seconds)
    late, soon = (claim.job for claim in high)
    assert [store.get(job).queue_position for job in (due[1], due[2], due[0], soon, late)] == [0, 1, 2, 3, 4]


def test_place_in_the_queue_moves_on(store: Store) -> None:
    """It counts what is still before a job, and only queued jobs have one."""
    first, second, third = (store.enqueue(new()) for _ in range(3))
    assert [job.queue_position for job in (first, second, third)] == [0, 1, 2]
    claim = hold(store.claim("w1"))
    assert store.get(first.id).queue_position is None
    assert store.get(third.id).queue_position == 1
    store.cancel(second.id)
    assert store.get(third.id).queue_position == 0
    store.hand_back(claim)  # back to where its number puts it
    assert store.get(first.id).queue_position == 0
    assert store.get(third.id).queue_position == 1
    assert store.resume(second.id).queue_position == 1


@ON_SQLITE
def test_a_job_that_waits_for_its_retry_is_in_nobodys_way(store: Store) -> None:
    """Not claimed before its time, claimed then, and others pass it."""
    patient, other = store.enqueue(new()), store.enqueue(new())
    assert store.fail(hold(store.claim("w1")), OUCH, retry_after=0.3).id == patient.id
    waiting = store.get(patient.id)
    assert waiting.not_before > waiting.created_at + 0.3
    assert (waiting.queue_position, store.get(other.id).queue_position) == (1, 0)
    assert _claim_all(store) == [other.id]
    deadline = time.monotonic() + 60
    while not (claimed := _claim_all(store)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert claimed == [patient.id]
    started = store.get(patient.id).started_at
    assert started is not None and started >= waiting.not_before


@ON_SQLITE
def test_those_that_wait_for_the_same_moment_stand_as_the_others_do(store: Store) -> None:
    """By priority, then by age."""
    jobs = [store.enqueue(new(priority=priority)) for priority in (0, 0, 7, 0)]
    with store.writing() as connection:
        connection.execute(update(schema.jobs).values(not_before=time.time() + 1000))
    assert [store.get(job.id).queue_position for job in jobs] == [1, 2, 0, 3]


@ON_SQLITE
def test_a_handed_back_or_resumed_job_need_not_wait(store: Store) -> None:
    """Whatever its last retry had been told."""
    job = store.enqueue(new())
    store.fail(hold(store.claim("w1")), OUCH, retry_after=1000)
    assert store.claim("w1") is None
    store.cancel(job.id)
    store.resume(job.id)
    store.hand_back(hold(store.claim("w1")))
    assert _claim_all(store) == [job.id]


@ON_SQLITE
def test_only_the_kinds_that_a_worker_wants(store: Store) -> None:
    """None means all, an empty choice nothing."""
    jobs = {kind: store.enqueue(new(kind=kind)).id for kind in Kind}
    assert store.claim("w1", []) is None
    wanted = store.claim("w1", [Kind.EVALUATE])
    assert wanted is not None and wanted.id == jobs[Kind.EVALUATE]
    assert store.claim("w1", [Kind.EVALUATE]) is None
    assert _claim_all(store) == [jobs[Kind.TRANSFORM], jobs[Kind.FINETUNE]]


@ON_SQLITE
def test_a_job_for_larger_workers_is_passed_over_until_it_has_waited(store: Store) -> None:
    """Then a worker that could hold it when idle takes it before it takes younger ones."""
    wide, narrow, younger = (store.enqueue(new(slots=slots)) for slots in (3, 2, 1))
    claimed = store.claim("w1", slots=2)
    assert claimed is not None and claimed.id == narrow.id
    claimed = store.claim("w1", slots=1, later=2)
    assert claimed is not None and claimed.id == younger.id
    assert store.claim("w1", slots=2) is None
    assert store.claim("w1", slots=2, later=3, after=1000) is None, "it has not waited for that long"
    store.enqueue(new())
    claimed = store.claim("w1", slots=2, later=3)
    assert claimed is not None and claimed.id == wide.id


@ON_SQLITE
def test_a_job_is_submitted_even_if_its_place_is_not_known(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done is done: a database that goes away right after it takes nothing back."""

    def away(*_: object) -> None:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as broken:
        broken.setattr(store._places, "placed", away)
        job = store.enqueue(new(priority=3))
        with pytest.raises(StoreUnavailable):
            store.get(job.id)
    assert (job.status, job.queue_position) == (Status.QUEUED, None)
    assert store.get(job.id) == job.model_copy(update={"queue_position": 0, "waiting_for": "no worker is there"})


@ON_SQLITE
def test_places_of_a_long_queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the last count, which is not made again for every question; exact again when few are left."""
    monkeypatch.setattr(places, "HEAD", 5)
    ids = [store.enqueue(new(priority=priority)).id for priority in (0, 1) * 6]
    expected = [*ids[1::2], *ids[0::2]]
    monkeypatch.setattr(store._places._snapshot, "_good_until", 0.0)
    assert {job.id: job.queue_position for job in store.list(limit=100)[0]} == {
        job: place for place, job in enumerate(expected)
    }
    store.claim("w1")
    assert [store.get(job).queue_position for job in expected[1:]] == [*range(1, 12)]
    assert store.get(store.enqueue(new(priority=1)).id).queue_position == 6, "after all that were counted"
    monkeypatch.setattr(store._places._snapshot, "_good_until", 0.0)
    assert store.get(expected[-1]).queue_position == 11
    monkeypatch.setattr(store._places._snapshot, "_good_until", time.monotonic() + 6000)
    for _ in range(7):
        store.claim("w1")
    assert [store.get(job).queue_position for job in expected[7:]] == [0, 1, 2, 3, 4]
