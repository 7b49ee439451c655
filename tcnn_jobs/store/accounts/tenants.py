"""Tenants in the database: set quotas and webhook secrets, report usage."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Row, select, update

from tcnn_jobs.database import schema
from tcnn_jobs.database.engine import Database
from tcnn_jobs.model.accounts import Quotas, Tenant
from tcnn_jobs.model.identifiers import storable
from tcnn_jobs.store.accounts import audits, quotas

_COLUMNS = {"queued": "max_queued", "running": "max_running", "gpu_hours": "gpu_hours", "stored": "max_bytes"}
"""Quota → its column."""


class Tenants(Database):
    """The tenants: a row is created by the first job, upload, key or quota."""

    def set_quotas(self, tenant: str, **changes: float | None) -> Tenant:
        """Set some of a tenant's `Quotas` (None: unlimited), by name; creates the tenant unless it exists."""
        Quotas.model_validate(changes)
        return self._set(tenant, "tenant.set", {_COLUMNS[name]: value for name, value in changes.items()}, changes)

    def set_webhook_secret(self, tenant: str, secret: str | None) -> Tenant:
        """Set the secret that signs a tenant's webhooks, retries included; None is the service's own."""
        return self._set(tenant, "tenant.webhook_secret", {"webhook_secret": secret}, {"own": secret is not None})

    def _set(self, tenant: str, action: str, values: Mapping[str, Any], details: Mapping[str, Any]) -> Tenant:
        mine = schema.tenants.c.name == tenant
        with self.writing() as connection:
            quotas.know(connection, tenant)
            if values:
                connection.execute(update(schema.tenants).where(mine).values(**values))
            audits.note(connection, action, tenant, tenant, **details)
            row = connection.execute(select(schema.tenants).where(mine)).one()
            return _as_tenant(connection, row)

    def tenants(self, name: str | None = None) -> list[Tenant]:
        """List tenants with quotas and usage, sorted by name; with `name`, a list of that one, or empty."""
        if name is not None and not storable(name):
            return []
        query = select(schema.tenants).order_by(schema.tenants.c.name)
        if name is not None:
            query = query.where(schema.tenants.c.name == name)
        with self.reading() as connection:
            return [_as_tenant(connection, row) for row in connection.execute(query).all()]

    def check_room(self, tenant: str) -> None:
        """Raise `BytesExceeded` if a tenant's storage quota is used up."""
        with self.reading() as connection:
            quotas.admit_bytes(connection, tenant, 0)

    def forget_use(self) -> None:
        """Delete usage before the sliding window of `DAYS` days."""
        with self.writing() as connection:
            quotas.forget_use(connection)


def _as_tenant(connection: Connection, row: Row[Any]) -> Tenant:
    found = Quotas(**{name: getattr(row, column) for name, column in _COLUMNS.items()})
    return Tenant(
        name=row.name, created_at=row.created_at, quotas=found, use=quotas.used(connection, row.name),
        own_webhook_secret=row.webhook_secret is not None,
    )  # fmt: skip
