"""The queue in numbers."""

from sqlalchemy import func, select

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import jobs, now, tallies, workers
from tcnn_jobs.model import Statistics, Status, WorkerInfo
from tcnn_jobs.store.changes import HEARD_OF

_HOUR = 3600.0
_AT_WORK = select(func.count()).select_from(workers).where(workers.c.heartbeat_at > now() - HEARD_OF)


class Figures(Database):
    """What Prometheus asks for, and workers."""

    def count_workers(self) -> int:
        """Workers that were heard of lately."""
        with self.reading() as connection:
            return connection.scalar(_AT_WORK) or 0

    def versions(self) -> set[str]:
        """The versions of workers that were heard of lately."""
        with self.reading() as connection:
            found = connection.scalars(select(workers.c.version).where(workers.c.heartbeat_at > now() - HEARD_OF))
            return set(found)

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
                select(now() - func.min(jobs.c.not_before)).where(jobs.c.status == Status.QUEUED)
            )
            ended = connection.execute(
                select(
                    tallies.c.kind,
                    tallies.c.outcome,
                    func.sum(tallies.c.jobs).label("jobs"),
                    func.sum(tallies.c.seconds).label("seconds"),
                ).group_by(tallies.c.kind, tallies.c.outcome)
            ).all()
            heard = connection.execute(
                select(workers, (now() - workers.c.heartbeat_at).label("age"))
                .where(workers.c.heartbeat_at > now() - _HOUR)
                .order_by(workers.c.name)
            ).all()
        finished: dict[str, dict[str, tuple[int, float]]] = {}
        for row in ended:
            finished.setdefault(row.kind, {})[row.outcome] = (int(row.jobs), float(row.seconds))
        return Statistics(
            queued={row.kind: row.jobs for row in counts if row.status == Status.QUEUED},
            running={row.kind: row.jobs for row in counts if row.status == Status.RUNNING},
            oldest_queued_seconds=max(0.0, oldest or 0.0),
            finished=finished,
            workers=tuple(
                WorkerInfo(
                    name=row.name,
                    host=row.host,
                    slots=row.slots,
                    version=row.version,
                    gpus=tuple(row.gpus),
                    heartbeat_at=max(0.0, row.age),
                )
                for row in heard
            ),
        )
