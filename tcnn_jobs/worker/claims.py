"""What a worker takes from the queue, and what it was given without hearing of it.

The answer to a claim can be lost after the database has carried it out: then the job runs, as everybody reads, at a
worker that does not know it. Nobody would beat for it, and at the end of its lease it would have lost an attempt. So
after such a claim the worker asks what it holds, and takes on what it has not heard of as if it had claimed it now.
"""

import time
from collections.abc import Collection, Sequence

import structlog

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Claim, Job, Kind
from tcnn_jobs.store import Store
from tcnn_jobs.worker.slots import widest
from tcnn_jobs.worker.waiting import PATIENCE, Waiting

log = structlog.stdlib.get_logger("tcnn.worker")


class Claims:
    """Puts the jobs that one worker claims among those that wait for its slots.

    A claim itself cannot be repeated: it would take the next job, and leave the one that was lost to its lease.

    Args:
        slots: the worker's slots, free or not.
        poll: seconds between two looks at the queue.
        lease: its lease, in seconds.
    """

    def __init__(
        self, store: Store, name: str, slots: Sequence[str | None], waiting: Waiting, poll: float, lease: float
    ) -> None:
        self._store, self._name, self._waiting, self._lease = store, name, waiting, lease
        self._widest, self._after = widest(slots), PATIENCE * poll
        self._unasked = False
        self._turns_up_until = float("-inf")
        """The end of the lease of what was claimed without an answer, by the monotonic clock."""

    @property
    def in_doubt(self) -> bool:
        """Whether there may be a job that this worker has not heard of, and it has not asked yet."""
        return self._unasked

    def take(self, free: Sequence[str | None]) -> bool:
        """As many jobs as can start now on these free slots; returns whether there was one.

        A wide one that cannot is left to workers that can start it, for a few polls; then it is claimed, too, and no
        other until it has its slots or another worker has room (`waiting`). Raises `StoreUnavailable`.
        """
        before = len(self._waiting)
        while (spare := self._waiting.left_over(free)) and (job := self._claim(widest(spare))) is not None:
            log.info("claimed", job=job.id, kind=job.kind, attempt=job.attempt, claim=job.claim)
            self._waiting.add(job)
        return len(self._waiting) > before

    def _claim(self, slots: int) -> Job | None:
        try:
            return self._store.claim(self._name, tuple(Kind), slots=slots, later=self._widest, after=self._after)
        except StoreUnavailable as error:
            if error.in_doubt:
                self._unasked, self._turns_up_until = True, time.monotonic() + self._lease
            raise

    def recover(self, held: Collection[Claim]) -> None:
        """Take on jobs that are this worker's though it holds none of these claims on them.

        Most calls ask nobody. After a claim in doubt all do for a lease: what was sent may be carried out late.

        Raises `StoreUnavailable`.
        """
        if not self._unasked and time.monotonic() >= self._turns_up_until:
            return
        unheard = [job for job in self._store.running_at(self._name) if Claim.of(job) not in held]
        self._unasked = False
        for job in unheard:
            log.warning("claimed, and the answer was lost", job=job.id, attempt=job.attempt, claim=job.claim)
            self._waiting.add(job)
