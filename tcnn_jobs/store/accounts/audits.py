"""The audit log: a row for every change that somebody asked for, in the transaction of the change."""

from typing import Any

from sqlalchemy import Connection, bindparam, delete, false, insert, select

from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import audit
from tcnn_jobs.database.types import now
from tcnn_jobs.model.audit import AuditEntry, actor
from tcnn_jobs.model.identifiers import storable

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
                query = query.where(column == value if storable(value) else false())
        if after is not None:
            query = query.where(audit.c.number < after)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(audit.c.number.desc()).limit(limit + 1)).all()
        return [AuditEntry(**row._asdict()) for row in rows[:limit]], len(rows) > limit

    def forget_audit(self, days: float) -> None:
        """Remove entries that are older than so many days."""
        with self.writing() as connection:
            connection.execute(delete(audit).where(audit.c.at < now() - days * 86400))
