"""Connections to PostgreSQL whose every wait has an end on this side.

A server that is stopped (SIGSTOP, a frozen virtual machine) still acknowledges packets, so that neither its own
timeouts nor TCP's end a wait for it.
"""

import time
from collections.abc import Generator
from typing import Any

import psycopg
from sqlalchemy import Engine, event


class Bounded(psycopg.Connection[Any]):
    """A connection that waits `patience` seconds for each answer; then it is closed, and `OperationalError` raised."""

    patience: float = 60.0

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Run one of psycopg's generators to its end, or to the deadline."""
        return super().wait(self._until(gen, time.monotonic() + self.patience), *arguments, **options)

    def _until(self, gen: Any, deadline: float) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:  # woken by the clock, not by the socket
                    gen.close()
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {self.patience:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def bound(engine: Engine, ping: float) -> None:
    """Make all of an engine's connections such; one that comes out of the pool must answer within `ping` seconds."""

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Bounded:
        connection = Bounded.connect(*arguments, **options)
        connection.patience = ping
        return connection

    @event.listens_for(engine, "checkin")
    def back(connection: Any, record: Any) -> None:
        if connection is not None:
            connection.patience = ping
