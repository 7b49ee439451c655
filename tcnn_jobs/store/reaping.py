"""Reap stalled jobs: return those of silent workers to the queue, and fail those that lose worker after worker.

Times in rows are by the database's clock, which somebody may set (`clocks`): then nothing is reaped before every worker
that lives has said so by the new time.
"""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import events, jobs
from tcnn_jobs.model.jobs import Job, NewEvent, Status
from tcnn_jobs.store import clocks, fleet
from tcnn_jobs.store.accounts import quotas
from tcnn_jobs.store.changes import as_job, change

QUARANTINE = 5
"""Workers that a job may cost in a row without getting farther. Those that are merely killed spread over all jobs."""


class Reaping(Database):
    """What is done with jobs whose workers are gone."""

    def __init__(self, url: str, *, wait: float = 5.0) -> None:
        super().__init__(url, wait=wait)
        self._steps = clocks.Steps()
        self._right = False
        self._spared_until = 0.0

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
            self._right = self._right and not stepped
            wrong = not self._right and clocks.is_wrong(connection)
        if wrong:
            for times in clocks.MENDED:
                with self.writing() as connection:  # each by itself, so that it holds rows of one kind only
                    times.mend(connection)
        self._right = not wrong
        if stepped:
            self._spared_until = here + lease
        return here < self._spared_until


def _take_away(connection: Connection, row: Row[Any], lease: float) -> Row[Any]:
    percent = _trained(row.progress)
    happened = NewEvent(kind="stalled", data={"worker": row.worker, **({"percent": percent} if percent else {})})
    # Not the silence, in which nothing may have run: neither for the job's time nor for its tenant's hours.
    began = quotas.began_at(row)
    ran: dict[str, Any] = {
        "ran": row.ran + (0.0 if began is None else max(0.0, row.heartbeat_at - began)),
        "worked_until": row.heartbeat_at,
    }
    if row.cancel_requested:
        return change(connection, row, Status.CANCELLED, [happened, NewEvent(kind="cancelled")], **ran)
    lost = in_a_row([*_stalls(connection, row), percent])
    if row.attempt < row.max_attempts and lost < QUARANTINE:
        avoid = row.worker if fleet.others(connection, row.worker, row.slots) else None  # it may come back
        return change(connection, row, Status.QUEUED, [happened], avoid=avoid, **ran)
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
    return change(connection, row, Status.FAILED, [happened, NewEvent(kind="failed", data=told)], error=told, **ran)


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
