"""Idempotency keys: what a POST has made under one, kept in the transaction that makes it."""

from sqlalchemy import Connection, select

from tcnn_jobs.database.engine import upsert
from tcnn_jobs.database.schema import keys
from tcnn_jobs.database.types import now
from tcnn_jobs.errors import IdempotencyMismatch
from tcnn_jobs.model.jobs import IdempotencyKey


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
    return resource if is_first(connection, key, resource) else recall(connection, key) or resource


def is_first(connection: Connection, key: IdempotencyKey, resource: str) -> bool:
    """Keep the key with what it makes; False if it was kept before. Raises `IdempotencyMismatch`."""
    # Whoever comes second waits here until the first has committed, and then reads what that one has made.
    added = connection.execute(
        upsert(connection.dialect.name, keys)
        .values(**key._asdict(), resource=resource, created_at=now())
        .on_conflict_do_nothing(index_elements=[keys.c.owner, keys.c.key])
        .returning(keys.c.key)
    ).one_or_none()
    return added is not None or recall(connection, key) is None
