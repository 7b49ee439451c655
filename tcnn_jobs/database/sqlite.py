"""Connections to a SQLite file: how its writers wait for each other, and whether it is still the one at its path.

WAL, so that readers and the one writer do not meet; `synchronous=FULL`, so that what was committed survives a power
cut; `BEGIN IMMEDIATE` before every write, so that a transaction never finds out half way that it must wait. SQLite
waits for other writers by naps that grow to 100 ms, so that whoever has waited long waits still longer. Here processes
look again after a few milliseconds, all with the same chance.

A file that is deleted or moved away stays open: every commit to it succeeds, and is lost. So every transaction compares
the file at the path with the one that was opened.
"""

import random
import sqlite3
import time
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from tcnn_jobs.errors import StoreUnavailable

LONGEST_LOG = 50_000
"""Pages of 4 KiB after which a writer empties SQLite's log itself, should nobody else do so."""

_TURN = 0.0005, 0.003  # seconds between two looks whether another process has finished its transaction


class File:
    """The file of a database, from the first connection to it until all are closed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._opened: tuple[int, int] | None = None

    def opened(self) -> None:
        """A connection has been made. All of a process are to the same file: `check` has others refused."""
        if self._opened is None:
            self._opened = self._found()

    def forget(self) -> None:
        """No connection is left; the next one may be to another file."""
        self._opened = None

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the file at the path is the one that is open."""
        if self._opened is not None and self._found() != self._opened:
            raise StoreUnavailable(
                f"{self._path}: this file was deleted, moved or replaced while it was in use; put it back, "
                "or restart tcnn serve and tcnn worker to use what is there now"
            )

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        try:
            return self._path.with_name(self._path.name + "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def connecting(url: URL, wait: float, file: File, **pool: Any) -> Engine:
    """An engine of connections to a file, which is told of each; a lock is waited for `wait` seconds."""
    engine = create_engine(url, connect_args={"timeout": wait}, **pool)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        file.opened()
        connection.isolation_level = None  # transactions begin where we say so
        # SQLite would have every hundredth request or so empty the log, for up to a second: `checkpoint` does that
        # aside. What the file has is cut off the log, so that its length says how much the file lacks.
        limits = f"wal_autocheckpoint = {LONGEST_LOG}", "journal_size_limit = 0"
        for pragma in ("synchronous = FULL", "foreign_keys = ON", *limits):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    begin, deadline = options.get("begin", "BEGIN"), options.get("deadline", time.monotonic())
    file = connection.connection
    file.execute("PRAGMA busy_timeout = 0")
    while _busy_now(file, begin) and time.monotonic() < deadline:
        time.sleep(random.uniform(*_TURN))  # noqa: S311 - nobody gains from guessing it
    left = max(0.0, deadline - time.monotonic())
    file.execute(f"PRAGMA busy_timeout = {round(left * 1000)}")
    if not file.in_transaction:
        connection.exec_driver_sql(begin)  # the last time, so that SQLAlchemy tells why not


def _busy_now(file: Any, begin: str) -> bool:
    """Whether the transaction could not begin because another process is in one."""
    try:
        file.execute(begin)
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # the lowest byte is the kind of error
    return False
