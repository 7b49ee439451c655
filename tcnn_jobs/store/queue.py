"""The worker's side of the queue: claim, heartbeat, finish. Writes are fenced: they need the job's current claim."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Connection,
    Double,
    Integer,
    Row,
    Text,
    and_,
    bindparam,
    case,
    false,
    func,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.dialects import finite, now, upsert
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import events, has_status, jobs, share_number, share_owner, workers
from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model.jobs import REQUEST_VERSION, Beat, Claim, Failure, Hold, Job, Kind, NewEvent, Result, Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import fleet
from tcnn_jobs.store.accounts import quotas, shares
from tcnn_jobs.store.changes import as_job, change, record
from tcnn_jobs.store.fleet import ELSEWHERE

Wanted = tuple[ColumnElement[bool], ...]


class Queue(Database):
    """Claims jobs, renews claims, and ends or returns jobs."""

    def claim(
        self,
        worker: str,
        kinds: Sequence[Kind] | None = None,
        *,
        slots: int = 1,
        later: int = 0,
        after: float = 0.0,
        understands: int = REQUEST_VERSION,
    ) -> Job | None:
        """Of the due jobs of the highest priority, the oldest of the tenant whose turn it is (`shares`) is this
        worker's from now on; None if there is none.

        Jobs that need more than `slots` at once are passed over: they are for larger workers, or for idle ones. Those
        that need up to `later` are not once they have been due for `after` seconds: they wait here for slots, at no
        charge. Those that failed here, where others could do them, are passed over for `ELSEWHERE` seconds.

        A look that holds nobody up says whose turn it is, then one UPDATE finds and takes the job. On PostgreSQL rows
        that others have locked are skipped, not waited for.

        Requests newer than `understands` are left to newer workers: while a service is brought up to date host by
        host, both share the queue.
        """
        bound: dict[str, Any] = {"by": worker, "most": slots, "later": later, "after": after}
        bound["understands"] = understands
        if kinds is not None:
            bound["kinds"] = list(kinds)
        wanted = _wanted(kinds is None)
        below = shares.ABOVE_ALL
        while True:
            with self.reading() as connection:
                turns = shares.turns(connection, below, wanted, bound)
            if not turns:
                return None
            for turn in turns:
                taken = self._take(turn, wanted, bound)
                if taken is not None:
                    return taken
            below = turns[0].priority  # others were faster

    def _take(self, turn: shares.Turn, wanted: Wanted, bound: dict[str, Any]) -> Job | None:
        """The tenant's oldest job that is wanted and nobody else's."""
        with self.writing() as connection:
            if turn.counted and not quotas.may_start(connection, turn.owner):
                return None
            place = {"level": turn.priority, "tenant": turn.owner}
            row = connection.execute(_claim(wanted), {**bound, **place}).one_or_none()
            if row is None:
                return None
            record(connection, row, [NewEvent(kind="started", data={"attempt": row.attempt, "worker": bound["by"]})])
            shares.mark(connection, turn.owner)
        return as_job(row)

    def running_at(self, worker: str) -> list[Job]:
        """Jobs that this worker has claimed and that have not ended, whether or not it has heard of it."""
        with self.reading() as connection:
            return [as_job(row) for row in connection.execute(_RUNNING_AT, {"by": worker})]

    def heartbeat(self, info: WorkerInfo, beats: Sequence[Beat]) -> dict[Claim, Hold]:
        """Heartbeat of a worker: renew its claims, store their progress; returns whether each claim still holds.

        By claim and not by job: a worker may have lost a job and hold it again, so that two beats are of one job. One
        that did not hear whether its call arrived may repeat it, and says so (`Beat.told`): no event occurs twice.
        """
        told = info.model_dump(mode="json", exclude={"name", "heartbeat_at", "started_at"}) | {"heartbeat_at": now()}
        with self.writing() as connection:
            connection.execute(
                upsert(connection.dialect.name, workers)
                .values(name=info.name, started_at=now(), **told)
                .on_conflict_do_update(index_elements=[workers.c.name], set_=told)
            )
            # In one order, so that two transactions never wait for each other.
            order = sorted(beats, key=lambda beat: (beat.claim.job, beat.claim.number))
            return {beat.claim: _beat(connection, beat) for beat in order}

    def finish(self, claim: Claim, result: Result) -> Job:
        """Publish a result: succeeded, or cancelled if that was asked for before.

        A worker that did not hear whether its call arrived may repeat it: nothing happens twice.
        """
        told = finite(result.model_dump(mode="json"))
        with self.writing() as connection:
            row = _locked(connection, claim)
            if row is not None and row.status == Status.SUCCEEDED and _is(row, claim) and row.result == told:
                return as_job(row)
            row = _held(row, claim)
            if row.cancel_requested:
                return as_job(_cancel(connection, row))
            return as_job(change(connection, row, Status.SUCCEEDED, [NewEvent(kind="succeeded")], result=told))

    def fail(self, claim: Claim, failure: Failure, retry_after: float | None = None) -> Job:
        """An attempt failed: for good (None), or to be tried again after so many seconds.

        If there is another worker that could do it, this one leaves it to others for a while.
        """
        told = failure.model_dump(mode="json")
        with self.writing() as connection:
            row = _held(_locked(connection, claim), claim)
            if row.cancel_requested:
                return as_job(_cancel(connection, row))
            if retry_after is None:
                return as_job(change(connection, row, Status.FAILED, [NewEvent(kind="failed", data=told)], error=told))
            happened = NewEvent(kind="retrying", data={**told, "after": retry_after})
            avoid = claim.worker if fleet.others(connection, claim.worker, row.slots) else None
            return as_job(
                change(connection, row, Status.QUEUED, [happened], after=retry_after, error=told, avoid=avoid)
            )

    def cancelled(self, claim: Claim) -> Job:
        """The job's process is gone, as its owner wished."""
        with self.writing() as connection:
            return as_job(_cancel(connection, _held(_locked(connection, claim), claim)))

    def hand_back(self, claim: Claim, to: str | None = None) -> Job:
        """Put a job back: its worker leaves, or has only let it wait, and the worker `to` has room. No attempt."""
        with self.writing() as connection:
            row = _held(_locked(connection, claim), claim)
            if row.cancel_requested:
                return as_job(_cancel(connection, row))
            values: dict[str, Any] = {"attempt": row.attempt - 1}
            happened = NewEvent(kind="handed_back", data={"worker": claim.worker})
            if to is not None:
                happened = NewEvent(kind="handed_on", data={"worker": claim.worker, "to": to})
                values["avoid"] = None  # else a worker where it failed long ago would leave it alone again
            return as_job(change(connection, row, Status.QUEUED, [happened], **values))


@cache
def _wanted(any_kind: bool) -> Wanted:
    """What a job must be that the worker `by` takes, with `most`, `later`, `after`, `understands`, and unless any will
    do `kinds`."""
    fits = jobs.c.slots <= bindparam("most", type_=Integer())
    elsewhere = jobs.c.not_before > now() - ELSEWHERE
    avoided = and_(jobs.c.avoid == bindparam("by", type_=Text()), elsewhere)
    waited = jobs.c.not_before <= now() - bindparam("after", type_=Double())
    large = and_(waited, jobs.c.slots <= bindparam("later", type_=Integer()))
    due: Wanted = (
        jobs.c.unmet == 0,
        jobs.c.not_before <= now(),
        or_(fits, large),
        or_(jobs.c.avoid.is_(None), not_(avoided)),
        jobs.c.request_version <= bindparam("understands", type_=Integer()),
    )
    return due if any_kind else (*due, jobs.c.kind.in_(bindparam("kinds", expanding=True)))


@cache
def _claim(wanted: Wanted) -> Any:
    """The UPDATE of a claim; its parameters are those of `_wanted`, `level` and `tenant`."""
    first = (
        select(jobs.c.number)
        .where(
            shares.QUEUED,
            jobs.c.priority == bindparam("level", type_=Integer()),
            share_owner == bindparam("tenant", type_=Text()),
            *wanted,
        )
        .order_by(share_number)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return (
        update(jobs)
        .where(jobs.c.number == first.scalar_subquery(), jobs.c.status == Status.QUEUED)
        .values(
            status=Status.RUNNING,
            worker=bindparam("by", type_=Text()),
            attempt=jobs.c.attempt + 1,
            claim=jobs.c.claim + 1,
            started_at=now(),
            waiting_claim=case((jobs.c.slots > bindparam("most", type_=Integer()), jobs.c.claim + 1)),
            heartbeat_at=now(),
            finished_at=None,
            progress=None,
            error=None,
            cancel_requested=false(),
            event_count=jobs.c.event_count + 1,
        )
        .returning(jobs)
    )


def _beat(connection: Connection, beat: Beat) -> Hold:
    happened = _unrecorded(connection, beat)
    values: dict[str, Any] = {"heartbeat_at": now(), "event_count": jobs.c.event_count + len(happened)}
    if beat.progress is not None:
        values["progress"] = beat.progress.model_dump(mode="json", exclude_none=True)
    if beat.ran is not None:
        values |= {"started_at": case((quotas.WAITS, now() - beat.ran), else_=jobs.c.started_at), "waiting_claim": None}
    row = connection.execute(
        update(jobs)
        .where(
            jobs.c.id == beat.claim.job,
            jobs.c.status == Status.RUNNING,
            jobs.c.worker == beat.claim.worker,
            jobs.c.claim == beat.claim.number,
        )
        .values(values)
        .returning(jobs.c.number, jobs.c.event_count, jobs.c.cancel_requested)
    ).one_or_none()
    if row is None:
        return Hold.LOST
    record(connection, row, happened)
    return Hold.CANCEL if row.cancel_requested else Hold.HELD


def _unrecorded(connection: Connection, beat: Beat) -> Sequence[NewEvent]:
    """The events of a beat that the job does not have yet."""
    if beat.told is None or not beat.events:
        return beat.events
    # The earlier call may not have ended yet.
    row = connection.execute(_TO_BEAT, {"job": beat.claim.job}).one_or_none()
    recorded = 0 if row is None else connection.scalar(_TOLD, {"row": row.number}) or 0
    return beat.events[max(0, recorded - beat.told) :]


_RUNNING_AT = (
    select(jobs)
    .where(has_status(Status.RUNNING), jobs.c.worker == bindparam("by", type_=Text()))
    .order_by(jobs.c.number)
)
_OF = events.c.job == bindparam("row")
_STARTED = select(func.max(events.c.seq)).where(_OF, events.c.kind == "started").scalar_subquery()
# A job that runs has only this event of anybody but its worker.
_TOLD = select(func.count()).where(_OF, events.c.seq > _STARTED, events.c.kind != "cancel_requested")
"""How many events of a job's newest claim its worker has told."""
_JOB = select(jobs).where(jobs.c.id == bindparam("job"))
_LOCKED, _TO_BEAT = _JOB.with_for_update(), _JOB.with_for_update(key_share=True)


def _locked(connection: Connection, claim: Claim) -> Row[Any] | None:
    return connection.execute(_LOCKED, {"job": claim.job}).one_or_none()


def _is(row: Row[Any], claim: Claim) -> bool:
    return row.worker == claim.worker and row.claim == claim.number


def _held(row: Row[Any] | None, claim: Claim) -> Row[Any]:
    if row is None or row.status != Status.RUNNING or not _is(row, claim):
        found = "is gone" if row is None else f"is {row.status} at claim {row.claim}"
        raise LostClaim(f"{claim.job}: {found}, so claim {claim.number} of {claim.worker} changes nothing any more")
    return row


def _cancel(connection: Connection, row: Row[Any]) -> Row[Any]:
    return change(connection, row, Status.CANCELLED, [NewEvent(kind="cancelled")])
