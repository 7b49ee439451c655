"""Listen for PostgreSQL's notifications that a job is due, in a thread; polling goes on beside it."""

import random
import threading

import structlog

from tcnn_jobs import pace
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.store import Store
from tcnn_jobs.worker.worker import Worker

log = structlog.stdlib.get_logger("tcnn.worker")

SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two attempts to listen again, doubled each time that one fails."""


class Listening(threading.Thread):
    """Makes a worker look at the queue at once. Ends with the process, when told to, or where nobody tells."""

    def __init__(self, store: Store, worker: Worker) -> None:
        super().__init__(name="listening", daemon=True)
        self._store, self._worker = store, worker
        self._told = threading.Event()
        self._pause = SHORTEST

    def run(self) -> None:
        """Listen until `stop`."""
        while not self._told.is_set():
            try:
                if not self._store.listen(self._hear, self._told):
                    log.info(
                        "the database does not tell of new jobs; they are looked for", poll=self._worker.settings.poll
                    )
                    return
            except StoreUnavailable as error:
                log.warning("cannot hear of new jobs; they are looked for until it can", problem=str(error))
            except Exception:
                log.exception("cannot hear of new jobs; they are looked for until it can")
            self._told.wait(pace.spread(self._pause))
            self._pause = min(2 * self._pause, LONGEST)

    def stop(self) -> None:
        """End within half a second."""
        self._told.set()

    def _hear(self) -> None:
        self._pause = SHORTEST
        # In a large fleet some answer, or all would ask at once for a job that one of them gets.
        if random.random() < pace.answering(self._worker.fellows):  # noqa: S311 - nobody gains from guessing it
            self._worker.look()
