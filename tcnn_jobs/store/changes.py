"""Every change of a job's status goes through here: the transition is checked, its events are counted, an end is
tallied and told to the job's webhook, all in the transaction of the change.

Transactions lock rows in one order, so that on PostgreSQL no two wait for each other: an idempotency key, the tenant,
jobs by ascending number, uploads, the tenant's use of the day, and tallies.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Row,
    Select,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now, upsert
from tcnn_jobs.database.engine import Database, due
from tcnn_jobs.database.schema import deliveries, jobs, tenants
from tcnn_jobs.errors import JobNotFound, WrongState
from tcnn_jobs.model.jobs import TERMINAL, TRANSITIONS, Delivery, Job, NewEvent, Status
from tcnn_jobs.model.naming import new_id, no_such, storable
from tcnn_jobs.store import needs
from tcnn_jobs.store.accounts import quotas

FIELDS = tuple(name for name in Job.model_fields if name not in ("queue_position", "waiting_for"))


def as_job(row: Row[Any], position: int | None = None, waiting_for: str | None = None) -> Job:
    """A row of the jobs table as the value that everybody else knows."""
    return Job(**{name: getattr(row, name) for name in FIELDS}, queue_position=position, waiting_for=waiting_for)


def find(connection: Connection, job: str, owner: str | None, *, lock: bool = False) -> Row[Any]:
    """A job's row; with `lock` nobody else changes it before this transaction ends. Raises `JobNotFound`."""
    row = None
    if storable(job) and (owner is None or storable(owner)):
        row = connection.execute(_by_id(owner is None, lock), {"job": job, "by": owner}).one_or_none()
    if row is None:
        raise JobNotFound(no_such("job", job, "jobs"))  # another tenant's looks the same from outside
    return row


@cache
def _by_id(any_owner: bool, lock: bool) -> Any:
    query = select(jobs).where(jobs.c.id == bindparam("job"))
    if not any_owner:
        query = query.where(jobs.c.owner == bindparam("by"))
    return query.with_for_update() if lock else query


def change(
    connection: Connection,
    row: Row[Any],
    to: Status | None,
    happened: Sequence[NewEvent],
    *,
    after: float = 0.0,
    worked_until: float | None = None,
    **values: Any,
) -> Row[Any]:
    """Move a locked job to another status (None: leave it) and write down what happened.

    A job that goes back to the queue is due `after` seconds from now. Its tenant is charged for the slots until now, or
    `worked_until` then. Jobs that wait for one that ends wait no more, or fail with it. Raises `WrongState` for a step
    that `TRANSITIONS` does not have.
    """
    if to is not None and to not in TRANSITIONS[Status(row.status)]:
        raise WrongState(f"{row.id}: is {row.status}, which cannot become {to}")
    changed = _change(connection, row, to, happened, after, values)
    ended = [changed] if to in TERMINAL else []
    if to is Status.SUCCEEDED:
        needs.met(connection, changed)
    elif to in TERMINAL:
        ended += _end_with_it(connection, changed)
    if to is not None and row.status == Status.RUNNING:
        until = changed.finished_at if to in TERMINAL else changed.not_before - after
        quotas.note_use(connection, row, until if worked_until is None else worked_until)
    _tally(connection, ended)
    return changed


def _end_with_it(connection: Connection, source: Row[Any]) -> list[Row[Any]]:
    """Jobs fail that wait for one that has failed or was cancelled, and those that wait for them."""
    ended: list[Row[Any]] = []
    waiting = [(number, source.number, source) for number in needs.waiting(connection, source)]
    heapq.heapify(waiting)
    while waiting:  # the lowest number first, so that they are locked in order: what waits for a job has a greater one
        number, _, source = heapq.heappop(waiting)
        for row in needs.lock(connection, [number]):
            message = f"{source.id} {needs.ended(source.status)}, and this job needs it; resume that one, then this one"
            told = {"code": "source_failed", "message": message}
            happened = [NewEvent(kind="failed", data=told)]
            failed = _change(connection, row, Status.FAILED, happened, 0.0, {"error": told, "unmet": 0})
            ended.append(failed)
            for more in needs.waiting(connection, failed):
                heapq.heappush(waiting, (more, failed.number, failed))
    return ended


def _change(
    connection: Connection,
    row: Row[Any],
    to: Status | None,
    happened: Sequence[NewEvent],
    after: float,
    values: dict[str, Any],
) -> Row[Any]:
    bound = {f"new_{name}": value for name, value in values.items()}
    if to is Status.QUEUED:
        bound["after"] = after
    statement = _move(to, tuple(sorted(values)))
    changed = connection.execute(statement, {"row": row.number, "more": len(happened), **bound}).one()
    record(connection, changed, happened)
    if to is Status.QUEUED and not after:
        due(connection)
    if to is Status.QUEUED and row.status in TERMINAL:
        changed = needs.note(connection, changed)
    if to is Status.SUCCEEDED:
        quotas.note_result(connection, changed)
    if to is not None and to in TERMINAL:
        needs.drop(connection, changed)
        if changed.webhook is not None:
            _announce(connection, changed)
    return changed


_RAN = case((and_(jobs.c.status == Status.RUNNING.value, now() > quotas.BEGAN), now() - quotas.BEGAN), else_=0.0)
"""Seconds since the process of the attempt that ends started."""


@cache
def _move(to: Status | None, columns: tuple[str, ...]) -> Any:
    """The UPDATE to this status that sets these columns. Building one takes longer than running it."""
    values: dict[str, Any] = {name: bindparam(f"new_{name}", type_=jobs.c[name].type) for name in columns}
    values["event_count"] = jobs.c.event_count + bindparam("more")
    if to is not None:
        values["status"] = to.value
        values.setdefault("ran", jobs.c.ran + _RAN)
    if to is Status.QUEUED:
        due = now() + bindparam("after", type_=Double())
        values |= {"not_before": due, "worker": None, "started_at": None, "heartbeat_at": None}
    elif to in TERMINAL:
        values |= {"finished_at": now(), "started_at": quotas.BEGAN}  # one that only waited has not started
    return update(jobs).where(jobs.c.number == bindparam("row")).values(values).returning(jobs)


_RECORD = insert(schema.events).values(
    job=bindparam("job"), seq=bindparam("seq"), at=now(), kind=bindparam("kind"), data=bindparam("data")
)


def record(connection: Connection, row: Row[Any], happened: Sequence[NewEvent]) -> None:
    """Write events; the row's `event_count` has already been raised by their number."""
    first = row.event_count - len(happened) + 1
    rows = [
        {"job": row.number, "seq": first + i, "kind": event.kind, "data": event.data}
        for i, event in enumerate(happened)
    ]
    if rows:
        connection.execute(_RECORD, rows if len(rows) > 1 else rows[0])


def _counter(row: Row[Any]) -> tuple[str, str, int]:
    """The row of `tallies` that a job which has ended is counted in."""
    return row.kind, row.status, row.number % schema.SHARDS


def _tally(connection: Connection, rows: Sequence[Row[Any]]) -> None:
    """Count jobs that have ended, in one order."""
    for row in sorted(rows, key=_counter):
        seconds = 0.0 if row.started_at is None else max(0.0, row.finished_at - row.started_at)
        kind, outcome, shard = _counter(row)
        values = {"kind": kind, "outcome": outcome, "shard": shard, "seconds": seconds}
        connection.execute(_count(connection.dialect.name), values)


@cache
def _count(dialect: str) -> Any:
    table = schema.tallies
    added = upsert(dialect, table).values(
        kind=bindparam("kind"),
        outcome=bindparam("outcome"),
        shard=bindparam("shard"),
        jobs=1,
        seconds=bindparam("seconds"),
    )
    return added.on_conflict_do_update(
        index_elements=[table.c.kind, table.c.outcome, table.c.shard],
        set_={"jobs": table.c.jobs + 1, "seconds": table.c.seconds + added.excluded.seconds},
    )


def _announce(connection: Connection, row: Row[Any]) -> None:
    told = as_job(row).model_dump(
        mode="json",
        include={"id", "kind", "status", "attempt", "created_at", "started_at", "finished_at", "result", "error"},
        exclude={"result": {"checkpoint": {"path"}, "files": {"__all__": {"path"}}}},  # where files lie is ours
    )
    connection.execute(
        insert(schema.deliveries).values(
            id=new_id("hook"),
            job=row.id,
            url=row.webhook,
            body={"type": f"job.{row.status}", "job": told},
            attempt=0,
            due_at=now(),
            tenant=row.owner,
        )
    )


_DUE = deliveries.c.due_at <= now()
_ANY_DUE = select(deliveries.c.id).where(_DUE).limit(1)
_HEAD = 500
_WHOSE = func.coalesce(deliveries.c.tenant, "")  # an older release did not say


def _in_turn(under_way: Mapping[str, int], each: int) -> Select[str]:
    """The ids of calls that are due, as tenants have their turns: of each tenant the oldest first.

    Of the `_HEAD` oldest alone, as all would take long to sort: whose turn it is not is left out before.
    """
    full = [tenant for tenant, calls in under_way.items() if calls >= each]
    head = select(deliveries.c.id, deliveries.c.due_at, _WHOSE.label("whose")).where(_DUE)
    head = head.where(_WHOSE.not_in(full)) if full else head
    first = head.order_by(deliveries.c.due_at).limit(_HEAD).subquery()
    has = case(under_way, value=first.c.whose, else_=0) if under_way else literal(0)
    turn = func.row_number().over(partition_by=first.c.whose, order_by=(first.c.due_at, first.c.id)) + has
    waiting = select(first.c.id, first.c.due_at, turn.label("turn")).subquery()
    return select(waiting.c.id).where(waiting.c.turn <= each).order_by(waiting.c.turn, waiting.c.due_at)


class Deliveries(Database):
    """Outbox of webhook calls that are due, delivered at least once: that of a worker that dies is made by another."""

    def due_deliveries(
        self, limit: int = 10, lease: float = 60, *, each: int = 10, under_way: Mapping[str, int] | None = None
    ) -> list[Delivery]:
        """Calls to make now; nobody else gets them within `lease` seconds. `attempt` counts from 1.

        Tenants take turns: the next call is one of the tenant that has the fewest, those `under_way` included, and no
        tenant gets more than `each` at once. So one whose receiver hangs delays no other's. There may be more for those
        who have got fewer: whoever has room for them asks again.
        """
        with self.reading() as connection:  # almost always there is nothing, and then nobody is kept waiting
            if connection.scalar(_ANY_DUE) is None:
                return []
            ids = connection.scalars(_in_turn(under_way or {}, each).limit(limit)).all()
        if not ids:
            return []
        with self.writing() as connection:
            # Others may have been faster.
            taken = select(deliveries.c.id).where(deliveries.c.id.in_(ids), _DUE).with_for_update(skip_locked=True)
            rows = connection.execute(
                update(deliveries)
                .where(deliveries.c.id.in_(connection.scalars(taken).all()))
                .values(attempt=deliveries.c.attempt + 1, due_at=now() + lease)
                .returning(deliveries)
            ).all()
            own = tenants.c.webhook_secret.is_not(None) & tenants.c.name.in_({row.tenant for row in rows if row.tenant})
            query = select(tenants.c.name, tenants.c.webhook_secret).where(own)
            secrets = {row.name: row.webhook_secret for row in connection.execute(query)}
        return [
            Delivery(
                id=row.id, job=row.job, url=row.url, body=row.body, attempt=row.attempt, tenant=row.tenant or "",
                secret=secrets.get(row.tenant),
            )
            for row in rows
        ]  # fmt: skip

    def delivered(self, id: str) -> None:
        """Remove a call that was made."""
        with self.writing() as connection:
            connection.execute(delete(deliveries).where(deliveries.c.id == id))

    def delivery_failed(self, id: str, retry_after: float | None) -> None:
        """Reschedule a call that failed, in so many seconds, or give it up (None)."""
        if retry_after is None:
            return self.delivered(id)
        with self.writing() as connection:
            connection.execute(update(deliveries).where(deliveries.c.id == id).values(due_at=now() + retry_after))
        return None
