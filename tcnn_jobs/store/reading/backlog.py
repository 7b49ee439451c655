"""How many jobs wait, and for how long: a short queue is counted for every answer, a long one now and then.

To count grows with the queue, so the count of a long one is seconds old at most, and the longer it takes to count, the
less often it is.
"""

import time
from typing import NamedTuple

from sqlalchemy import Connection, Integer, Text, case, func, literal_column, select

from tcnn_jobs.database.schema import jobs
from tcnn_jobs.model.jobs import Status

FEW = 1000
"""Queued jobs that are counted for every answer."""
OLDEST, SHARE = 1.0, 20.0
"""Seconds for which a count is good enough, and how many times longer than it took."""

_FREE = jobs.c.unmet == 0
_COUNT = (
    select(
        jobs.c.kind,
        func.count().label("jobs"),
        func.sum(case((_FREE, 0), else_=1), type_=Integer()).label("blocked"),
        # When a job last became one that may be taken.
        func.min(case((_FREE, jobs.c.not_before))).label("since"),
    )
    .where(jobs.c.status == literal_column(f"'{Status.QUEUED}'", Text))
    .group_by(jobs.c.kind)
)


class Count(NamedTuple):
    """Queued jobs by kind, without and with those that wait for other jobs; and since when the oldest could start."""

    free: dict[str, int]
    blocked: dict[str, int]
    since: float | None


class Backlog:
    """What one process knows of it."""

    def __init__(self) -> None:
        self._known = Count({}, {}, None)
        self._good_until = 0.0

    def counted(self, connection: Connection) -> Count:
        """The queue, in a transaction that holds nobody up."""
        began = time.monotonic()
        if began >= self._good_until:
            self._good_until = began + 60.0  # one thread counts, the others use what was counted before
            try:
                self._known = known = _count(connection)
            except BaseException:
                self._good_until = began
                raise
            few = sum(known.free.values()) + sum(known.blocked.values()) <= FEW
            ended = time.monotonic()
            self._good_until = ended if few else ended + max(OLDEST, SHARE * (ended - began))
        return self._known


def _count(connection: Connection) -> Count:
    rows = connection.execute(_COUNT).all()
    starts = [row.since for row in rows if row.since is not None]
    return Count(
        {row.kind: row.jobs - row.blocked for row in rows if row.jobs > row.blocked},
        {row.kind: row.blocked for row in rows if row.blocked},
        min(starts, default=None),
    )
