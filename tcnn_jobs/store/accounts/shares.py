"""Fair share: which tenant's turn it is within a priority.

Of the highest priority at which a job could start, the tenant is next whose running jobs take the fewest slots; of
several such the one whose last start is the longest ago; of its jobs the oldest. So a tenant waits for one job of each
other tenant at most, however many those have queued.

What this costs grows with the number of tenants that wait, not with that of their jobs: the index `jobs_share` is
entered anew for every priority, for every tenant in it, and for the first job of each. Its owner and number are
expressions, so that no other index can be read in their order. PostgreSQL would otherwise guess that a tenant's first
job is soon met among all its jobs, whatever their priority, and go through a hundred thousand of them.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Integer, Row, Text, bindparam, func, select, update
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.schema import has_status, jobs, share_number, share_owner, tenants
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.store.accounts import quotas

ABOVE_ALL = 2**31 - 1
"""A priority that no job has."""


class Turn(NamedTuple):
    """A tenant that has a job of this priority which could start."""

    priority: int
    owner: str
    counted: bool
    """Whether the tenant has a quota of running jobs."""


class Standing(NamedTuple):
    """What a tenant has already: slots of its running jobs, and when it was last given one."""

    slots: int = 0
    started_at: float = 0.0


QUEUED, _RUNNING = has_status(Status.QUEUED), has_status(Status.RUNNING)
_LEVEL = (
    select(jobs.c.priority)
    .where(QUEUED, jobs.c.priority < bindparam("below", type_=Integer()))
    .order_by(jobs.c.priority.desc())
    .limit(1)
)


def turns(
    connection: Connection, below: int, wanted: tuple[ColumnElement[bool], ...], bound: Mapping[str, Any]
) -> list[Turn]:
    """The tenants that are next at the highest priority below this one at which a wanted job waits, in order."""
    while (level := connection.scalar(_LEVEL, {"below": below})) is not None:
        rows = connection.execute(_candidates(wanted), {**bound, "level": level}).all()
        found = [row for row in rows if row.first is not None and not _held(connection, row)]
        if found:
            found.sort(key=lambda row: (row.slots, row.started_at or 0.0, row.first))
            return [Turn(level, row.owner, row.max_running is not None) for row in found]
        below = level
    return []


def _held(connection: Connection, row: Row[Any]) -> bool:
    return quotas.held(connection, row.owner, row.max_running, row.gpu_hours) is not None


@cache
def _candidates(wanted: tuple[ColumnElement[bool], ...]) -> Any:
    """Tenants with queued jobs of the priority `level`: the first one that is wanted, and how the tenant stands."""
    there = QUEUED, jobs.c.priority == bindparam("level", type_=Integer())
    first = select(share_owner).where(*there).order_by(share_owner).limit(1)
    owners = select(first.scalar_subquery().label("owner")).cte("owners", recursive=True)
    following = select(share_owner).where(*there, share_owner > owners.c.owner).order_by(share_owner).limit(1)
    owners = owners.union_all(select(following.scalar_subquery()).where(owners.c.owner.is_not(None)))
    job = select(jobs.c.number).where(*there, share_owner == owners.c.owner, *wanted).order_by(share_number).limit(1)
    running = _RUNNING, jobs.c.owner == owners.c.owner
    slots = select(func.coalesce(func.sum(jobs.c.slots), 0)).where(*running)
    return (
        select(
            owners.c.owner,
            job.scalar_subquery().label("first"),
            slots.scalar_subquery().label("slots"),
            tenants.c.started_at,
            tenants.c.max_running,
            tenants.c.gpu_hours,
        )
        .select_from(owners.outerjoin(tenants, tenants.c.name == owners.c.owner))
        .where(owners.c.owner.is_not(None))
    )


_MARK = (
    update(tenants)
    .where(
        # Whoever holds the row writes down a start of this very moment, too: nobody waits for that.
        tenants.c.name
        == select(tenants.c.name)
        .where(tenants.c.name == bindparam("owner", type_=Text()))
        .with_for_update(skip_locked=True, key_share=True)
        .scalar_subquery()
    )
    .values(started_at=now())
)


def mark(connection: Connection, owner: str) -> None:
    """Record that a job of this tenant starts."""
    connection.execute(_MARK, {"owner": owner})


_SLOTS = select(jobs.c.owner, func.sum(jobs.c.slots)).where(_RUNNING).group_by(jobs.c.owner)
_RUNS = select(jobs.c.owner, func.count()).where(_RUNNING).group_by(jobs.c.owner)
_STARTS = select(tenants.c.name, tenants.c.started_at).where(tenants.c.started_at.is_not(None))


def standings(connection: Connection) -> dict[str, Standing]:
    """The `Standing` of every tenant that has or had a running job."""
    slots = {row[0]: int(row[1]) for row in connection.execute(_SLOTS)}
    starts = {row.name: row.started_at for row in connection.execute(_STARTS)}
    return {name: Standing(slots.get(name, 0), starts.get(name, 0.0)) for name in {*slots, *starts}}


def rooms(connection: Connection, owners: Iterable[str]) -> dict[str, int]:
    """How many more jobs each of these tenants may start now; tenants without such a quota are left out."""
    rows = connection.execute(quotas.BOUND, {"names": sorted(set(owners))}).all()
    runs = {row[0]: int(row[1]) for row in connection.execute(_RUNS)} if rows else {}
    found: dict[str, int] = {}
    for row in rows:
        if quotas.held(connection, row.name, None, row.gpu_hours) is not None:
            found[row.name] = 0
        elif row.max_running is not None:
            found[row.name] = max(0, row.max_running - runs.get(row.name, 0))
    return found
