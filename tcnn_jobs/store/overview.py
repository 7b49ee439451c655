"""The queue as an operator looks at it: who waits and for how long, and what has ended in the last hours."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Double, Integer, Text, case, cast, func, literal_column, select

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import jobs, now, stored
from tcnn_jobs.model import EndedHour, Status, TenantLoad

HOURS = 24
"""Of which is told what has ended."""


class Overview(Database):
    """Reads what a page about the whole service shows; `owner=None` looks at everybody's."""

    def load(self, owner: str | None = None) -> list[TenantLoad]:
        """What each tenant has queued, running and stored, by name; tenants that have nothing are left out."""
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
            time = connection.scalar(select(now())) or 0.0
            rows = connection.execute(counts).all()
            size = {row.tenant: int(row.bytes or 0) for row in connection.execute(kept)}
        found: dict[str, dict[str, Any]] = {name: {"stored": value} for name, value in size.items()}
        for row in rows:
            one = found.setdefault(row.owner, {})
            if row.status == Status.RUNNING:
                one |= {"running": row.jobs, "slots": int(row.slots)}
            else:
                waited = None if row.since is None else max(0.0, time - row.since)
                one |= {"queued": row.jobs, "blocked": int(row.blocked), "oldest_seconds": waited}
        return [TenantLoad(tenant=name, **found[name]) for name in sorted(found)]

    def ended(self, owner: str | None = None) -> Sequence[EndedHour]:
        """Jobs that ended in each of the last `HOURS` hours, the newest first; hours without any are there, too."""
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
