"""Which jobs and uploads a job needs that has not ended: nobody deletes them meanwhile, and jobs are waited for.

A row of `needs` is there exactly while the job is queued or running: what is asked before a deletion is one look into
an index, however many jobs there are. It only names what is there and the job's owner's, for a request may contain any
text. `jobs.unmet` counts the jobs among them that have not ended, which a job that is queued waits for. Whoever ends
one of those counts it down, or ends the job with it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Text, bindparam, delete, exists, insert, literal_column, select, update

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import due
from tcnn_jobs.database.schema import jobs, needs, share_owner, uploads
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.jobs import Status

_ID = re.compile(r"(job|ds|ckpt|wts)_[0-9a-z]{8,40}")
_JOB = "job_"
_WAITED_FOR = (Status.QUEUED, Status.RUNNING)


def named(request: Any) -> list[str]:
    """The ids of jobs and uploads that a request names, wherever in it, sorted."""
    return sorted({text for text in _texts(request) if _ID.fullmatch(text)})


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]  # no recursion: a request may be deep
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)


_READ = ("job", "checkpoint", "weights", "dataset", "val")
"""Fields of a request, of its `finetune` and of each of its `against`, that name what the job reads."""


def _read(request: Any) -> set[str]:
    """What of a request the job reads: not what it only waits for, nor any other text that looks like an id."""
    parts = [request, request.get("finetune"), *(request.get("against") or ())]
    return {str(part[field]) for part in parts if isinstance(part, dict) for field in _READ if field in part}


_ADD = insert(needs).values(job=bindparam("job"), resource=bindparam("resource"))
_DROP = delete(needs).where(needs.c.job == bindparam("number"))
_IDS: Any = bindparam("ids", expanding=True)
# `share_owner` below: SQLite, which has no statistics, would rather look at all jobs of the owner.
# Shared with others that name the same rows, and with heartbeats; a deletion waits.
_UPLOADS = (
    select(uploads.c.id)
    .where(uploads.c.id.in_(_IDS), uploads.c.owner == bindparam("by"))
    .order_by(uploads.c.number)
    .with_for_update(read=True, key_share=True)
)
# Whoever ends one of these jobs waits, and then finds the one that needs it; or has ended it, and is seen here.
_SOURCES = (
    select(jobs.c.id, jobs.c.status)
    .where(jobs.c.id.in_(_IDS), share_owner == bindparam("by"))
    .order_by(jobs.c.number)
    .with_for_update(read=True, key_share=True)
)
_CALLED_JOBS = (
    select(jobs.c.name, jobs.c.request)
    .where(jobs.c.id.in_(_IDS), share_owner == bindparam("by"))
    .order_by(jobs.c.number)
)
_CALLED_UPLOADS = (
    select(uploads.c.name).where(uploads.c.id.in_(_IDS), uploads.c.owner == bindparam("by")).order_by(uploads.c.number)
)
_WAIT = update(jobs).where(jobs.c.number == bindparam("row")).values(unmet=bindparam("count")).returning(jobs)
_NEEDED = (
    select(jobs.c.id, jobs.c.status)
    .join(needs, needs.c.job == jobs.c.number)
    # From the resource to its jobs.
    .where(needs.c.resource == bindparam("resource"), share_owner == bindparam("by"))
    .limit(1)
)
_NEEDING = jobs.alias("needing")
NEEDED = exists().where(
    needs.c.resource == jobs.c.id,
    needs.c.job == _NEEDING.c.number,
    _NEEDING.c.owner + literal_column("''", Text) == jobs.c.owner,
)
"""Of a job, whether another one of its owner's that has not ended needs it."""
_WAITING = select(jobs.c.number).where(
    jobs.c.number.in_(select(needs.c.job).where(needs.c.resource == bindparam("resource"))),
    share_owner == bindparam("by"),
    jobs.c.status == Status.QUEUED.value,
    jobs.c.unmet > 0,
)
_STILL = (
    select(jobs)
    .where(
        jobs.c.number.in_(bindparam("numbers", expanding=True)),
        jobs.c.status == Status.QUEUED.value,
        jobs.c.unmet > 0,
    )
    .order_by(jobs.c.number)
    .with_for_update()
)


def note(connection: Connection, row: Row[Any]) -> Row[Any]:
    """Write down what a job needs that was queued just now; returns its row as it is then.

    Raises `WrongState` if a job that it needs has failed or was cancelled, and if something that it needs is gone, or
    another tenant's: what it reads, and unless it has begun before, what it only waits for. A job that has begun had
    waited for all of that to succeed, and such a job never ends otherwise.
    """
    unmet, there = 0, hold(connection, row.request, row.owner)
    required = _read(row.request) | (set() if row.claim else set(row.request.get("depends_on") or ()))
    for resource in named(row.request):
        found = there.get(resource)
        if found is None:
            if resource in required:
                raise WrongState(f"{resource}: is no longer there, and this job needs it; submit one that does not")
            continue
        if resource.startswith(_JOB):
            if found.status in (Status.FAILED, Status.CANCELLED):
                raise WrongState(f"{resource}: {ended(found.status)}, and {row.id} needs it; resume that one first")
            unmet += found.status in _WAITED_FOR
        connection.execute(_ADD, {"job": row.number, "resource": resource})
    return connection.execute(_WAIT, {"row": row.number, "count": unmet}).one() if unmet != row.unmet else row


def hold(connection: Connection, request: Any, owner: str) -> dict[str, Row[Any]]:
    """Rows of the owner's jobs and uploads that a request names, by id: nobody ends or deletes them before this
    transaction ends. Jobs are locked by their numbers, as whoever ends several does."""
    ids = named(request)
    sources, others = [id for id in ids if id.startswith(_JOB)], [id for id in ids if not id.startswith(_JOB)]
    found = [*connection.execute(_SOURCES, {"ids": sources, "by": owner})] if sources else []
    found += [*connection.execute(_UPLOADS, {"ids": others, "by": owner})] if others else []
    return {row.id: row for row in found}


def called(connection: Connection, request: Any, owner: str) -> list[str]:
    """What the owner calls the jobs and uploads that a request names, as far as they are there; a job without a name is
    called by its model."""
    bound = {"ids": named(request), "by": owner}
    if not bound["ids"]:
        return []
    sources = connection.execute(_CALLED_JOBS, bound)
    found = [row.name or str(row.request.get("model") or "") for row in sources]
    return [name for name in (*found, *connection.scalars(_CALLED_UPLOADS, bound)) if name]


def ended(status: str) -> str:
    """How a job ended that did not succeed, in words."""
    return "has failed" if status == Status.FAILED else "was cancelled"


def drop(connection: Connection, row: Row[Any]) -> None:
    """A job has ended and needs nothing any more."""
    if named(row.request):
        connection.execute(_DROP, {"number": row.number})


def waiting(connection: Connection, source: Row[Any]) -> Sequence[int]:
    """Numbers of the jobs that wait for one that has ended. Each is greater than that one's."""
    return connection.scalars(_WAITING, {"resource": source.id, "by": source.owner}).all()  # almost always none


def lock(connection: Connection, numbers: Sequence[int]) -> Sequence[Row[Any]]:
    """Those of these jobs that still wait, locked one after the other by number."""
    return connection.execute(_STILL, {"numbers": numbers}).all() if numbers else []


def met(connection: Connection, source: Row[Any]) -> None:
    """A job has succeeded. The last one that a job waits for makes it due."""
    for row in lock(connection, waiting(connection, source)):
        values: dict[str, Any] = {"unmet": row.unmet - 1} | ({"not_before": now()} if row.unmet == 1 else {})
        connection.execute(update(jobs).where(jobs.c.number == row.number).values(values))
        due(connection)


def waited_for(connection: Connection, numbers: Iterable[int]) -> dict[int, list[str]]:
    """The jobs that each of these jobs waits for, by its number."""
    source, job = jobs.alias("source"), jobs.alias("job")
    query = (
        select(needs.c.job, needs.c.resource)
        .join(source, source.c.id == needs.c.resource)
        .join(job, job.c.number == needs.c.job)
        .where(needs.c.job.in_(sorted(numbers)), source.c.owner == job.c.owner, source.c.status.in_(_WAITED_FOR))
        .order_by(needs.c.resource)
    )
    found: dict[int, list[str]] = {}
    for row in connection.execute(query):
        found.setdefault(row.job, []).append(row.resource)
    return found


def refuse_if_needed(connection: Connection, resource: str, owner: str) -> None:
    """Raise `WrongState` if a job of this owner that has not ended needs it. Its row must be locked or deleted."""
    found = connection.execute(_NEEDED, {"resource": resource, "by": owner}).first()
    if found is not None:
        raise WrongState(f"{resource}: {found.id} is {found.status} and needs it; cancel the job first, or wait for it")
