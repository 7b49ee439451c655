"""Ledger of requests, kept in the transaction of what they change: idempotency keys of POSTs, and the audit log.

So what has happened is in it, and what was refused or rolled back is not.
"""

from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select

from tcnn_jobs.database.dialects import is_text, now, upsert
from tcnn_jobs.database.engine import PORTION, Database
from tcnn_jobs.database.schema import audit, keys
from tcnn_jobs.errors import IdempotencyMismatch
from tcnn_jobs.model.jobs import IdempotencyKey
from tcnn_jobs.model.operation import AuditEntry, actor


def recall(connection: Connection, key: IdempotencyKey) -> str | None:
    """What was made under a key; None if nothing was. Raises `IdempotencyMismatch`."""
    row = connection.execute(select(keys).where(keys.c.owner == key.owner, keys.c.key == key.key)).one_or_none()
    if row is None:
        return None
    if row.digest != key.digest:
        raise IdempotencyMismatch("Idempotency-Key: was used for another request; use a new key for a new request")
    return str(row.resource)


def remember(connection: Connection, key: IdempotencyKey, resource: str) -> str:
    """Keep what is made under a key; returns the resource of whoever was first. Raises `IdempotencyMismatch`."""
    return _earlier(connection, key, resource) or resource


def is_first(connection: Connection, key: IdempotencyKey, resource: str) -> bool:
    """Keep the key with what it makes; False if it was kept before. Raises `IdempotencyMismatch`."""
    return _earlier(connection, key, resource) is None


def _earlier(connection: Connection, key: IdempotencyKey, resource: str) -> str | None:
    """Keep the key, or return the resource that it was kept with before."""
    add = (
        upsert(connection.dialect.name, keys)
        .values(**key._asdict(), resource=resource, created_at=now())
        .on_conflict_do_nothing(index_elements=[keys.c.owner, keys.c.key])
        .returning(keys.c.key)
    )
    # Whoever comes second waits here until the first has committed, and then reads what that one has made; unless it
    # was deleted in between.
    while connection.execute(add).one_or_none() is None:
        if (earlier := recall(connection, key)) is not None:
            return earlier
    return None


_FIELDS = tuple(AuditEntry.model_fields)
_NOTE = insert(audit).values(
    at=now(), **{name: bindparam(name) for name in _FIELDS if name not in ("number", "at", "details")},
    details=bindparam("details", type_=audit.c.details.type),
)  # fmt: skip


def note(connection: Connection, action: str, resource: str, tenant: str, **details: Any) -> None:
    """Write an audit entry: an action on a resource of a tenant, by the current actor. Nothing without an actor."""
    who = actor()
    if who is not None:
        row = {"action": action, "resource": resource, "tenant": tenant, "details": details}
        connection.execute(_NOTE, {**row, "by": who.tenant, "key": who.key, "request": who.request})


class Audits(Database):
    """Read and prune the audit log."""

    def audit(
        self, *, tenant: str | None = None, key: str | None = None, after: int | None = None, limit: int = 100
    ) -> tuple[list[AuditEntry], bool]:
        """A page of the log: newest first, `limit` entries older than the number `after`; and whether more follow."""
        query = select(audit)
        for column, value in ((audit.c.tenant, tenant), (audit.c.key, key)):
            if value is not None:
                query = query.where(is_text(column, value))
        if after is not None:
            query = query.where(audit.c.number < after)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(audit.c.number.desc()).limit(limit + 1)).all()
        return [AuditEntry(**row._asdict()) for row in rows[:limit]], len(rows) > limit

    def forget_audit(self, days: float) -> bool:
        """Remove entries that are older than so many days, at most `PORTION`; returns whether there may be more."""
        old = select(audit.c.number).where(audit.c.at < now() - days * 86400).order_by(audit.c.at).limit(PORTION)
        with self.writing() as connection:
            return connection.execute(delete(audit).where(audit.c.number.in_(old))).rowcount == PORTION
