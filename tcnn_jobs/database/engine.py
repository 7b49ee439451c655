"""Database engine: connections, transactions, and `StoreUnavailable` for every failure of the database.

SQLite: WAL, so that readers and the one writer do not meet; `synchronous=FULL`, so that what was committed survives a
power cut; `BEGIN IMMEDIATE` before every write, so that a transaction never finds out half way that it must wait.
SQLite waits for other writers by naps that grow to 100 ms, so that whoever has waited long waits still longer. Here
threads of a process take turns, and processes look again after a few milliseconds, all with the same chance.

PostgreSQL: connections are tried before they are used; locks and absent servers are waited for `wait` seconds, and
every single answer for little more than twice as long, by the server's timeouts and by ours (`postgres`). One that is
frozen is waited for less than two seconds (`silence`).
"""

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy import exc as sql

from tcnn.errors import RequestError, one_line
from tcnn_jobs.errors import StoreUnavailable

LONGEST_LOG = 50_000
"""Pages of 4 KiB after which a writer empties SQLite's log itself, should nobody else do so."""

_NAP = 0.2
_DUE = "tcnn_due"
_TURN = 0.0005, 0.003  # seconds between two looks whether another process has finished its transaction
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
        self._engine = _engine(self.url, self.wait)

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        self.engine.dispose()

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
        """The database's address without its password, for messages."""
        return self.url.database or "" if self.is_sqlite else self.url.render_as_string(hide_password=True)

    def checkpoint(self, longer_than: int = 0) -> None:
        """SQLite: copy what its log has gathered into the file, while others read and write; elsewhere nothing.

        Whoever commits meanwhile waits for the disk, a quarter of a second at times; a log of at most `longer_than`
        bytes is left alone.
        """
        if self.is_sqlite and _log_size(self.url) > longer_than:
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
            connection = self._connect(deadline).execution_options(begin=begin, deadline=deadline)
            if not self.is_sqlite:
                driver: Any = connection.connection.dbapi_connection
                driver.patience = 2 * self.wait + 2 if patience is None else patience
            connection.info.pop(_DUE, None)  # of a transaction that has not happened
            with connection:
                with connection.begin():
                    if not self.is_sqlite:
                        driver.limit()
                    yield connection
                    ending = True
                if connection.info.pop(_DUE, False) and not self.is_sqlite:
                    from tcnn_jobs.database.postgres import ring

                    ring(driver)

    def listen(self, heard: Callable[[], None], told: threading.Event) -> bool:
        """Call `heard` whenever a job has become due, until `told`; returns False at once where nobody tells: for a
        file, and through a pooler, which gives what a server process hears to whoever has it just then.

        Raises `StoreUnavailable` when the database goes away.
        """
        if self.is_sqlite:
            return False
        from tcnn_jobs.database.postgres import listen

        with self.translated(), self._connect(time.monotonic() + self.wait) as connection:
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

    def _connect(self, deadline: float) -> Connection:
        """A connection; a server that is being restarted is asked again until `deadline`, one that is frozen is not."""
        while True:
            try:
                return self.engine.connect()
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


def _log_size(url: URL) -> int:
    try:
        return Path(f"{url.database}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def parsed(url: str) -> URL:
    """The URL with its driver; raises `RequestError`. What follows `sqlite:///` is a path, whatever is in it."""
    expected = "TCNN_DATABASE_URL: expected sqlite:///FILE or postgresql://USER@HOST/NAME"
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite":
        if path in ("", ":memory:"):
            raise RequestError(f"{expected}; found no file name, and a queue in memory would be lost")
        return URL.create("sqlite+pysqlite", database=path)
    try:
        found = make_url(url)
    except (sql.ArgumentError, ValueError):
        raise RequestError(expected) from None
    if found.drivername not in ("postgresql", "postgresql+psycopg"):
        raise RequestError(f"{expected}; found {found.drivername}://")
    return found.set(drivername="postgresql+psycopg")


def due(connection: Connection) -> None:
    """A job will be due when this transaction has happened: those who wait for one are told then."""
    connection.info[_DUE] = True


def _engine(url: URL, wait: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": wait}, **_pool(64, wait))
        event.listen(engine, "connect", _sqlite_connection)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    from tcnn_jobs.database.postgres import connecting  # loads psycopg, which a queue in a file does without

    return connecting(url, wait, **_pool(20, wait))


def _pool(connections: int, wait: float) -> dict[str, Any]:
    """At most so many, opened when they are wanted and then kept: PostgreSQL starts a process for every new one, and to
    open and close some in every burst of requests made the bursts longer. The one used last is used next."""
    return {"pool_size": connections, "max_overflow": 0, "pool_use_lifo": True, "pool_timeout": wait}


def _sqlite_connection(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    # SQLite would have every hundredth request or so empty the log, for up to a second: `checkpoint` does that aside.
    # What the file has is cut off the log, so that its length says how much the file lacks.
    limits = f"wal_autocheckpoint = {LONGEST_LOG}", "journal_size_limit = 0"
    for pragma in ("synchronous = FULL", "foreign_keys = ON", *limits):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
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
