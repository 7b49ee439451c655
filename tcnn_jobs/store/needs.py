"""Which jobs and uploads a job needs that has not ended, so that nobody deletes them meanwhile.

A row of `needs` is there exactly while the job is queued or running: what is asked before a deletion is one look into
an index, however many jobs there are.
"""

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from tcnn_jobs.database.schema import jobs, needs, share_owner, uploads
from tcnn_jobs.errors import WrongState

_ID = re.compile(r"(job|ds|ckpt)_[0-9a-z]{8,40}")


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


_ADD = insert(needs).values(job=bindparam("job"), resource=bindparam("resource"))
_DROP = delete(needs).where(needs.c.job == bindparam("number"))
_HELD = {
    # Shared with others that name the same rows, and with a worker's heartbeats; a deletion waits.
    table: select(table.c.id).where(table.c.id == bindparam("resource")).with_for_update(read=True, key_share=True)
    for table in (jobs, uploads)
}
_NEEDED = (
    select(jobs.c.id, jobs.c.status)
    .join(needs, needs.c.job == jobs.c.number)
    # From the resource to its jobs: SQLite, which has no statistics, would rather look at all jobs of the owner.
    .where(needs.c.resource == bindparam("resource"), share_owner == bindparam("by"))
    .limit(1)
)


def note(connection: Connection, row: Row[Any]) -> None:
    """Write down what a job needs that was queued just now."""
    for resource in named(row.request):
        connection.execute(_HELD[jobs if resource.startswith("job_") else uploads], {"resource": resource})
        connection.execute(_ADD, {"job": row.number, "resource": resource})


def drop(connection: Connection, row: Row[Any]) -> None:
    """A job has ended and needs nothing any more."""
    if named(row.request):
        connection.execute(_DROP, {"number": row.number})


def refuse_if_needed(connection: Connection, resource: str, owner: str) -> None:
    """Raise `WrongState` if a job of this owner that has not ended needs it. Its row must be locked or deleted."""
    found = connection.execute(_NEEDED, {"resource": resource, "by": owner}).first()
    if found is not None:
        raise WrongState(f"{resource}: {found.id} is {found.status} and needs it; cancel the job first, or wait for it")
