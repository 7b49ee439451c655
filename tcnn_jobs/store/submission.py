"""The owner's side of the queue: submit, read, cancel, resume and delete jobs."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update

from tcnn_jobs.database import schema
from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import due
from tcnn_jobs.database.schema import jobs, keys
from tcnn_jobs.errors import StoreUnavailable, WrongState
from tcnn_jobs.model import naming
from tcnn_jobs.model.jobs import TERMINAL, Event, IdempotencyKey, Job, NewEvent, NewJob, Status
from tcnn_jobs.model.naming import Labels, new_id, storable
from tcnn_jobs.store import needs
from tcnn_jobs.store.accounts import ledger, quotas
from tcnn_jobs.store.changes import as_job, change, find, record
from tcnn_jobs.store.reading.listing import Jobs, Listing

_LAST = 2**31 - 1  # no event has a higher number; a database would refuse to compare with one

_ENQUEUE = (
    insert(jobs)
    .values(
        **{name: bindparam(name) for name in ("id", *NewJob.model_fields, "words")},
        status=Status.QUEUED,
        attempt=0,
        claim=0,
        created_at=now(),
        not_before=now(),
        cancel_requested=False,
        event_count=1,
    )
    .returning(jobs)
)


class Submission(Listing):
    """Jobs as their owners see them. `owner=None` looks at everybody's."""

    def enqueue(self, new: NewJob, key: IdempotencyKey | None = None) -> Job:
        """Submit a job; it is on disk when this returns.

        With a key that was used before, the job that it made then; raises `IdempotencyMismatch` if the request was
        another one, `QuotaExceeded`, and `WrongState` if a job that it needs has failed or was cancelled, or if
        something that it needs was deleted meanwhile.
        """
        identifier = new_id("job")
        with self.writing() as connection:
            if key is not None:
                winner = ledger.remember(connection, key, identifier)
                if winner != identifier:
                    row = find(connection, winner, None)
            if key is None or winner == identifier:
                quotas.admit_job(connection, new.owner)
                given = new.model_dump(mode="json")
                called = needs.called(connection, new.request, new.owner)
                told = naming.words(identifier, new.kind, new.request, given, called)
                row = connection.execute(_ENQUEUE, {"id": identifier, **given, "words": told}).one()
                record(connection, row, [NewEvent(kind="queued")])
                row = needs.note(connection, row)
                due(connection)
                ledger.note(connection, "job.submit", identifier, row.owner, kind=row.kind)
        return self._placed(row)

    def replay(self, key: IdempotencyKey) -> str | None:
        """What a POST with this key has made; None if there was none; raises `IdempotencyMismatch`."""
        with self.reading() as connection:
            return ledger.recall(connection, key)

    def get(self, job: str, owner: str | None = None) -> Job:
        """One job and its place in the queue; raises `JobNotFound`."""
        with self.reading() as connection:
            return self._places.placed(connection, [find(connection, job, owner)])[0]

    def cancel(self, job: str, owner: str | None = None, key: IdempotencyKey | None = None) -> Job:
        """Cancel a queued job at once, or ask a running one to stop; raises `WrongState` if it has ended.

        With a key that has done it before nothing is done, and the job is returned as it is.
        """
        with self.writing() as connection:
            first = _is_first(connection, key, job, owner)
            row = find(connection, job, owner, lock=True)
            if first:
                before, row = row, _cancelled(connection, row)
                if row is not before:
                    ledger.note(connection, "job.cancel", job, row.owner)
        return self._placed(row)

    def resume(self, job: str, owner: str | None = None, key: IdempotencyKey | None = None) -> Job:
        """A failed or cancelled job is queued again with all its attempts; raises `WrongState` for any other.

        Raises `QuotaExceeded` and `WrongState` as a submission does.
        With a key that has done it before nothing is done, and the job is returned as it is.
        """
        with self.writing() as connection:
            first, known = _is_first(connection, key, job, owner), find(connection, job, owner)
            if first:
                quotas.lock_queue(connection, known.owner)
                needs.hold(connection, known.request, known.owner)
            row = find(connection, job, owner, lock=True)
            if first:
                if row.status not in (Status.FAILED, Status.CANCELLED):
                    raise WrongState(f"{job}: is {row.status}; only a failed or cancelled job can be resumed")
                quotas.admit_job(connection, row.owner)
                fresh: dict[str, Any] = {"attempt": 0, "ran": 0.0, "avoid": None, "error": None}
                fresh |= {"cancel_requested": False, "finished_at": None}
                row = change(connection, row, Status.QUEUED, [NewEvent(kind="resumed")], **fresh)
                ledger.note(connection, "job.resume", job, row.owner)
        return self._placed(row)

    def label(self, job: str, owner: str | None, new: Labels, key: IdempotencyKey | None = None) -> Job:
        """Call a job something else, whatever its status; what `new` leaves out stays.

        Saying the same again changes nothing. With a key that has done it before nothing is done, and the job is
        returned as it is. Raises `JobNotFound`.
        """
        with self.writing() as connection:
            first = _is_first(connection, key, job, owner)
            row = find(connection, job, owner, lock=True)
            now_is = {name: getattr(row, name) for name in Labels.model_fields}
            wanted = now_is | new.given()
            if first and wanted != now_is:
                called = naming.called_before(row.words or "", row.id, row.kind, row.request, now_is)
                called += needs.called(connection, row.request, row.owner)
                told = naming.words(row.id, row.kind, row.request, wanted, dict.fromkeys(called))
                changed = update(jobs).where(jobs.c.number == row.number).values(**wanted, words=told).returning(jobs)
                row = connection.execute(changed).one()
                ledger.note(connection, "job.label", job, row.owner)
        return self._placed(row)

    def delete(self, job: str, owner: str | None = None) -> Job:
        """Remove a job that has ended, its events and its key; returns what it was.

        Raises `WrongState` if it has not ended, or while another one that has not needs its checkpoint.
        """
        with self.writing() as connection:
            row = find(connection, job, owner, lock=True)
            if row.status not in TERMINAL:
                raise WrongState(f"{job}: is {row.status}; cancel it before deleting it")
            needs.refuse_if_needed(connection, row.id, row.owner)
            connection.execute(delete(jobs).where(jobs.c.number == row.number))
            connection.execute(delete(keys).where(keys.c.resource == job))
            connection.execute(delete(schema.shares).where(schema.shares.c.job == job))
            quotas.drop(connection, job)
            ledger.note(connection, "job.delete", job, row.owner)
            return as_job(row)

    def events(self, job: str, owner: str | None = None, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened to a job after the event number `after`; raises `JobNotFound`."""
        table = schema.events
        with self.reading() as connection:
            number = find(connection, job, owner).number
            rows = connection.execute(
                select(table.c.seq, table.c.at, table.c.kind, table.c.data)
                .where(table.c.job == number, table.c.seq > min(after, _LAST))
                .order_by(table.c.seq)
                .limit(limit)
            ).all()
        return [Event(seq=row.seq, at=row.at, kind=row.kind, data=row.data) for row in rows]

    def starts(self, job: str, owner: str | None = None) -> list[Event]:
        """The `started` events of a job, the first of its first claim, and so on; raises `JobNotFound`."""
        table = schema.events
        with self.reading() as connection:
            number = find(connection, job, owner).number
            query = select(table.c.seq, table.c.at, table.c.kind, table.c.data).order_by(table.c.seq)
            rows = connection.execute(query.where(table.c.job == number, table.c.kind == "started")).all()
        return [Event(seq=row.seq, at=row.at, kind=row.kind, data=row.data) for row in rows]

    def count_events(self, job: str, kind: str) -> int:
        """How often this has happened to a job; raises `JobNotFound`."""
        table = schema.events
        with self.reading() as connection:
            number = find(connection, job, None).number
            query = select(func.count()).where(table.c.job == number, table.c.kind == kind)
            return connection.scalar(query) or 0

    def expired(self, before_days: float | None, limit: int = 100) -> Jobs:
        """Jobs that ended more than so many days ago by the database's clock (None: all that ended), oldest first.

        Those whose checkpoint another job of their owner's still needs are left out.
        """
        query = select(jobs).where(jobs.c.status.in_(sorted(TERMINAL)), ~needs.NEEDED)
        if before_days is not None:
            query = query.where(jobs.c.finished_at < now() - before_days * 86400)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(jobs.c.finished_at, jobs.c.number).limit(limit)).all()
        return [as_job(row) for row in rows]

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of these identifiers that are jobs or uploads."""
        wanted = sorted({identifier for identifier in ids if storable(identifier)})
        found: set[str] = set()
        with self.reading() as connection:
            for start in range(0, len(wanted), 500):  # databases bound the number of values in a statement
                part = wanted[start : start + 500]
                for table in (jobs, schema.uploads):
                    found.update(connection.scalars(select(table.c.id).where(table.c.id.in_(part))))
        return found

    def _placed(self, row: Row[Any]) -> Job:
        """A job that was changed just now. What was done is done, even if nobody can say at which place it stands."""
        try:
            with self.reading() as connection:
                return self._places.placed(connection, [row])[0]
        except StoreUnavailable:
            return as_job(row)


def _is_first(connection: Connection, key: IdempotencyKey | None, job: str, owner: str | None) -> bool:
    """Keep the key, before the job is locked; False if it was kept before. Raises `JobNotFound` (and keeps none)."""
    if key is None:
        return True
    find(connection, job, owner)
    return ledger.is_first(connection, key, job)


def _cancelled(connection: Connection, row: Row[Any]) -> Row[Any]:
    if row.status == Status.QUEUED:
        return change(connection, row, Status.CANCELLED, [NewEvent(kind="cancelled")])
    if row.status == Status.RUNNING and not row.cancel_requested:
        return change(connection, row, None, [NewEvent(kind="cancel_requested")], cancel_requested=True)
    if row.status in (Status.SUCCEEDED, Status.FAILED):
        raise WrongState(f"{row.id}: is {row.status}; only a queued or running job can be cancelled")
    return row
