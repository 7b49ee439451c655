"""Statistics of the queue for monitoring."""

from sqlalchemy import Text, func, literal_column, select

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import jobs, tallies
from tcnn_jobs.database.types import now
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.monitoring import Statistics
from tcnn_jobs.store import fleet
from tcnn_jobs.store.reading.backlog import Backlog

_HOUR = 3600.0
_RUNNING = (
    select(jobs.c.kind, func.count().label("jobs"))
    .where(jobs.c.status == literal_column(f"'{Status.RUNNING}'", Text))
    .group_by(jobs.c.kind)
)


class Figures(Database):
    """Reads the statistics that Prometheus scrapes."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._backlog = Backlog()

    def statistics(self) -> Statistics:
        """Jobs by status and kind, the age of the oldest one that waits, what has ended since ever, and who works.

        What is said of a long queue may be some seconds old (`backlog`).
        """
        with self.reading() as connection:
            running = connection.execute(_RUNNING).all()
            backlog = self._backlog.counted(connection)
            time = connection.scalar(select(now())) or 0.0
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
            queued=backlog.free,
            blocked=backlog.blocked,
            running={row.kind: row.jobs for row in running},
            oldest_queued_seconds=0.0 if backlog.since is None else max(0.0, time - backlog.since),
            finished=finished,
            workers=tuple(heard),
        )
