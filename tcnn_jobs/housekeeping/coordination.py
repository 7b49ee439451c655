"""Coordination of the workers of a queue: one is elected to keep house, and all poll the less often the more they are.

The housekeeper, whose lease ends when it leaves or is silent, takes jobs from silent workers, makes webhook calls,
deletes what is past its time, and sweeps what all hosts share. Two that do so at once, when one was frozen or a clock
was set, do no harm. It asks as often however many workers there are.

A heartbeat is each worker's own: a cancelled job hears of it later in a large fleet, though never later than a sixth of
the lease. Claims keep their pace, since a free slot waits for nobody else's question.
`benchmarks/jobqueue/simulation.py` compares this with asking at a fixed pace.
"""

import random
import threading
import time

import structlog

from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import HOUSE

log = structlog.stdlib.get_logger("tcnn.worker")

RENEWED, ASKED = 1 / 3, 1 / 6
"""Parts of a lease after which the housekeeper renews it, and after which others look whether it was given up."""


class Election:
    """One worker's candidacy. Safe from any thread.

    Args:
        lease: seconds for which a silent housekeeper stays one. late: seconds over which those spread who would follow
            it, so that they do not ask all at once.
    """

    def __init__(self, store: Store, name: str, lease: float, late: float = 1.0) -> None:
        self._store, self._name, self._lease, self._late = store, name, lease, late
        self._asking = threading.Lock()
        self._until = self._due = float("-inf")

    def won(self) -> bool:
        """Whether this worker is the leader now. Raises `StoreUnavailable`.

        Most calls ask nobody. While one thread asks, the others go by what was known before.
        """
        if time.monotonic() >= self._due and self._asking.acquire(blocking=False):
            try:
                self._ask()
            finally:
                self._asking.release()
        return time.monotonic() < self._until

    def _ask(self) -> None:
        now = time.monotonic()
        before = now < self._until
        term = self._store.hold(HOUSE, self._name, self._lease)
        if term.mine:
            self._until, self._due = now + self._lease, now + self._lease * RENEWED
        else:
            late = random.uniform(0.0, self._late)  # noqa: S311 - nobody gains from guessing it
            self._until, self._due = float("-inf"), now + min(max(0.0, term.left) + late, self._lease * ASKED)
        if term.mine is not before:
            log.info("keeps house" if term.mine else "another worker keeps house", worker=self._name)


TOGETHER = 20
"""Workers that ask once a `poll` each; more of them ask as often as these do together."""
EARLIEST, LATEST = 0.5, 0.9
"""Parts of an interval between which the next question is drawn. Workers that were started, or lost their database,
together would else ask together for ever. Below 1, so that with the worker's tick it is still within the interval."""


def shared(poll: float, workers: int) -> float:
    """Seconds between two times that one of so many workers asks, so that they do not ask more the more they are."""
    return poll * max(1.0, workers / TOGETHER)


def heartbeat(poll: float, workers: int, lease: float, *, busy: bool) -> float:
    """Seconds between two heartbeats of one of so many workers: the idle have nothing to tell."""
    longest = lease / 6
    return min(shared(poll, workers), max(poll, longest)) if busy else longest


def answering(workers: int) -> float:
    """The part of so many workers that look at the queue at once when a job is said to be due."""
    return min(1.0, TOGETHER / max(1, workers))


def spread(interval: float) -> float:
    """A length near this interval, and not above it, that is another one every time."""
    return interval * random.uniform(EARLIEST, LATEST)  # noqa: S311 - nobody gains from guessing it
