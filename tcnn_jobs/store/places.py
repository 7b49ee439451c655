"""Places in the queue: how many jobs are before each of some.

Counted exactly among the first `HEAD` queued jobs, which one short read of an index gives. Of those further back the
place is as old as the last count of the whole queue: seconds, and the longer it takes to count, the less often it is.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, select

from tcnn_jobs.model import Job, Status
from tcnn_jobs.store.changes import HEARD_OF, as_job
from tcnn_jobs.store.schema import jobs, now, workers

HEAD = 250
"""Queued jobs that are looked through for every answer."""
OLDEST, SHARE = 1.0, 20.0
"""Seconds for which a count is good enough, and how many times longer than it took."""

_LINE = (
    select(jobs.c.number, jobs.c.priority, jobs.c.not_before, (jobs.c.not_before <= now()).label("due"))
    .where(jobs.c.status == Status.QUEUED)
    .order_by(jobs.c.priority.desc(), jobs.c.number)
    .limit(bindparam("most"))
)
_LARGEST = select(func.max(workers.c.slots)).where(workers.c.heartbeat_at > now() - HEARD_OF)


class Line:
    """Queued jobs in the order of claims: first those that are due, then those that wait, by when they will be."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._due: dict[int, list[int]] = {}
        self._later: list[tuple[float, int, int]] = []
        for number, priority, not_before, due in rows:
            if due:
                self._due.setdefault(priority, []).append(number)
            else:
                self._later.append((not_before, -priority, number))
        self._later.sort()

    def place(self, number: int, priority: int, not_before: float) -> int:
        """How many jobs are before this one, which need not be among them."""
        waits = not_before, -priority, number
        at = bisect_left(self._later, waits)
        if at < len(self._later) and self._later[at] == waits:
            return sum(map(len, self._due.values())) + at
        above = sum(len(numbers) for other, numbers in self._due.items() if other > priority)
        return above + bisect_left(self._due.get(priority, ()), number)


class Places:
    """What one process knows of the queue's order."""

    def __init__(self) -> None:
        self._whole = Line(())
        self._good_until = 0.0

    def placed(self, connection: Connection, rows: Sequence[Row[Any]]) -> list[Job]:
        """Jobs with their places in the queue, read in a transaction that holds nobody up."""
        queued = [row for row in rows if row.status == Status.QUEUED]
        places = self._of(connection, queued) if queued else {}
        wide = any(row.slots > 1 for row in queued)
        largest = (connection.scalar(_LARGEST) or 0) if wide else 1
        return [
            as_job(row, places.get(row.number), _too_wide(row.slots, largest) if row.number in places else None)
            for row in rows
        ]

    def _of(self, connection: Connection, queued: Sequence[Row[Any]]) -> dict[int, int]:
        head = connection.execute(_LINE, {"most": HEAD + 1}).all()
        line = Line(head)
        exact = {row.number for row in head[:HEAD] if row.due}
        if len(head) <= HEAD:
            exact = {row.number for row in queued}
        elif any(row.number not in exact for row in queued):
            self._count(connection)
        return {
            row.number: (line if row.number in exact else self._whole).place(row.number, row.priority, row.not_before)
            for row in queued
        }

    def _count(self, connection: Connection) -> None:
        started = time.monotonic()
        if started < self._good_until:
            return
        self._good_until = started + 60.0  # one thread counts, the others use what was counted before
        try:
            self._whole = Line(connection.execute(_LINE, {"most": 2**31 - 1}))
        finally:
            ended = time.monotonic()
            self._good_until = ended + max(OLDEST, SHARE * (ended - started))


def _too_wide(slots: int, largest: int) -> str | None:
    """Why a queued job has to wait for more than its turn, if it has to."""
    if slots <= max(1, largest):
        return None
    there = f"the largest worker has {largest}" if largest else "no worker is there"
    return f"needs {slots} slots of one worker at once; {there}"
