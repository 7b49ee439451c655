"""Workers: who is at the queue, and whether another one could do what one has failed at."""

from typing import Any

from sqlalchemy import Connection, Double, Integer, Row, Text, bindparam, case, delete, exists, func, select
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import now, workers
from tcnn_jobs.model import WorkerInfo

HEARD_OF = 60.0
"""Seconds for which a silent worker still counts as one that may take a job; its lease, if that is longer."""
ELSEWHERE = 30.0
"""Seconds for which a job that is due again is left to other workers than the one where it failed."""

PRESENT: ColumnElement[bool] = workers.c.heartbeat_at > now() - case(
    (workers.c.lease > HEARD_OF, workers.c.lease), else_=HEARD_OF
)
_AT_WORK = select(func.count()).select_from(workers).where(PRESENT)
_OTHERS = select(
    exists().where(
        PRESENT, workers.c.name != bindparam("one", type_=Text()), workers.c.slots >= bindparam("size", type_=Integer())
    )
)


class Fleet(Database):
    """Looking after workers; what they say of themselves comes with their heartbeats."""

    def count_workers(self) -> int:
        """Workers that were heard of lately."""
        with self.reading() as connection:
            return connection.scalar(_AT_WORK) or 0

    def versions(self) -> set[str]:
        """The versions of workers that were heard of lately."""
        with self.reading() as connection:
            return set(connection.scalars(select(workers.c.version).where(PRESENT)))

    def forget_worker(self, name: str) -> None:
        """A worker has left."""
        with self.writing() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))


def heard(connection: Connection, seconds: float) -> list[WorkerInfo]:
    """Workers that were heard of in so many seconds, by name; `heartbeat_at` is the age."""
    age = (now() - workers.c.heartbeat_at).label("age")
    query = select(workers, age).where(workers.c.heartbeat_at > now() - bindparam("most", type_=Double()))
    return [_as_worker(row) for row in connection.execute(query.order_by(workers.c.name), {"most": seconds})]


def _as_worker(row: Row[Any]) -> WorkerInfo:
    return WorkerInfo(
        name=row.name,
        host=row.host,
        slots=row.slots,
        version=row.version,
        gpus=tuple(row.gpus),
        lease=row.lease,
        heartbeat_at=max(0.0, row.age),
    )


def others(connection: Connection, name: str, slots: int) -> bool:
    """Whether somebody else is there with so many slots, free or not."""
    return bool(connection.scalar(_OTHERS, {"one": name, "size": slots}))
