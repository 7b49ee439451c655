"""Tenants and their quotas, enforced inside the transactions that use them: submit, resume, upload, start a job.

Where two could pass together what only one of them may, the tenant's row is locked first, before any job's
(`changes`); tenants without that quota lock nothing.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from sqlalchemy import BigInteger, Connection, Row, bindparam, case, delete, func, insert, select, update

from tcnn_jobs.database.dialects import is_text, now, upsert
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import SHARDS, has_status, jobs, stored, tenants, usage
from tcnn_jobs.errors import BytesExceeded, QuotaExceeded
from tcnn_jobs.model.accounts import DAYS, Quotas, Tenant, Use
from tcnn_jobs.model.jobs import Status, Upload
from tcnn_jobs.store.accounts import ledger

DAY, HOUR = 86400.0, 3600.0
SOON = 60.0
"""`Retry-After`, in seconds, of a request that is refused because the tenant's queue is full."""

_TENANT = select(tenants).where(tenants.c.name == bindparam("tenant"))
_LOCKED = _TENANT.with_for_update(key_share=True)


def _count(status: Status) -> Any:
    return select(func.count()).select_from(jobs).where(jobs.c.owner == bindparam("tenant"), has_status(status))


_QUEUED, _RUNNING = _count(Status.QUEUED), _count(Status.RUNNING)
_STORED = select(func.coalesce(func.sum(stored.c.bytes), 0)).where(stored.c.tenant == bindparam("tenant"))
_DAYS = (
    select(usage.c.day, func.sum(usage.c.seconds).label("seconds"))
    .where(usage.c.tenant == bindparam("tenant"))
    .group_by(usage.c.day)
    .order_by(usage.c.day)
)
WAITS = jobs.c.waiting_claim == jobs.c.claim
"""Whether a job was claimed and has not started, since it waits for slots; never of an older release's claim."""
BEGAN = case((jobs.c.waiting_claim.is_distinct_from(jobs.c.claim), jobs.c.started_at))
"""When the process of a job's attempt started; NULL if there has been none yet."""
# Until its worker was last heard of: one that is silent may be gone, and then nothing of it is charged.
_WORKED = case((jobs.c.heartbeat_at > BEGAN, jobs.c.heartbeat_at - BEGAN), else_=0.0)
_UNDER_WAY = select(func.sum(_WORKED * jobs.c.slots)).where(
    jobs.c.owner == bindparam("tenant"), has_status(Status.RUNNING)
)


def know(connection: Connection, tenant: str) -> None:
    """Create the tenant's row unless it exists."""
    connection.execute(_know(connection.dialect.name), {"tenant": tenant})


@cache
def _know(dialect: str) -> Any:
    added = upsert(dialect, tenants).values(name=bindparam("tenant"), created_at=now())
    return added.on_conflict_do_nothing(index_elements=[tenants.c.name])


def lock_queue(connection: Connection, tenant: str) -> Row[Any] | None:
    """The tenant's row, None if there is none; with a quota of queued jobs nobody else queues one until the commit."""
    row = connection.execute(_TENANT, {"tenant": tenant}).one_or_none()
    if row is not None and row.max_queued is not None:
        connection.execute(_LOCKED, {"tenant": tenant})
    return row


def admit_job(connection: Connection, tenant: str) -> None:
    """Admission control of one more job: queued jobs, GPU hours, and stored bytes must be below the tenant's quotas.

    Creates the tenant's row if there is none. Raises `QuotaExceeded`, with the seconds after which to retry, and
    `BytesExceeded`.
    """
    name = {"tenant": tenant}
    row = lock_queue(connection, tenant)
    if row is None:
        know(connection, tenant)
        return
    if row.max_queued is not None:
        count = connection.scalar(_QUEUED, name) or 0
        if count >= row.max_queued:
            raise QuotaExceeded(
                f"expected at most {row.max_queued} queued jobs of yours, found {count} already; wait until some have "
                "started, or cancel some",
                SOON,
            )
    if row.gpu_hours is not None:
        seconds, later = _hours(connection, tenant, row.gpu_hours)
        if seconds >= row.gpu_hours * HOUR:
            raise QuotaExceeded(
                f"your jobs have used {seconds / HOUR:.1f} GPU hours in {DAYS} days, and may use {row.gpu_hours:g}; "
                "submit it later, or ask for more",
                later,
            )
    _admit_bytes(connection, row, 0)


def admit_bytes(connection: Connection, tenant: str, size: int) -> int | None:
    """Admission control of `size` more stored bytes, 0 for whether there is any room; raises `BytesExceeded`.

    Returns how many more there is room for, None for any number.
    """
    row = connection.execute(_TENANT, {"tenant": tenant}).one_or_none()
    return None if row is None else _admit_bytes(connection, row, size)


def _admit_bytes(connection: Connection, row: Row[Any], size: int) -> int | None:
    if row.max_bytes is None:
        return None
    name = {"tenant": row.name}
    if size:
        connection.execute(_LOCKED, name)
    has = connection.scalar(_STORED, name) or 0
    if has + size > row.max_bytes or (not size and has >= row.max_bytes):
        asked = f" and these are {size:,}" if size else ""
        raise BytesExceeded(
            f"you store {has:,} bytes{asked}, and may store {row.max_bytes:,}; delete jobs, data sets or checkpoints"
        )
    return int(row.max_bytes - has - size)


def may_start(connection: Connection, tenant: str) -> bool:
    """Whether a tenant is below its quota of running jobs. Locks its row: nobody else starts one until the commit."""
    row = connection.execute(_LOCKED, {"tenant": tenant}).one_or_none()
    return (
        row is None
        or row.max_running is None
        or (connection.scalar(_RUNNING, {"tenant": tenant}) or 0) < row.max_running
    )


def held(connection: Connection, tenant: str, max_running: int | None, gpu_hours: float | None) -> str | None:
    """The quota (running jobs, GPU hours) that keeps a tenant's queued jobs from starting, in words, or None."""
    if max_running is not None and (connection.scalar(_RUNNING, {"tenant": tenant}) or 0) >= max_running:
        return f"as many of your jobs run as may: {max_running}"
    if gpu_hours is not None and _hours(connection, tenant, gpu_hours)[0] >= gpu_hours * HOUR:
        return f"your jobs have used the {gpu_hours:g} GPU hours that they may in {DAYS} days"
    return None


BOUND = select(tenants).where(
    tenants.c.name.in_(bindparam("names", expanding=True)),
    tenants.c.max_running.is_not(None) | tenants.c.gpu_hours.is_not(None),
)


def reasons(connection: Connection, owners: Iterable[str]) -> dict[str, str]:
    """Tenant → the quota that its queued jobs wait for; tenants that wait for none are left out."""
    rows = connection.execute(BOUND, {"names": sorted(set(owners))}).all()
    told = {row.name: held(connection, row.name, row.max_running, row.gpu_hours) for row in rows}
    return {name: reason for name, reason in told.items() if reason is not None}


def used(connection: Connection, tenant: str) -> Use:
    """Current usage of a tenant: queued and running jobs, GPU hours in the last `DAYS` days, stored bytes."""
    name = {"tenant": tenant}
    return Use(
        queued=connection.scalar(_QUEUED, name) or 0,
        running=connection.scalar(_RUNNING, name) or 0,
        gpu_hours=_hours(connection, tenant, 0.0)[0] / HOUR,
        stored=int(connection.scalar(_STORED, name) or 0),
    )


def _hours(connection: Connection, tenant: str, most: float) -> tuple[float, float]:
    """(slot-seconds in the last `DAYS` days, seconds until that sliding window holds less than `most` hours)."""
    time = connection.scalar(select(now())) or 0.0
    first = int(time // DAY) - DAYS + 1
    days = [row for row in connection.execute(_DAYS, {"tenant": tenant}) if row.day >= first]
    total = sum(row.seconds for row in days) + float(connection.scalar(_UNDER_WAY, {"tenant": tenant}) or 0.0)
    left = total
    for row in days:
        left -= row.seconds
        if left < most * HOUR:
            return total, (row.day + DAYS) * DAY - time
    return total, DAY


def began_at(row: Row[Any]) -> float | None:
    """`BEGAN` of a row."""
    return None if row.waiting_claim == row.claim else row.started_at


def note_use(connection: Connection, row: Row[Any], ended: float) -> None:
    """Charge a job's slot-seconds to its tenant when it leaves its worker, at `ended`; `row` is as it was before."""
    began = began_at(row)
    if began is None:
        return
    add_use(connection, row.owner, int(ended // DAY), row.number % SHARDS, max(0.0, ended - began) * row.slots)


def add_use(connection: Connection, tenant: str, day: int, shard: int, seconds: float) -> None:
    """Charge slot-seconds to a tenant's day."""
    values = {"tenant": tenant, "day": day, "shard": shard, "seconds": seconds}
    connection.execute(_add(connection.dialect.name), values)


@cache
def _add(dialect: str) -> Any:
    """The upsert of a day's usage, cached: building a statement takes longer than running it."""
    added = upsert(dialect, usage).values({name: bindparam(name) for name in ("tenant", "day", "shard", "seconds")})
    return added.on_conflict_do_update(
        index_elements=[usage.c.tenant, usage.c.day, usage.c.shard],
        set_={"seconds": usage.c.seconds + added.excluded.seconds},
    )


def forget_use(connection: Connection) -> None:
    """Delete usage of days before the sliding window."""
    time = connection.scalar(select(now())) or 0.0
    connection.execute(delete(usage).where(usage.c.day < int(time // DAY) - DAYS))


_STORE = insert(stored).values(
    resource=bindparam("resource"), tenant=bindparam("tenant"), bytes=bindparam("bytes", type_=BigInteger())
)


def note_upload(connection: Connection, upload: Upload) -> None:
    """Charge an upload's bytes (of a data set: those of its files) to its tenant. Raises `BytesExceeded`."""
    size = int(upload.details.get("bytes", upload.size))
    admit_bytes(connection, upload.owner, size)
    connection.execute(_STORE, {"resource": upload.id, "tenant": upload.owner, "bytes": size})


def note_result(connection: Connection, row: Row[Any]) -> None:
    """A job has succeeded: its files are kept, whatever the quota."""
    files = row.result.get("files") or [row.result.get("checkpoint") or {"size": 0}]
    size = sum(int(file["size"]) for file in files)
    if size:
        connection.execute(_STORE, {"resource": row.id, "tenant": row.owner, "bytes": size})


_DROP = delete(stored).where(stored.c.resource == bindparam("gone"))


def drop(connection: Connection, resource: str) -> None:
    """A job or an upload is gone."""
    connection.execute(_DROP, {"gone": resource})


_COLUMNS = {"queued": "max_queued", "running": "max_running", "gpu_hours": "gpu_hours", "stored": "max_bytes"}
"""Quota → its column."""


class Tenants(Database):
    """Tenants with quotas, usage and webhook secrets: a row is created by the first job, upload, key or quota."""

    def set_quotas(self, tenant: str, **changes: float | None) -> Tenant:
        """Set some of a tenant's `Quotas` (None: unlimited), by name; creates the tenant unless it exists."""
        changes = Quotas.model_validate(changes).model_dump(exclude_unset=True)
        return self._set(tenant, "tenant.set", {_COLUMNS[name]: value for name, value in changes.items()}, changes)

    def set_webhook_secret(self, tenant: str, secret: str | None) -> Tenant:
        """Set the secret that signs a tenant's webhooks, retries included; None is the service's own."""
        return self._set(tenant, "tenant.webhook_secret", {"webhook_secret": secret}, {"own": secret is not None})

    def _set(self, tenant: str, action: str, values: Mapping[str, Any], details: Mapping[str, Any]) -> Tenant:
        mine = tenants.c.name == tenant
        with self.writing() as connection:
            before = connection.execute(_LOCKED, {"tenant": tenant}).one_or_none()
            know(connection, tenant)
            if values:
                connection.execute(update(tenants).where(mine).values(**values))
            if before is None or any(getattr(before, column) != value for column, value in values.items()):
                ledger.note(connection, action, tenant, tenant, **details)
            row = connection.execute(select(tenants).where(mine)).one()
            return _as_tenant(connection, row)

    def tenants(self, name: str | None = None) -> list[Tenant]:
        """List tenants with quotas and usage, sorted by name; with `name`, a list of that one, or empty."""
        query = select(tenants).order_by(tenants.c.name)
        if name is not None:
            query = query.where(is_text(tenants.c.name, name))
        with self.reading() as connection:
            return [_as_tenant(connection, row) for row in connection.execute(query).all()]

    def check_room(self, tenant: str) -> int | None:
        """Bytes that are left of a tenant's storage quota, None for any number; raises `BytesExceeded` if none are."""
        with self.reading() as connection:
            return admit_bytes(connection, tenant, 0)

    def forget_use(self) -> None:
        """Delete usage before the sliding window of `DAYS` days."""
        with self.writing() as connection:
            forget_use(connection)


def _as_tenant(connection: Connection, row: Row[Any]) -> Tenant:
    found = Quotas(**{name: getattr(row, column) for name, column in _COLUMNS.items()})
    return Tenant(
        name=row.name, created_at=row.created_at, quotas=found, use=used(connection, row.name),
        own_webhook_secret=row.webhook_secret is not None,
    )  # fmt: skip
