"""Jobs that a worker has claimed and that wait for its slots, in order; one goes on to a worker that has room for it.

A job that needs more slots than are free anywhere is claimed by one worker, which starts nothing else until it has
them: narrow jobs would never leave it enough. If another worker has enough free slots before that, the job goes back to
the queue, which is no attempt, and the other takes it as any job that is due.

The other may take something else first, of a higher priority or another tenant's, or may be about to leave; then the
job has lost its place for nothing. So it is handed on more and more rarely: each time it must have waited twice as long
as the time before, on whatever worker that was. Several that hand jobs on to one worker at once need no agreement.
"""

import time
from collections.abc import Iterator, Sequence

from tcnn_jobs.model.jobs import Job
from tcnn_jobs.store import Store
from tcnn_jobs.worker.slots import left_over

PATIENCE = 3
"""Polls for which a job that needs more slots than are free is left to other workers; and between two looks at them."""
LONGEST = 20
"""Doublings, at most, of the time for which a job waits before it is handed on: a month, with the default poll."""


class Waiting:
    """The waiting jobs of one worker. Times are seconds of the monotonic clock.

    Args:
        name: the worker's. poll: seconds between two looks at the queue.
    """

    def __init__(self, store: Store, name: str, poll: float) -> None:
        self._store, self._name = store, name
        self._pause = PATIENCE * poll
        self._jobs: list[Job] = []
        self._since: dict[str, float] = {}
        """When each was claimed."""
        self._look = 0.0
        """When the next look at the other workers is due."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """The first to start comes first. A job may be removed meanwhile."""
        return iter(list(self._jobs))

    def add(self, job: Job) -> None:
        """A job was claimed."""
        self._jobs.append(job)
        self._since[job.id] = time.monotonic()

    def remove(self, job: Job) -> None:
        """A job has started, or is no longer this worker's."""
        self._jobs.remove(job)
        del self._since[job.id]

    def left_over(self, free: Sequence[str | None]) -> list[str | None]:
        """Free slots that no waiting job is to get."""
        return left_over(free, [job.slots for job in self._jobs])

    def elsewhere(self, job: Job) -> str | None:
        """The worker that has room for a job, if it has waited here for long enough to be handed on; else None.

        The store is asked every few polls, whatever it answers. Raises `StoreUnavailable`.
        """
        now = time.monotonic()
        waited = now - self._since[job.id]
        if waited < self._pause or now < self._look:
            return None
        self._look = now + self._pause
        other = self._store.room_elsewhere(job, self._name)
        if other is None:
            return None
        times = self._store.count_events(job.id, "handed_on")
        return other if waited >= patience(self._pause, times) else None


def patience(pause: float, times: int) -> float:
    """Seconds for which a job waits before it is handed on, if it has been that so many times. Pure."""
    return pause * 2 ** min(times, LONGEST)
