"""Statistics of the queue for monitoring: jobs by status and kind, the oldest that waits, what has ended, who works.

To count those that wait takes time that grows with the queue. A short one is counted for every answer, a long one is a
`Snapshot`, seconds old.
"""

from typing import NamedTuple

from sqlalchemy import Connection, Integer, bindparam, case, func, select

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import has_status, jobs, tallies
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.operation import Statistics
from tcnn_jobs.store import fleet
from tcnn_jobs.store.accounts import quotas
from tcnn_jobs.store.reading.snapshot import Snapshot

FEW = 1000
"""Queued jobs that are counted for every answer."""

_HOUR = 3600.0
_FREE = jobs.c.unmet == 0
_HELD = _FREE & jobs.c.owner.in_(bindparam("held", expanding=True))
_OWNERS = select(jobs.c.owner).where(has_status(Status.QUEUED)).distinct()
_COUNT = (
    select(
        jobs.c.kind,
        func.count().label("jobs"),
        func.sum(case((_FREE, 0), else_=1), type_=Integer()).label("blocked"),
        func.sum(case((_HELD, 1), else_=0), type_=Integer()).label("held"),
        # When a job last became one that may be taken.
        func.min(case((_FREE & ~_HELD, jobs.c.not_before))).label("since"),
    )
    .where(has_status(Status.QUEUED))
    .group_by(jobs.c.kind)
)
_RUNNING = select(jobs.c.kind, func.count().label("jobs")).where(has_status(Status.RUNNING)).group_by(jobs.c.kind)


class Figures(Database):
    """Reads the statistics that Prometheus scrapes."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._backlog = Snapshot[Count]()

    def statistics(self) -> Statistics:
        """Jobs by status and kind, the age of the oldest one that waits, what has ended since ever, and who works.

        What is said of a long queue may be some seconds old.
        """
        with self.reading() as connection:
            running = connection.execute(_RUNNING).all()
            backlog = self._backlog.get(lambda: _count(connection), lambda count: count.jobs > FEW)
            at = connection.scalar(select(now())) or 0.0
            ended = connection.execute(
                select(
                    tallies.c.kind,
                    tallies.c.outcome,
                    func.sum(tallies.c.jobs).label("jobs"),
                    func.sum(tallies.c.seconds).label("seconds"),
                ).group_by(tallies.c.kind, tallies.c.outcome)
            ).all()
            heard = fleet.heard(connection, _HOUR)
            slots = fleet.slots(connection)
        finished: dict[str, dict[str, tuple[int, float]]] = {}
        for row in ended:
            finished.setdefault(row.kind, {})[row.outcome] = (int(row.jobs), float(row.seconds))
        return Statistics(
            queued=backlog.free,
            blocked=backlog.blocked,
            held=backlog.held,
            running={row.kind: row.jobs for row in running},
            oldest_queued_seconds=0.0 if backlog.since is None else max(0.0, at - backlog.since),
            finished=finished,
            workers=tuple(heard),
            slots=slots,
        )


class Count(NamedTuple):
    """Queued jobs by kind: those that wait for no other job, those that do, and those of the first that a quota of
    their tenant holds back; and since when the oldest of the rest could start.
    """

    free: dict[str, int]
    blocked: dict[str, int]
    held: dict[str, int]
    since: float | None

    @property
    def jobs(self) -> int:
        """Queued jobs of all kinds."""
        return sum(self.free.values()) + sum(self.blocked.values())


def _count(connection: Connection) -> Count:
    held = quotas.reasons(connection, connection.scalars(_OWNERS))
    rows = connection.execute(_COUNT, {"held": list(held)}).all()
    starts = [row.since for row in rows if row.since is not None]
    return Count(
        {row.kind: row.jobs - row.blocked for row in rows if row.jobs > row.blocked},
        {row.kind: row.blocked for row in rows if row.blocked},
        {row.kind: row.held for row in rows if row.held},
        min(starts, default=None),
    )
