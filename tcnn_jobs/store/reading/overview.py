"""The queue as an operator looks at it: who waits and for how long, and what has ended in the last hours.

To count grows with the jobs, and any tenant may ask: what took long to count is believed for twenty times as long, so
that at most a twentieth of a processor is spent on it, as in `statistics`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import Double, Integer, Text, case, cast, func, literal_column, select

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import jobs, stored
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.operation import EndedHour, TenantLoad

HOURS = 24
"""Of which is told what has ended."""
QUICK, SHARE = 0.05, 20.0
"""Seconds of a count that is made for every answer; how many times longer than it took any other is believed."""
MOST = 1000
"""Counts that are kept."""
T = TypeVar("T")


class Overview(Database):
    """Reads what a page about the whole service shows; `owner=None` looks at everybody's."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._counted: dict[tuple[str, str | None], tuple[Any, float]] = {}

    def _kept(self, what: str, owner: str | None, count: Callable[[str | None], T]) -> T:
        key, began = (what, owner), time.monotonic()
        found, until = self._counted.get(key, (None, 0.0))
        if found is not None and began < until:
            kept: T = found
            return kept
        found = count(owner)
        took = time.monotonic() - began
        if took > QUICK:
            if len(self._counted) >= MOST:
                self._counted.clear()
            self._counted[key] = found, began + took * (1 + SHARE)
        return found

    def load(self, owner: str | None = None) -> list[TenantLoad]:
        """What each tenant has queued, running and stored, by name; tenants that have nothing are left out."""
        return self._kept("load", owner, self._load)

    def ended(self, owner: str | None = None) -> Sequence[EndedHour]:
        """Jobs that ended in each of the last `HOURS` hours, the newest first; hours without any are there, too."""
        return self._kept("ended", owner, self._ended)

    def _load(self, owner: str | None) -> list[TenantLoad]:
        active = jobs.c.status.in_([literal_column(f"'{one}'", Text) for one in (Status.QUEUED, Status.RUNNING)])
        free = case((jobs.c.unmet == 0, jobs.c.not_before))
        counts = select(
            jobs.c.owner, jobs.c.status, func.count().label("jobs"), func.sum(jobs.c.slots).label("slots"),
            func.sum(case((jobs.c.unmet > 0, 1), else_=0), type_=Integer()).label("blocked"),
            func.min(free).label("since"),
        ).where(active).group_by(jobs.c.owner, jobs.c.status)  # fmt: skip
        kept = select(stored.c.tenant, func.sum(stored.c.bytes).label("bytes")).group_by(stored.c.tenant)
        if owner is not None:
            counts, kept = counts.where(jobs.c.owner == owner), kept.where(stored.c.tenant == owner)
        with self.reading() as connection:
            at = connection.scalar(select(now())) or 0.0
            rows = connection.execute(counts).all()
            size = {row.tenant: int(row.bytes or 0) for row in connection.execute(kept)}
        found: dict[str, dict[str, Any]] = {name: {"stored": value} for name, value in size.items()}
        for row in rows:
            one = found.setdefault(row.owner, {})
            if row.status == Status.RUNNING:
                one |= {"running": row.jobs, "slots": int(row.slots)}
            else:
                waited = None if row.since is None else max(0.0, at - row.since)
                one |= {"queued": row.jobs, "blocked": int(row.blocked), "oldest_seconds": waited}
        return [TenantLoad(tenant=name, **found[name]) for name in sorted(found)]

    def _ended(self, owner: str | None) -> Sequence[EndedHour]:
        hours = (now() - jobs.c.finished_at) / literal_column("3600.0", Double)
        # A cast cuts off in SQLite and rounds in PostgreSQL.
        hour = cast(hours if self.is_sqlite else hours - literal_column("0.5", Double), Integer)
        query = (
            select(hour.label("hour"), jobs.c.status, func.count().label("jobs"))
            .where(jobs.c.finished_at > now() - HOURS * 3600.0)
            .group_by("hour", jobs.c.status)
        )
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        with self.reading() as connection:
            rows = connection.execute(query).all()
        found: list[dict[str, int]] = [{} for _ in range(HOURS)]
        for row in rows:
            if 0 <= row.hour < HOURS:
                found[row.hour][row.status] = row.jobs
        return [EndedHour(hours_ago=place, **counts) for place, counts in enumerate(found)]
