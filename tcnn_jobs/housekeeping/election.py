"""Leader election by a lease: one worker of a queue does the housekeeping, until it leaves or is silent.

The housekeeper takes jobs from silent workers, makes webhook calls, deletes what is past its time, and sweeps what all
hosts share. Two that do so at once, when one was frozen or a clock was set, do no harm.
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
