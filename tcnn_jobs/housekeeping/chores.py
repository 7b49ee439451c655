"""Housekeeping beside the jobs, in a thread of its own: the database's log, retention, orphaned files."""

import threading
import time

import structlog

from tcnn_jobs import pace
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.home import Home
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.housekeeping.election import Election
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.chores")

SWEEP = 600.0
"""Seconds between two sweeps."""
CHECKPOINT = 60.0
"""Seconds between two times that the length of SQLite's log is looked at."""
LOG = 2**26
"""Bytes after which the log is emptied: some thousand jobs."""


class Chores(threading.Thread):
    """Slow things that must not hold up a heartbeat. Ends with the process, or when told to."""

    def __init__(
        self, store: Store, home: Home, settings: QueueSettings, artifacts: Artifacts, election: Election
    ) -> None:
        super().__init__(name="chores", daemon=True)
        self._store, self._home, self._settings = store, home, settings
        self._artifacts, self._election = artifacts, election
        self._told = threading.Event()
        self._swept = self._kept = self._emptied = float("-inf")

    def run(self) -> None:
        """Run chores until `stop`."""
        while not self._told.wait(pace.spread(max(1.0, self._settings.poll))):
            self.step()

    def step(self) -> None:
        """Run the chores that are due; no error here may end the thread."""
        try:
            if time.monotonic() - self._emptied > CHECKPOINT:
                self._emptied = time.monotonic()
                self._store.checkpoint(longer_than=LOG)
            # A home that all hosts share is one house; one of several has its own sweeper.
            if time.monotonic() - self._swept > SWEEP and (self._home.shared or self._election.won()):
                self._swept = time.monotonic()
                janitor.sweep_home(self._home, self._store, self._artifacts)
            if time.monotonic() - self._kept > SWEEP and self._election.won():
                self._kept = time.monotonic()
                janitor.sweep_shared(self._store, self._settings, self._artifacts)
        except StoreUnavailable:
            return  # the worker says so
        except Exception:
            log.exception("a chore failed; it will be tried again")

    def stop(self) -> None:
        """End after the current chore."""
        self._told.set()
