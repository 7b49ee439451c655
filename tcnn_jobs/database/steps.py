"""Steps of the database's clock: times in rows are by a clock that somebody may set."""

from typing import Any

from sqlalchemy import Connection, and_, exists, select, update

from tcnn_jobs.database.schema import jobs
from tcnn_jobs.database.types import now
from tcnn_jobs.model.jobs import Status

TOLERANCE = 2.0
"""Seconds by which the clock may run away from this process's own between two looks: looks can be slow."""
LONGEST_DELAY = 600.0
"""Seconds that a job can have to wait for its next attempt."""


class Steps:
    """Compares the database's clock with one that nobody can set."""

    def __init__(self) -> None:
        self._apart: float | None = None

    def moved(self, wall: float, monotonic: float) -> bool:
        """Whether the clock was set since the last look. The first look tells nothing."""
        before, self._apart = self._apart, wall - monotonic
        return before is not None and abs(self._apart - before) > TOLERANCE


_BEATS = and_(jobs.c.status == Status.RUNNING, jobs.c.heartbeat_at > now() + TOLERANCE)
_BORN = and_(jobs.c.status == Status.QUEUED, jobs.c.not_before > now(), jobs.c.created_at > now() + TOLERANCE)
_LATER = and_(jobs.c.status == Status.QUEUED, jobs.c.not_before > now() + LONGEST_DELAY)
_MENDED: list[tuple[Any, dict[str, Any]]] = [
    (_BEATS, {"heartbeat_at": now()}),  # a lease from now on, should nobody be there any more
    (_BORN, {"not_before": now()}),
    (_LATER, {"not_before": now() + LONGEST_DELAY}),
]


def is_wrong(connection: Connection) -> bool:
    """Whether rows have times that no clock can have written that goes as this one: it was set back."""
    return any(connection.scalar(select(exists().where(where))) for where, _ in _MENDED)


def mend(connection: Connection) -> None:
    """Bring such times to the present. Whoever does it second finds nothing to do."""
    for where, values in _MENDED:
        connection.execute(update(jobs).where(where).values(values))
