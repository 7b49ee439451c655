"""Housekeeping beside the jobs, in a thread of its own: the database's log, retention, orphaned files."""

import threading
import time

import structlog

from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.home import Home
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker import janitor, pace

log = structlog.stdlib.get_logger("tcnn.chores")

SWEEP = 600.0
"""Seconds between two sweeps."""
CHECKPOINT = 60.0
"""Seconds between two times that workers are counted and the length of SQLite's log is looked at."""
LOG = 2**26
"""Bytes after which the log is emptied: some thousand jobs."""


class Chores(threading.Thread):
    """Slow things that must not hold up a heartbeat. Ends with the process, or when told to."""

    def __init__(self, store: Store, home: Home, settings: QueueSettings, artifacts: Artifacts) -> None:
        super().__init__(name="chores", daemon=True)
        self._store, self._home, self._settings = store, home, settings
        self._artifacts = artifacts
        self._told = threading.Event()
        self._swept = self._emptied = float("-inf")
        self._fellows = 1

    def run(self) -> None:
        """Until `stop`."""
        while not self._told.wait(pace.spread(pace.shared(max(1.0, self._settings.poll), self._fellows))):
            self.step()

    def step(self) -> None:
        """Whatever is due; nothing that goes wrong here may end the thread."""
        try:
            if time.monotonic() - self._emptied > CHECKPOINT:
                self._emptied = time.monotonic()
                self._store.checkpoint(longer_than=LOG)
                self._fellows = self._store.count_workers()
            if time.monotonic() - self._swept > SWEEP:
                self._swept = time.monotonic()
                janitor.sweep(self._home, self._store, self._settings, self._artifacts)
        except StoreUnavailable:
            return  # the worker says so
        except Exception:
            log.exception("a chore failed; it will be tried again")

    def stop(self) -> None:
        """End after what is being done."""
        self._told.set()
