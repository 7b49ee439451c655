"""A job that costs worker after worker and gets no farther is not tried again, whatever its attempts."""

from deeds import hold, info, kinds, new
from sampled import ON_SQLITE

from tcnn_jobs.model.jobs import Beat, Failure, Job, NewEvent, Progress, Status
from tcnn_jobs.store import Store
from tcnn_jobs.store.reaping import QUARANTINE, in_a_row


def lose(store: Store, percent: float | None = None, epoch: int | None = 1, phase: str = "training") -> Job:
    """A worker claims the only job, gets so far with it, and is silent from then on."""
    claim = hold(store.claim("w1"))
    if percent is not None or epoch is None:
        progress = Progress(phase=phase, epoch=epoch, percent=percent)
        store.heartbeat(info(), [Beat(claim=claim, progress=progress, events=(NewEvent(kind="x"),))])
    (reaped,) = store.reap(-1)
    return reaped


@ON_SQLITE
def test_the_fifth_worker_is_the_last_until_its_owner_resumes_it(store: Store) -> None:
    job = store.enqueue(new(max_attempts=100))
    for again in (False, True):
        for number in range(QUARANTINE - 1):
            assert lose(store).status == Status.QUEUED, (again, number)
        last = lose(store)
        message = (
            f"{QUARANTINE} workers in a row were lost with it and it got no farther, so it is not tried again; "
            "look at its log and its memory, then resume it"
        )
        assert (last.status, last.error) == (Status.FAILED, Failure(code="quarantined", message=message))
        assert store.events(job.id)[-1].data == {"code": "quarantined", "message": message}
        assert kinds(store, job.id)[-2:] == ["stalled", "failed"]
        store.resume(job.id)


@ON_SQLITE
def test_one_that_gets_farther_every_time_is_tried_on(store: Store) -> None:
    job = store.enqueue(new(max_attempts=100))
    for number in range(2 * QUARANTINE):
        assert lose(store, percent=number + 1).status == Status.QUEUED
        assert store.events(job.id)[-1].data == {"worker": "w1", "percent": number + 1}


@ON_SQLITE
def test_only_training_is_progress(store: Store) -> None:
    """Conversion and transfers count from 0 to 100 every time; and not every report has a percentage."""
    job = store.enqueue(new(max_attempts=100))
    reports = [(60.0, None, "converting"), (80.0, None, "uploading"), (None, None, "loading"), (0.0, 1, "training")]
    for percent, epoch, phase in reports:
        assert lose(store, percent, epoch, phase).status == Status.QUEUED
        assert store.events(job.id)[-1].data == {"worker": "w1"}
    assert lose(store).status == Status.FAILED


def test_losses_in_a_row() -> None:
    assert in_a_row([]) == 0
    assert in_a_row([0.0]) == 1
    assert in_a_row([0.0, 0.0, 0.0]) == 3
    assert in_a_row([0.0, 5.0, 7.0]) == 1
    assert in_a_row([0.0, 5.0, 5.0, 3.0]) == 3
