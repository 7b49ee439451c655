"""PostgreSQL tells those who wait for a job that one has become due, beside their own looks (LISTEN and NOTIFY).

It is a hint and no more: who misses one finds the job at the next look. So it is given after the commit, in a
transaction of its own that waits for no disk. Within the commit it would make all commits that give one queue up for
the disk, since PostgreSQL orders notices by a lock.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import psycopg

from tcnn_jobs.database.postgres import Bounded

CHANNEL = "tcnn_due"
LOOK = 0.5
"""Seconds after which a listener looks whether it is to end."""
PROBE = 15.0
"""Seconds of silence after which it asks whether the server is still there."""

_RING = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"


def ring(driver: Bounded) -> None:
    """Tell all listeners, on a connection whose transaction has ended. If it is broken, its next user hears of that."""
    with contextlib.suppress(psycopg.Error):
        driver.autocommit = True
        driver.execute(_RING)
        driver.autocommit = False


def listen(driver: Bounded, heard: Callable[[], None], told: threading.Event, patience: float) -> None:
    """Call `heard` now and whenever a job has become due, until `told`. The connection must be nobody else's.

    Raises psycopg's errors when the connection breaks, or the server is silent for `patience` seconds when it is asked.
    """
    driver.autocommit = True
    driver.patience = patience
    driver.silence = None  # it is silence that it waits through
    driver.execute(f"LISTEN {CHANNEL}")
    heard()  # what became due before
    silent = 0.0
    while not told.is_set():
        driver.patience = LOOK + patience
        notices: list[Any] = list(driver.notifies(timeout=LOOK, stop_after=1))
        if notices:
            heard()
        silent = 0.0 if notices else silent + LOOK
        if silent >= PROBE:
            driver.patience, silent = patience, 0.0
            driver.execute("SELECT 1")
