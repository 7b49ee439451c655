"""Health of a database: whether it accepts changes now, and with which schema.

A database that can be read may refuse every change: a file that another process has locked or another user owns, a full
disk, a server that is a standby or was set to read-only. So a check is a change, of nothing: it goes the way of a
submission, waits as long as one, and fails where one would.

Whoever may reach the server may ask whether it is ready, and balancers ask all the time. So that they neither load the
database nor keep its one writer waiting, an answer is kept for a moment, and those who ask meanwhile share it.
"""

import threading
import time

from sqlalchemy import Connection, false, text, update

from tcnn_jobs.database.schema import jobs
from tcnn_jobs.database.upgrade import Upgrade, fits, head, revision
from tcnn_jobs.errors import StoreUnavailable

FRESH = 1.0
"""Seconds for which `check_lately` repeats an answer: however many probe, at most one of them a second is a writer."""

_NOTHING = update(jobs).where(false()).values(attempt=jobs.c.attempt)
_LITTLE_MEMORY = text("SET LOCAL work_mem = '64kB'")
# A list that is too long for the memory: 300 kB. It goes to the disk of the tables, and leaves nothing there: no dead
# row to vacuum, no page that the next check would find free on a full disk. A server may forbid such files by a limit.
_TO_DISK = text(
    "SELECT count(*) FROM generate_series(1, CASE WHEN pg_size_bytes(current_setting('temp_file_limit')) "
    "BETWEEN 0 AND 1048576 THEN 1 ELSE 20000 END)"
)


class Health(Upgrade):
    """Checks of a database, for probes and metrics. Safe from any thread."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._asking = threading.Lock()
        self._fresh_until = float("-inf")
        self._problem: str | None = None
        self._own = ""

    def check(self) -> str:
        """Whether the database can be used and changed now; returns its id. Raises `StoreUnavailable`, after `wait`
        seconds if it is locked."""
        with self.reading() as connection:
            found = revision(connection)
            usable = fits(connection, found)
            own = self._identity(connection) if usable else ""
        if not usable:
            raise StoreUnavailable(
                f"{self.place}: the schema is {found or 'empty'}, expected {head()}; "
                "start tcnn serve or tcnn worker of this version, which bring it up to date"
            )
        with self.writing() as connection:
            _change_nothing(connection)
        return own

    def check_lately(self) -> str:
        """The same, as it was found at most `FRESH` seconds ago; those who ask meanwhile wait for that answer."""
        with self._asking:
            if time.monotonic() > self._fresh_until:
                try:
                    self._own, self._problem = self.check(), None
                except StoreUnavailable as error:
                    self._problem = str(error)
                self._fresh_until = time.monotonic() + FRESH
            own, problem = self._own, self._problem
        if problem is not None:
            raise StoreUnavailable(problem)
        return own


def _change_nothing(connection: Connection) -> None:
    """PostgreSQL looks at rights, locks and whether it may write before it finds that no row is meant; that its disk is
    full it finds when a file grows, so that a temporary one does.

    SQLite finds a full disk only when a page is written and committed, so that one is: its header, as it was.
    """
    if connection.dialect.name != "sqlite":
        connection.execute(_NOTHING)
        connection.execute(_LITTLE_MEMORY)
        connection.execute(_TO_DISK)
        return
    version = connection.exec_driver_sql("PRAGMA user_version").scalar() or 0
    connection.exec_driver_sql(f"PRAGMA user_version = {int(version)}")
