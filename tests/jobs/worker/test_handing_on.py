"""A wide job that only waits at a busy worker goes to another that has room for it, and is not thrown to and fro."""

from pathlib import Path

import pytest
from deeds import OUCH, hold, new
from houses import CONFIG, House, RealWorkers, processes_of, submit, wait_for
from sampled import ON_SQLITE
from sqlalchemy import update
from tiny_runs import colours

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now
from tcnn_jobs.model.jobs import Job, Kind, Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import room
from tcnn_jobs.worker.waiting import Waiting

OTHER = WorkerInfo(name="other", host="there", slots=2, version="0", request_version=3)


def test_the_least_room_that_a_worker_has() -> None:
    assert [room(4, 4, busy) for busy in (0, 1, 4)] == [4, 3, 0]
    assert [room(4, 2, busy) for busy in (0, 1, 2, 3)] == [2, 2, 1, 1], "two jobs may be on one of its two GPUs"
    assert room(2, 1, 1) == 1 and room(2, 1, 2) == 0


def test_a_wide_job_goes_to_the_worker_that_comes_with_room(house: House) -> None:
    """Its process starts there, as its first attempt, and the slot that was kept for it is free for others."""
    first = house.submit()
    busy = house.worker("event('ready'); wait_for_stop()", slots=2)
    house.step_until(busy, lambda: "ready" in house.kinds(first))
    wide = house.submit(slots=2)
    house.step_until(busy, lambda: "message" in house.kinds(wide))
    (load,) = house.store.workers()
    assert (load.busy, load.waiting) == (1, 1), "it has two slots, of which a job that waits takes none"
    assert house.store.statistics().slots[load.info.name] == (2, 1, 1), "as the metrics say"
    idle = house.worker("event('ready'); wait_for_stop()", slots=2)

    def both() -> bool:
        busy.step()
        return "ready" in house.kinds(wide)

    house.step_until(idle, both)
    job = house.store.get(wide.id)
    assert (job.worker, job.attempt, job.claim) == (idle.name, 1, 2)
    (told,) = (event.data for event in house.store.events(wide.id) if event.kind == "handed_on")
    assert told == {"worker": busy.name, "to": idle.name}
    narrow = house.submit()
    house.step_until(busy, lambda: "ready" in house.kinds(narrow))
    assert house.store.get(narrow.id).worker == busy.name


def _waiting(store: Store, **options: object) -> Job:
    store.enqueue(new(slots=2, **options))
    job = store.claim("here", slots=1, later=2)
    assert job is not None
    return job


def _hand_on(store: Store, job: Job) -> Job:
    """To a worker that does not take it; it waits here again."""
    store.hand_back(hold(job), "other")
    again = store.claim("here", slots=1, later=2)
    assert again is not None and (again.id, again.attempt) == (job.id, 1)
    return again


@ON_SQLITE
def test_a_job_is_handed_on_more_and_more_rarely(store: Store) -> None:
    """Each time it must have waited twice as long, wherever that was."""
    store.heartbeat(OTHER, [])
    job = _waiting(store)
    for patience in (3000, 6000, 12000):
        waiting = Waiting(store, "here", poll=1000)  # another worker knows nothing of the time before
        waiting.add(job)
        for waits, expected in ((0, None), (patience - 1000, None), (patience, "other")):
            waiting._since[job.id] -= waits
            waiting._look = 0.0
            assert waiting.elsewhere(job) == expected, (patience, waits)
            waiting._since[job.id] += waits
        job = _hand_on(store, job)


@ON_SQLITE
def test_others_are_looked_at_every_few_polls(store: Store) -> None:
    job = _waiting(store)
    waiting = Waiting(store, "here", poll=1000)
    waiting.add(job)
    waiting._since[job.id] -= 5000
    assert waiting.elsewhere(job) is None, "nobody is there"
    store.heartbeat(OTHER, [])
    assert waiting.elsewhere(job) is None, "not yet"
    waiting._look = 0.0
    assert waiting.elsewhere(job) == "other"


@ON_SQLITE
@pytest.mark.parametrize(
    "differs",
    [{"slots": 1}, {"slots": 4, "widest": 1}, {"request_version": 2}, {"name": "here"}],
    ids=["too small", "too few GPUs", "too old", "itself"],
)
def test_who_cannot_take_it_has_no_room(store: Store, differs: dict[str, object]) -> None:
    job = _waiting(store, request_version=3)
    store.heartbeat(OTHER.model_copy(update=differs), [])
    assert store.room_elsewhere(job, "here") is None
    store.heartbeat(OTHER, [])
    assert store.room_elsewhere(job, "here") == "other"


def test_who_is_busy_or_silent_has_no_room(store: Store) -> None:
    """Silent for its lease: it may have been killed, and is still listed."""
    store.heartbeat(OTHER.model_copy(update={"lease": 4.0}), [])
    job = _waiting(store)
    assert store.room_elsewhere(job, "here") == "other"
    store.enqueue(new())
    running = store.claim("other")
    assert running is not None and store.room_elsewhere(job, "here") is None
    store.cancelled(hold(running))
    assert store.room_elsewhere(job, "here") == "other"
    with store.writing() as connection:
        connection.execute(update(schema.workers).values(heartbeat_at=now() - 5))
    assert store.room_elsewhere(job, "here") is None


def test_where_it_has_just_failed_is_no_room(store: Store) -> None:
    """Later it is, and does not leave it alone again, although it is queued anew."""
    store.heartbeat(OTHER, [])
    store.heartbeat(OTHER.model_copy(update={"name": "here"}), [])
    store.enqueue(new(slots=2))
    failed = store.claim("other", slots=2)
    assert failed is not None
    store.fail(hold(failed), OUCH, retry_after=0)
    job = store.claim("here", slots=1, later=2)
    assert job is not None and store.room_elsewhere(job, "here") is None
    with store.writing() as connection:
        connection.execute(update(schema.jobs).values(not_before=schema.jobs.c.not_before - 60))
    assert store.room_elsewhere(job, "here") == "other"
    store.hand_back(hold(job), "other")
    taken = store.claim("other", slots=2)
    assert taken is not None and (taken.id, taken.attempt) == (job.id, 2)


@pytest.mark.slow  # workers of this process do it above
def test_worker_processes_hand_a_wide_job_on(house: House, workers: RealWorkers, tmp_path: Path) -> None:
    """The jobs need not get as far as training: one has a slot of its worker, and the other's processes begin."""
    images = colours(tmp_path / "images")
    workers.environment["TCNN_SLOTS"] = "2"
    narrow = submit(house, images, epochs=1000)
    workers.start()
    wait_for(lambda: processes_of(house.home.attempt(narrow.id, 1)))
    training = {"dataset": str(images), "preset": "quick", "num_workers": 2, "config": CONFIG}
    request = {"model": "test_resnet", "pretrained": False, "finetune": training}
    wide = house.submit(kind=Kind.TRANSFORM, slots=2, request=request)
    wait_for(lambda: (told := house.store.get(wide.id).progress) and told.phase == "waiting")
    workers.start()
    wait_for(lambda: processes_of(house.home.attempt(wide.id, 2)))
    here, there = (house.store.get(job.id) for job in (narrow, wide))
    assert (here.status, there.status, there.attempt) == (Status.RUNNING, Status.RUNNING, 1)
    assert here.worker != there.worker and house.kinds(wide).count("handed_on") == 1
