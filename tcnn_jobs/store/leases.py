"""Leases: one process at a time holds a duty such as housekeeping; when it is gone, another takes over."""

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Double, Text, bindparam, delete, or_, select

from tcnn_jobs.database.engine import Database, upsert
from tcnn_jobs.database.schema import leases
from tcnn_jobs.database.steps import TOLERANCE
from tcnn_jobs.database.types import now


class Term(NamedTuple):
    """Answer to a request for a lease."""

    mine: bool
    left: float
    """Seconds until it ends, whosever it is."""


_LEFT = (leases.c.ends_at - now()).label("left")
# The clock may have been set back since it was given: then it would not end.
_OVER = or_(leases.c.ends_at <= now(), leases.c.ends_at > now() + leases.c.seconds + TOLERANCE)
_HELD = select(leases.c.holder, _LEFT).where(leases.c.name == bindparam("lease"), ~_OVER)


class Leases(Database):
    """Whoever does something under a lease must be able to do it beside another, if a clock is set or a process was
    frozen; but it happens once almost always."""

    def hold(self, lease: str, holder: str, seconds: float) -> Term:
        """Acquire or renew a lease for so many seconds, if nobody else holds it."""
        with self.reading() as connection:  # those who do not hold it keep nobody waiting
            row = connection.execute(_HELD, {"lease": lease}).one_or_none()
        if row is not None and row.holder != holder:
            return Term(False, row.left)
        values = {"name": lease, "by": holder, "for": seconds}
        with self.writing() as connection:
            taken = connection.execute(_take(connection.dialect.name), values).one_or_none()
        return Term(taken is not None, seconds)  # else another was faster: its lease has just begun

    def give_up(self, holder: str) -> None:
        """Release all leases of a process that leaves."""
        with self.reading() as connection:
            if connection.scalar(select(leases.c.name).where(leases.c.holder == holder).limit(1)) is None:
                return
        with self.writing() as connection:
            connection.execute(delete(leases).where(leases.c.holder == holder))


@cache
def _take(dialect: str) -> Any:
    by: Any = bindparam("by", type_=Text())
    seconds: Any = bindparam("for", type_=Double())
    values: dict[str, Any] = {"holder": by, "seconds": seconds, "ends_at": now() + seconds}
    return (
        upsert(dialect, leases)
        .values(name=bindparam("name"), **values)
        .on_conflict_do_update(index_elements=[leases.c.name], set_=values, where=or_(leases.c.holder == by, _OVER))
        .returning(leases.c.holder)
    )
