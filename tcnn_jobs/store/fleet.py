"""Registry of workers: which are present, their versions, whether another could run a job that one failed, and leases:
duties such as housekeeping, which one process at a time holds, and another takes over when it is gone.
"""

from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Double,
    Integer,
    Row,
    Text,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    not_,
    or_,
    select,
)
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.dialects import now, upsert
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import has_status, jobs, leases, workers
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.model.operation import WorkerInfo, WorkerState
from tcnn_jobs.settings import LONGEST_LEASE
from tcnn_jobs.store import clocks
from tcnn_jobs.store.accounts.quotas import WAITS

HEARD_OF = 60.0
"""Seconds for which a silent worker still counts as one that may take a job; its lease, if that is longer."""
HOUSE = "house"
"""The lease of whoever does reaping, sweeping, purging and webhooks."""
KEPT = 86400.0
"""Seconds after which the row of a silent worker goes."""
ELSEWHERE = 30.0
"""Seconds for which a job that is due again is left to other workers than the one where it failed."""


def _heard_in(seconds: ColumnElement[float]) -> ColumnElement[bool]:
    """Whether a worker was heard of in so many seconds. When is not known of one whose heartbeat is still to come: the
    clock was set back since."""
    return and_(workers.c.heartbeat_at > now() - seconds, not_(clocks.to_come(workers.c.heartbeat_at)))


PRESENT: ColumnElement[bool] = _heard_in(
    case(
        (workers.c.lease > LONGEST_LEASE, LONGEST_LEASE),  # as one of an earlier release may say
        (workers.c.lease > HEARD_OF, workers.c.lease),
        else_=HEARD_OF,
    )
)
WIDEST: ColumnElement[int] = func.coalesce(workers.c.widest, workers.c.slots)
"""Slots of the largest job that a worker can run; an older release does not say how many those are."""
_DEAD = and_(workers.c.heartbeat_at < now() - KEPT, not_(PRESENT))
_LOAD = (
    select(
        jobs.c.worker,
        func.sum(jobs.c.slots).label("reserved"),
        func.sum(case((WAITS, 0), else_=jobs.c.slots)).label("busy"),
        func.sum(case((WAITS, 1), else_=0)).label("waiting"),
    )
    .where(has_status(Status.RUNNING))
    .group_by(jobs.c.worker)
)
_KEEPER = select(leases.c.holder).where(leases.c.name == HOUSE)
_WORKERS = select(workers, PRESENT.label("present")).where(not_(_DEAD)).order_by(workers.c.host, workers.c.name)
_SLOTS = select(workers.c.name, workers.c.slots).where(PRESENT).order_by(workers.c.name)
_AT_WORK = select(func.count()).select_from(workers).where(PRESENT)
_OTHER = and_(PRESENT, workers.c.name != bindparam("one", type_=Text()), bindparam("size", type_=Integer()) <= WIDEST)
_OTHERS = select(exists().where(_OTHER))
_AVOIDED = exists().where(
    jobs.c.id == bindparam("job", type_=Text()), jobs.c.avoid == workers.c.name, jobs.c.not_before > now() - ELSEWHERE
)
_ROOMY = (
    select(workers.c.name, workers.c.slots, WIDEST.label("widest"))
    .where(
        _OTHER,
        _heard_in(workers.c.lease),  # else it may have been killed
        workers.c.request_version >= bindparam("understood", type_=Integer()),
        not_(_AVOIDED),
    )
    .order_by(workers.c.name)
)


class Fleet(Database):
    """Reads and prunes the rows of workers, which their heartbeats write."""

    def count_workers(self) -> int:
        """Workers that were heard of lately."""
        with self.reading() as connection:
            return connection.scalar(_AT_WORK) or 0

    def versions(self) -> dict[str, int]:
        """The versions of workers that were heard of lately, and the newest requests that each understands."""
        with self.reading() as connection:
            rows = connection.execute(
                select(workers.c.version, func.min(workers.c.request_version).label("requests"))
                .where(PRESENT)
                .group_by(workers.c.version)
            )
            return {row.version: row.requests for row in rows}

    def workers(self) -> list[WorkerState]:
        """Every worker that was heard of in the last `KEPT` seconds and has not left properly, by host and name."""
        with self.reading() as connection:
            load = _load(connection)
            keeper = connection.scalar(_KEEPER)
            found = [(_as_worker(row), bool(row.present)) for row in connection.execute(_WORKERS)]
        return [
            WorkerState(
                info=info,
                present=present,
                keeps_house=present and info.name == keeper,
                busy=load.get(info.name, NOTHING).busy,
                waiting=load.get(info.name, NOTHING).waiting,
            )
            for info, present in found
        ]

    def room_elsewhere(self, job: Job, name: str) -> str | None:
        """Another worker that would take a job of this one's, and has enough free slots; None if there is none."""
        wanted = {"one": name, "size": job.slots, "understood": job.request_version, "job": job.id}
        with self.reading() as connection:
            rows = connection.execute(_ROOMY, wanted).all()
            load = _load(connection) if rows else {}
        free = ((row.name, room(row.slots, row.widest, load.get(row.name, NOTHING).reserved)) for row in rows)
        return next((name for name, left in free if left >= job.slots), None)

    def forget_dead_workers(self) -> int:
        """Rows of workers that nobody has heard of for `KEPT` seconds go; returns how many."""
        with self.reading() as connection:  # almost always there is none, and then nobody is kept waiting
            if connection.scalar(select(exists().where(_DEAD))) is not True:
                return 0
        with self.writing() as connection:
            return len(connection.execute(delete(workers).where(_DEAD).returning(workers.c.name)).all())

    def forget_worker(self, name: str) -> None:
        """Remove the row of a worker that has left."""
        with self.writing() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))


def heard(connection: Connection, seconds: float) -> list[WorkerInfo]:
    """Workers that were heard of in so many seconds, by name; `heartbeat_at` is here the age."""
    age = (now() - workers.c.heartbeat_at).label("age")
    query = select(workers, age).where(_heard_in(bindparam("most", type_=Double())))
    rows = connection.execute(query.order_by(workers.c.name), {"most": seconds})
    return [_as_worker(row).model_copy(update={"heartbeat_at": max(0.0, row.age)}) for row in rows]


def slots(connection: Connection) -> dict[str, tuple[int, int, int]]:
    """Slots of every worker that is present, how many of them its running jobs take, and how many jobs wait there."""
    load = _load(connection)
    rows = ((row, load.get(row.name, NOTHING)) for row in connection.execute(_SLOTS))
    return {row.name: (row.slots, own.busy, own.waiting) for row, own in rows}


class Load(NamedTuple):
    """What a worker's jobs take: slots that they have or wait for, slots that they have, and how many of them wait."""

    reserved: int
    busy: int
    waiting: int


NOTHING = Load(0, 0, 0)


def _load(connection: Connection) -> dict[str, Load]:
    return {row.worker: Load(*map(int, row[1:])) for row in connection.execute(_LOAD)}


def room(slots: int, widest: int, busy: int) -> int:
    """Slots that a worker can give to one job now, at least: where GPUs have several, the busy may be on one. Pure."""
    return widest - busy // (slots // widest)


def _as_worker(row: Row[Any]) -> WorkerInfo:
    return WorkerInfo.model_validate(row, from_attributes=True)


def others(connection: Connection, name: str, slots: int) -> bool:
    """Whether somebody else is there who can give so many slots to one job, free or not."""
    return bool(connection.scalar(_OTHERS, {"one": name, "size": slots}))


class Term(NamedTuple):
    """Answer to a request for a lease."""

    mine: bool
    left: float
    """Seconds until it ends, whosever it is."""


_LEFT = (leases.c.ends_at - now()).label("left")
# The clock may have been set back since it was given: then it would not end.
_SET_BACK = leases.c.ends_at > now() + leases.c.seconds + clocks.TOLERANCE  # a lease may have no end: no differences
# Its holder may have had a longer lease than whoever asks, even one without end, and be dead: its heartbeats tell.
_ASKED: Any = bindparam("for", type_=Double())
_LIVES = exists().where(workers.c.name == leases.c.holder, _heard_in(_ASKED))
_OLD = or_(leases.c.seconds > LONGEST_LEASE, leases.c.ends_at - leases.c.seconds <= now() - _ASKED)
_OVER = or_(leases.c.ends_at <= now(), _SET_BACK, and_(_OLD, not_(_LIVES)))
_HELD = select(leases.c.holder, _LEFT).where(leases.c.name == bindparam("lease"), ~_OVER)


class Leases(Database):
    """Whoever does something under a lease must be able to do it beside another, if a clock is set or a process was
    frozen; but it happens once almost always."""

    def hold(self, lease: str, holder: str, seconds: float) -> Term:
        """Acquire or renew a lease for so many seconds, if nobody else holds it.

        Nobody does who has neither renewed it nor, as a worker, been heard of for as long.
        """
        with self.reading() as connection:  # those who do not hold it keep nobody waiting
            row = connection.execute(_HELD, {"lease": lease, "for": seconds}).one_or_none()
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
    values: dict[str, Any] = {"holder": by, "seconds": _ASKED, "ends_at": now() + _ASKED}
    return (
        upsert(dialect, leases)
        .values(name=bindparam("name"), **values)
        .on_conflict_do_update(index_elements=[leases.c.name], set_=values, where=or_(leases.c.holder == by, _OVER))
        .returning(leases.c.holder)
    )
