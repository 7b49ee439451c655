"""What workers do. Every write is fenced: it happens only while the job is running under this very claim."""

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Double, Integer, Row, Text, and_, bindparam, delete, false, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from tcnn_jobs.database.engine import Database, upsert
from tcnn_jobs.database.schema import events, finite, jobs, now, share_number, share_owner, workers
from tcnn_jobs.database.steps import Steps, is_wrong, mend
from tcnn_jobs.errors import LostClaim
from tcnn_jobs.model import Beat, Claim, Failure, Hold, Job, Kind, NewEvent, Result, Status, WorkerInfo
from tcnn_jobs.store import quotas, shares
from tcnn_jobs.store.changes import as_job, change, record

Wanted = tuple[ColumnElement[bool], ...]

QUARANTINE = 5
"""Workers that a job may cost in a row without getting farther. Those that are merely killed spread over all jobs."""


class Queue(Database):
    """Claiming jobs, holding them, and letting go of them."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._steps = Steps()
        self._looked = False
        self._spared_until = 0.0

    def claim(
        self, worker: str, kinds: Sequence[Kind] | None = None, *, slots: int = 1, later: int = 0, after: float = 0.0
    ) -> Job | None:
        """Of the due jobs of the highest priority, the oldest of the tenant whose turn it is (`shares`) is this
        worker's from now on; None if there is none.

        Jobs that need more than `slots` at once are passed over: they are for larger workers, or for idle ones. Those
        that need up to `later` are not once they have been due for `after` seconds. A look that holds nobody up says
        whose turn it is, then one UPDATE finds and takes the job. On PostgreSQL rows that others have locked are
        skipped, not waited for.
        """
        bound: dict[str, Any] = {"most": slots, "later": later, "after": after}
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
                taken = self._take(turn, wanted, {**bound, "by": worker})
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

    def heartbeat(self, info: WorkerInfo, beats: Sequence[Beat]) -> dict[Claim, Hold]:
        """Say that a worker lives and how its jobs are; hear of each claim whether it still holds its job.

        By claim and not by job: a worker may have lost a job and hold it again, so that two beats are of one job.
        """
        told = info.model_dump(mode="json", exclude={"name", "heartbeat_at"}) | {"heartbeat_at": now()}
        with self.writing() as connection:
            connection.execute(
                upsert(connection.dialect.name, workers)
                .values(name=info.name, **told)
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
        """An attempt failed: for good (None), or to be tried again after so many seconds."""
        told = failure.model_dump(mode="json")
        with self.writing() as connection:
            row = _held(_locked(connection, claim), claim)
            if row.cancel_requested:
                return as_job(_cancel(connection, row))
            if retry_after is None:
                return as_job(change(connection, row, Status.FAILED, [NewEvent(kind="failed", data=told)], error=told))
            happened = NewEvent(kind="retrying", data={**told, "after": retry_after})
            return as_job(change(connection, row, Status.QUEUED, [happened], after=retry_after, error=told))

    def cancelled(self, claim: Claim) -> Job:
        """The job's process is gone, as its owner wished."""
        with self.writing() as connection:
            return as_job(_cancel(connection, _held(_locked(connection, claim), claim)))

    def hand_back(self, claim: Claim) -> Job:
        """A worker that leaves puts its job back; that was no attempt."""
        with self.writing() as connection:
            row = _held(_locked(connection, claim), claim)
            if row.cancel_requested:
                return as_job(_cancel(connection, row))
            happened = NewEvent(kind="handed_back", data={"worker": claim.worker})
            return as_job(change(connection, row, Status.QUEUED, [happened], attempt=row.attempt - 1))

    def reap(self, lease: float) -> list[Job]:
        """Take jobs from workers that were silent for `lease` seconds by the database's clock. Many may call it.

        A job that has cost `QUARANTINE` workers in a row and got no farther is not tried again, whatever its attempts.

        When that clock has been set since the last call, nothing is taken for a lease: workers that live have then said
        so, by the new time. What a clock that was set back has left in the future is brought to the present.
        """
        if self._clock_was_set(lease):
            return []
        stale = select(jobs).where(jobs.c.status == Status.RUNNING, jobs.c.heartbeat_at < now() - lease)
        with self.reading() as connection:  # almost always there is nothing, and then nobody is kept waiting
            numbers = [row.number for row in connection.execute(stale.order_by(jobs.c.number))]
        reaped = []
        for number in numbers:
            with self.writing() as connection:
                query = stale.where(jobs.c.number == number).with_for_update(skip_locked=True)
                row = connection.execute(query).one_or_none()
                if row is not None:
                    reaped.append(as_job(_take_away(connection, row, lease)))
        return reaped

    def _clock_was_set(self, lease: float) -> bool:
        with self.reading() as connection:
            wall = connection.scalar(select(now())) or 0.0
            here = time.monotonic()
            stepped = self._steps.moved(wall, here)
            wrong = (stepped or not self._looked) and is_wrong(connection)
        if wrong:
            with self.writing() as connection:
                mend(connection)
        self._looked = True
        if stepped:
            self._spared_until = here + lease
        return here < self._spared_until

    def forget_worker(self, name: str) -> None:
        """A worker has left."""
        with self.writing() as connection:
            connection.execute(delete(workers).where(workers.c.name == name))


@cache
def _wanted(any_kind: bool) -> Wanted:
    """What a job must be that a worker takes, by `most`, `later`, `after`, and unless any kind will do `kinds`."""
    fits = jobs.c.slots <= bindparam("most", type_=Integer())
    waited = jobs.c.not_before <= now() - bindparam("after", type_=Double())
    large = and_(waited, jobs.c.slots <= bindparam("later", type_=Integer()))
    due: Wanted = (jobs.c.not_before <= now(), or_(fits, large))
    return due if any_kind else (*due, jobs.c.kind.in_(bindparam("kinds", expanding=True)))


@cache
def _claim(wanted: Wanted) -> Any:
    """The UPDATE of a claim; its parameters are those of `_wanted`, `by`, `level` and `tenant`."""
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
            worker=bindparam("by"),
            attempt=jobs.c.attempt + 1,
            claim=jobs.c.claim + 1,
            started_at=now(),
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
    values: dict[str, Any] = {"heartbeat_at": now(), "event_count": jobs.c.event_count + len(beat.events)}
    if beat.progress is not None:
        values["progress"] = beat.progress.model_dump(mode="json", exclude_none=True)
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
    record(connection, row, beat.events)
    return Hold.CANCEL if row.cancel_requested else Hold.HELD


_LOCKED = select(jobs).where(jobs.c.id == bindparam("job")).with_for_update()


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


def _take_away(connection: Connection, row: Row[Any], lease: float) -> Row[Any]:
    percent = _trained(row.progress)
    happened = NewEvent(kind="stalled", data={"worker": row.worker, **({"percent": percent} if percent else {})})
    if row.cancel_requested:
        return change(connection, row, Status.CANCELLED, [happened, NewEvent(kind="cancelled")])
    lost = in_a_row([*_stalls(connection, row), percent])
    if row.attempt < row.max_attempts and lost < QUARANTINE:
        return change(connection, row, Status.QUEUED, [happened])
    told = {
        "code": "worker_lost",
        "message": f"its worker was silent for {lease:g} s in attempt {row.attempt} of {row.max_attempts}",
    }
    if lost >= QUARANTINE:
        told = {
            "code": "quarantined",
            "message": f"{lost} workers in a row were lost with it and it got no farther, so it is not tried again; "
            "look at its log and its memory, then resume it",
        }
    return change(connection, row, Status.FAILED, [happened, NewEvent(kind="failed", data=told)], error=told)


def _trained(progress: dict[str, Any] | None) -> float:
    """How far training was, in percent; conversion and transfers count from 0, too, and are no progress here."""
    return float(progress.get("percent") or 0.0) if progress is not None and "epoch" in progress else 0.0


def _stalls(connection: Connection, row: Row[Any]) -> list[float]:
    """How far a job was whenever it lost its worker since its owner submitted or resumed it."""
    kinds = select(events.c.kind, events.c.data).where(events.c.job == row.number)
    rows = connection.execute(kinds.where(events.c.kind.in_(("stalled", "resumed"))).order_by(events.c.seq)).all()
    resumed = max((place for place, found in enumerate(rows) if found.kind == "resumed"), default=-1)
    return [float(found.data.get("percent", 0.0)) for found in rows[resumed + 1 :]]


def in_a_row(percents: Sequence[float]) -> int:
    """How often the last worker's loss was no farther on than any before it, itself included. Pure."""
    farthest, count = -1.0, 0
    for percent in percents:
        farthest, count = (percent, 1) if percent > farthest else (farthest, count + 1)
    return count
