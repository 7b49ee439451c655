"""Connections to PostgreSQL: every wait has an end on this side, a pooler is noticed, and notices come over them.

A server that is stopped (SIGSTOP, a frozen virtual machine) still acknowledges packets, so that neither its own
timeouts nor TCP's end a wait for it. Whoever has waited a moment has it asked whether it answers at all (`silence`).

Through a pooler such as PgBouncer each transaction may have another process of the server, so nothing may be left there
for later: no prepared statement, no setting, no LISTEN. It may refuse settings of a connection, too; then each
transaction sets its own.

Notices (LISTEN and NOTIFY) tell those who wait for a job that one has become due, beside their own looks. A notice is a
hint and no more: who misses one finds the job at the next look. So it is given after the commit, in a transaction of
its own that waits for no disk. Within the commit it would make all commits that give one queue up for the disk, since
PostgreSQL orders notices by a lock.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event

from tcnn_jobs.database.address import misread
from tcnn_jobs.database.silence import SOON, Silence


class Silent(psycopg.OperationalError):
    """The server was asked aside, and answers nobody."""

    def __init__(self) -> None:
        super().__init__("the server answers nobody")


class Bounded(psycopg.Connection[Any]):
    """A connection that waits `patience` seconds for each answer, or until the server is found to answer nobody; then
    it is closed, and `OperationalError` raised."""

    patience: float = 60.0
    silence: Silence | None = None
    pooled: bool = False
    """Whether a pooler stands between."""
    limits: str = ""
    """What sets the server's limits for a transaction."""

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Run one of psycopg's generators to its end, or to the deadline."""
        return super().wait(self._until(gen, time.monotonic()), *arguments, **options)

    def _until(self, gen: Any, begun: float) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and (why := self._given_up(time.monotonic() - begun)) is not None:  # woken by the clock
                    gen.close()
                    self.close()
                    raise why
                wanted = gen.send(ready)
        except StopIteration as end:
            if self.silence is not None:
                self.silence.heard()
            return end.value

    def _given_up(self, waited: float) -> psycopg.OperationalError | None:
        if waited > self.patience:
            return psycopg.OperationalError(f"no answer within {self.patience:g} s")
        silent = self.silence is not None and waited > SOON and self.silence.suspect()
        return Silent() if silent else None

    def limit(self) -> None:
        """Begin a transaction with the server's limits, unless the connection has them."""
        if self.pooled:
            self.execute(self.limits)

    def look(self) -> None:
        """See whether there is a pooler: it numbers the server's processes in its own way."""
        with self.cursor() as cursor:
            number = cursor.execute("SELECT pg_backend_pid()").fetchone()
        self.rollback()
        self.pooled = number is None or number[0] != self.info.backend_pid
        if self.pooled:
            self.prepare_threshold = None


def connecting(url: URL, wait: float, **pool: Any) -> Engine:
    """An engine of such connections. Locks are waited for `wait` seconds, and every answer for little more than twice
    as long; a connection that comes out of the pool must answer within half of it."""
    limit, ping = max(1, round(wait * 1000)), max(1.0, wait / 2)
    limits = {
        "lock_timeout": limit,
        "statement_timeout": 2 * limit + 1000,
        "idle_in_transaction_session_timeout": 10 * limit + 1000,
    }
    given = str(url.query.get("options", ""))
    unless_given = {
        "connect_timeout": max(2, round(wait)),  # less is not heard by libpq
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": limits["statement_timeout"],
        "application_name": "tcnn",
    }
    engine = create_engine(
        url,
        **pool,
        pool_pre_ping=True,
        # Whatever the database's defaults: those who wait for a tenant's row must see what the one before has written.
        isolation_level="READ COMMITTED",
        connect_args={name: value for name, value in unless_given.items() if name not in url.query}
        | {
            "client_encoding": "utf8",
            "options": " ".join([given, *(f"-c {name}={value}" for name, value in limits.items())]),
        },
    )

    # Of several hosts one may be frozen and the next answer: then libpq finds it, in its own time.
    hosts = url.query.get("host", url.host or "")
    silence = Silence() if isinstance(hosts, str) and "," not in hosts else None

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Bounded:
        if silence is not None and silence.before_connecting():
            raise Silent()
        try:
            connection = Bounded.connect(*arguments, **options)
        except psycopg.OperationalError as error:
            if (wrong := misread(error)) is not None:
                raise wrong from error
            if "unsupported startup parameter" not in str(error):
                raise
            connection = Bounded.connect(*arguments, **{**options, "options": given})
        connection.patience, connection.silence = ping, silence
        connection.limits = "; ".join(f"SET LOCAL {name} = {value}" for name, value in limits.items())
        connection.look()
        if silence is not None:
            silence.met(connection)
        return connection

    @event.listens_for(engine, "checkin")
    def back(connection: Any, record: Any) -> None:
        if connection is not None:
            connection.patience = ping

    return engine


CHANNEL = "tcnn_due"
LOOK = 0.5
"""Seconds after which a listener looks whether it is to end."""
PROBE = 15.0
"""Seconds of silence after which it asks whether the server is still there."""

_RING = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"


def ring(connection: Connection) -> None:
    """Tell all listeners, on a connection whose transaction has ended; if they cannot be told, they look by themselves.

    A failed notice may leave the connection in autocommit mode and in a transaction. So it is closed, not given back.
    """
    driver: Any = connection.connection.dbapi_connection
    told = False
    try:
        with contextlib.suppress(psycopg.Error):
            driver.autocommit = True
            driver.execute(_RING)
            driver.autocommit = False
            told = True
    finally:
        if not told:
            connection.invalidate()


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
