"""The database's clock may be set while jobs run: what it has left in the future is brought to the present.

Times in rows are by that clock. Set forward, it makes the living look silent, so that `reaping` waits until they have
said that they live. Set back, it leaves times that are still to come: what is due would wait until then, who is dead
would count as alive, and whose turn it was would be told by a start that has not been. Those are found by what no clock
that goes as it does now can have written.

Dates that were told to somebody stay: when a key or a link ends, and when a job was submitted or ended.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, and_, case, delete, exists, select, update
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import PORTION
from tcnn_jobs.database.schema import deliveries, jobs, tenants, usage, workers
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.store.accounts import quotas

TOLERANCE = 2.0
"""Seconds by which the clock may run away from this process's own between two looks: looks can be slow."""
LONGEST_DELAY = 600.0
"""Seconds that a job can have to wait for its next attempt, and a webhook call for its next try."""


class Steps:
    """Compares the database's clock with one that nobody can set."""

    def __init__(self) -> None:
        self._apart: float | None = None

    def moved(self, wall: float, monotonic: float) -> bool:
        """Whether the clock was set since the last look. The first look tells nothing."""
        before, self._apart = self._apart, wall - monotonic
        return before is not None and abs(self._apart - before) > TOLERANCE


class Wrong(NamedTuple):
    """Rows with a time that is not there yet, and what mends them. Once mended they are no longer found."""

    where: ColumnElement[bool]
    mend: Callable[[Connection], object]


def to_come(time: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a time that was the present when it was written is still to come."""
    return time > now() + TOLERANCE


def _rows(table: Table, where: ColumnElement[bool], **values: Any) -> Wrong:
    (key,) = table.primary_key
    # In one order, and past those that are being changed just now: nobody is waited for, and the next look finds them.
    # So it does those beyond a portion.
    found = select(key).where(where).order_by(key).limit(PORTION).with_for_update(skip_locked=True)
    return Wrong(where, lambda connection: connection.execute(update(table).where(key.in_(found)).values(values)))


def _use_to_today(connection: Connection) -> None:
    today = int((connection.scalar(select(now())) or 0.0) // quotas.DAY)
    moved = connection.execute(delete(usage).where(usage.c.day > today).returning(usage)).all()
    for row in sorted(moved):
        quotas.add_use(connection, row.tenant, today, row.shard, row.seconds)


_RUNNING, _QUEUED = jobs.c.status == Status.RUNNING, jobs.c.status == Status.QUEUED
# As long as its worker had told when the clock was set; by the new time it has told nothing that began in the future.
_RAN = case((jobs.c.heartbeat_at > jobs.c.started_at, jobs.c.heartbeat_at - jobs.c.started_at), else_=0.0)
MENDED = (
    _rows(jobs, and_(_RUNNING, to_come(jobs.c.started_at)), started_at=now() - _RAN),
    _rows(jobs, and_(_RUNNING, to_come(jobs.c.heartbeat_at)), heartbeat_at=now()),  # a lease, should nobody be there
    _rows(jobs, and_(_QUEUED, jobs.c.not_before > now(), to_come(jobs.c.created_at)), not_before=now()),
    _rows(jobs, and_(_QUEUED, jobs.c.not_before > now() + LONGEST_DELAY), not_before=now() + LONGEST_DELAY),
    _rows(deliveries, and_(deliveries.c.attempt == 0, to_come(deliveries.c.due_at)), due_at=now()),
    _rows(deliveries, to_come(deliveries.c.due_at - LONGEST_DELAY), due_at=now() + LONGEST_DELAY),
    _rows(workers, to_come(workers.c.heartbeat_at), heartbeat_at=now()),
    _rows(tenants, to_come(tenants.c.started_at), started_at=now()),
    Wrong(to_come(usage.c.day * quotas.DAY), _use_to_today),
)
"""In this order: how long a job ran is told by its heartbeat as it was."""


def is_wrong(connection: Connection) -> bool:
    """Whether rows have times that no clock can have written that goes as this one: it was set back."""
    return any(connection.scalar(select(exists().where(wrong.where))) for wrong in MENDED)
