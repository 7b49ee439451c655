"""Database engine: connections, transactions, and `StoreUnavailable` for every failure of the database.

SQLite: threads of a process take turns at writing; how processes wait for each other, and what is done about a file
that is moved away, is in `sqlite`.

PostgreSQL: connections are tried before they are used; locks and absent servers are waited for `wait` seconds, and
every single answer for little more than twice as long, by the server's timeouts and by ours (`postgres`). One that is
frozen is waited for less than two seconds (`silence`).
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine
from sqlalchemy import exc as sql

from tcnn.errors import RequestError, one_line
from tcnn_jobs.database import sqlite
from tcnn_jobs.database.address import parsed, shown
from tcnn_jobs.errors import StoreUnavailable

PORTION = 10_000
"""Rows that one statement of housekeeping changes at most: PostgreSQL ends every statement after some seconds, and
SQLite has one writer."""
_NAP = 0.2
_DUE = "tcnn_due"
_MISSING_TABLE, _NO_PERMISSION = "42P01", "42501"  # of PostgreSQL
_BUSY = ("55P03", "57014")

# Engines that a forked child was born with. Closing them would disturb the parent's files and sockets, and so would
# leaving them to the garbage collector.
_inherited: list[Engine] = []


class Database:
    """Connection pool of one process, for any number of threads; a forked child gets one of its own.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER@HOST/NAME`.
        wait: the longest time in seconds for a locked or absent database before `StoreUnavailable`.

    Raises:
        RequestError: the URL names neither a SQLite file nor a PostgreSQL database.
    """

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        self.url = parsed(url)
        self.wait = wait
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._turn = threading.Lock()
        self._file = sqlite.File(self.url.database or "") if self.is_sqlite else None
        self._engine = _engine(self.url, self.wait, self._file)

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self.engine.dispose()
        if self._file is not None:
            self._file.forget()

    @property
    def engine(self) -> Engine:
        """This process's engine."""
        if self._pid != os.getpid():
            _inherited.append(self._engine)
            self._open()
        return self._engine

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def place(self) -> str:
        """The database's address without anything secret, for messages."""
        return shown(self.url)

    def checkpoint(self, longer_than: int = 0) -> None:
        """SQLite: copy what its log has gathered into the file, while others read and write; elsewhere nothing.

        Whoever commits meanwhile waits for the disk, a quarter of a second at times; a log of at most `longer_than`
        bytes is left alone.
        """
        if self._file is not None and self._file.log_size() > longer_than:
            with self.translated(), self.engine.connect() as connection:
                connection.execution_options(begin="SELECT 1").exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that changes nothing; raises `StoreUnavailable`."""
        with self._transaction("BEGIN", time.monotonic() + self.wait) as connection:
            yield connection

    @contextmanager
    def writing(self, wait: float | None = None) -> Iterator[Connection]:
        """A transaction that is on disk when the block is left, or has not happened; raises `StoreUnavailable`, which
        says if neither is certain (`in_doubt`).

        `wait`: for this one, how long SQLite's lock is waited for, and every answer of PostgreSQL.
        """
        patience = self.wait if wait is None else wait
        deadline = time.monotonic() + patience
        if not self.is_sqlite:
            with self._transaction("BEGIN", time.monotonic() + self.wait, wait) as connection:
                yield connection
            return
        self.engine  # noqa: B018 - a forked child must not wait for its parent's lock
        turn = self._turn
        if not turn.acquire(timeout=max(0.0, patience)):
            raise StoreUnavailable(f"{self.place}: {_busy(patience)}")
        try:
            with self._transaction("BEGIN IMMEDIATE", deadline) as connection:
                yield connection
        finally:
            turn.release()

    @contextmanager
    def _transaction(self, begin: str, deadline: float, patience: float | None = None) -> Iterator[Connection]:
        ending = False
        with self.translated(lambda: ending):
            engine = self.engine  # a forked child's own, and its own file
            if self._file is not None:
                self._file.check()  # to connect would make a new one
            connection = self._connect(engine, deadline).execution_options(begin=begin, deadline=deadline)
            if not self.is_sqlite:
                driver: Any = connection.connection.dbapi_connection
                driver.patience = 2 * self.wait + 2 if patience is None else patience
            connection.info.pop(_DUE, None)  # of a transaction that has not happened
            with connection:
                with connection.begin():
                    if self._file is None:
                        driver.limit()
                    else:
                        self._file.check()
                    yield connection
                    ending = True
                if connection.info.pop(_DUE, False) and not self.is_sqlite:
                    from tcnn_jobs.database.postgres import ring

                    ring(connection)

    def listen(self, heard: Callable[[], None], told: threading.Event) -> bool:
        """Call `heard` whenever a job has become due, until `told`; returns False at once where nobody tells: for a
        file, and through a pooler, which gives what a server process hears to whoever has it just then.

        Raises `StoreUnavailable` when the database goes away.
        """
        if self.is_sqlite:
            return False
        from tcnn_jobs.database.postgres import listen

        with self.translated(), self._connect(self.engine, time.monotonic() + self.wait) as connection:
            driver: Any = connection.connection.dbapi_connection
            if driver.pooled:
                return False
            connection.detach()  # nobody else gets it, and the pool another one
            try:
                listen(driver, heard, told, patience=2 * self.wait + 2)
            except Exception as error:
                connection.invalidate()
                raise StoreUnavailable(f"{self.place}: {one_line(error)}") from error
        return True

    def _connect(self, engine: Engine, deadline: float) -> Connection:
        """A connection; a server that is being restarted is asked again until `deadline`, one that is frozen is not."""
        while True:
            try:
                return engine.connect()
            except (sql.OperationalError, sql.InterfaceError) as error:
                if self.is_sqlite or time.monotonic() + _NAP >= deadline or _silent(error):
                    raise
                time.sleep(_NAP)

    @contextmanager
    def translated(self, in_doubt: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Turns what the database refuses into `StoreUnavailable`; a mistake in our own SQL stays what it is."""
        try:
            yield
        except sql.TimeoutError as error:  # of the pool
            raise StoreUnavailable(f"{self.place}: {_busy(self.wait)}") from error
        except sql.DBAPIError as error:
            if not _unavailable(error):
                raise
            unavailable = StoreUnavailable(f"{self.place}: {_reason(error, self.wait)}")
            unavailable.in_doubt = in_doubt()
            raise unavailable from error


def due(connection: Connection) -> None:
    """A job will be due when this transaction has happened: those who wait for one are told then."""
    connection.info[_DUE] = True


def _engine(url: URL, wait: float, file: sqlite.File | None) -> Engine:
    if file is not None:
        return sqlite.connecting(url, wait, file, **_pool(64, wait))
    from tcnn_jobs.database.postgres import connecting  # loads psycopg, which a queue in a file does without

    try:
        return connecting(url, wait, **_pool(20, wait))
    except sql.ArgumentError as error:  # of several hosts and ports, which do not belong together
        raise RequestError(f"TCNN_DATABASE_URL: {one_line(error)}") from None


def _pool(connections: int, wait: float) -> dict[str, Any]:
    """At most so many, opened when they are wanted and then kept: PostgreSQL starts a process for every new one, and to
    open and close some in every burst of requests made the bursts longer. The one used last is used next."""
    return {"pool_size": connections, "max_overflow": 0, "pool_use_lifo": True, "pool_timeout": wait}


def _silent(error: sql.DBAPIError) -> bool:
    from tcnn_jobs.database.postgres import Silent

    return isinstance(error.orig, Silent)


def _unavailable(error: sql.DBAPIError) -> bool:
    if isinstance(error, sql.ProgrammingError):
        return getattr(error.orig, "sqlstate", None) in (_MISSING_TABLE, _NO_PERMISSION)
    return error.connection_invalidated or not isinstance(
        error, sql.IntegrityError | sql.DataError | sql.NotSupportedError
    )


def _busy(wait: float) -> str:
    return f"the database is locked or busy for more than {wait:g} s; try again"


def _reason(error: sql.DBAPIError, wait: float) -> str:
    found = one_line(error.orig or error)
    if "database is locked" in found or getattr(error.orig, "sqlstate", None) in _BUSY:
        return _busy(wait)
    if "no such table" in found or getattr(error.orig, "sqlstate", None) == _MISSING_TABLE:
        return "the database has no queue yet; start tcnn serve or tcnn worker, which make it"
    return f"the database cannot be used ({found}); try again when it can"
