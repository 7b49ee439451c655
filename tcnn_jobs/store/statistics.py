"""The queue in numbers."""

from sqlalchemy import func, select

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import jobs, now, tallies
from tcnn_jobs.model import Statistics, Status
from tcnn_jobs.store import fleet

_HOUR = 3600.0


class Figures(Database):
    """What Prometheus asks for."""

    def statistics(self) -> Statistics:
        """Jobs by status and kind, the age of the oldest one that waits, what has ended since ever, and who works."""
        waiting = (Status.QUEUED, Status.RUNNING)
        with self.reading() as connection:
            counts = connection.execute(
                select(jobs.c.status, jobs.c.kind, func.count().label("jobs"))
                .where(jobs.c.status.in_(waiting))
                .group_by(jobs.c.status, jobs.c.kind)
            ).all()
            # `not_before` is when a job last became one that may be taken.
            oldest = connection.scalar(
                select(now() - func.min(jobs.c.not_before)).where(jobs.c.status == Status.QUEUED, jobs.c.unmet == 0)
            )
            ended = connection.execute(
                select(
                    tallies.c.kind,
                    tallies.c.outcome,
                    func.sum(tallies.c.jobs).label("jobs"),
                    func.sum(tallies.c.seconds).label("seconds"),
                ).group_by(tallies.c.kind, tallies.c.outcome)
            ).all()
            heard = fleet.heard(connection, _HOUR)
        finished: dict[str, dict[str, tuple[int, float]]] = {}
        for row in ended:
            finished.setdefault(row.kind, {})[row.outcome] = (int(row.jobs), float(row.seconds))
        return Statistics(
            queued={row.kind: row.jobs for row in counts if row.status == Status.QUEUED},
            running={row.kind: row.jobs for row in counts if row.status == Status.RUNNING},
            oldest_queued_seconds=max(0.0, oldest or 0.0),
            finished=finished,
            workers=tuple(heard),
        )
