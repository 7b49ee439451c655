"""API keys in the database: create, list, revoke, and find by the digest of their secret.

A row is never deleted, so that what was done with a key can be told for as long as anybody wants to know, and a server
that has ever had a key never opens again.
"""

from typing import Any

from sqlalchemy import Row, and_, insert, or_, select, update

from tcnn_jobs.database.dialects import is_text, now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import api_keys
from tcnn_jobs.errors import KeyNotFound
from tcnn_jobs.model.accounts import ApiKey, NewKey, digest, new_secret
from tcnn_jobs.model.naming import new_id, shown, storable
from tcnn_jobs.store.accounts import ledger, quotas

MINUTE = 60.0
"""Shortest interval, in seconds, between two updates of a key's `used_at`."""
_VALID = and_(api_keys.c.revoked_at.is_(None), or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now()))
_LOOK: Any = select(*(api_keys.c[name] for name in ApiKey.model_fields if name != "valid"), _VALID.label("valid"))
# A use that is still to come was noted before the clock was set back.
_LONG_AGO = or_(api_keys.c.used_at.is_(None), ~api_keys.c.used_at.between(now() - MINUTE, now() + MINUTE))


class ApiKeys(Database):
    """CRUD of API keys; a key is identified by its id, and authenticated by the SHA-256 digest of its secret."""

    def create_key(self, new: NewKey) -> tuple[ApiKey, str]:
        """Create a key; returns it and its secret, which is stored only as a digest and cannot be read again.

        The tenant is created if it is not known yet; `new.lasts` is the lifetime in seconds, None for no expiry.
        """
        identifier, secret = new_id("key"), new_secret()
        expires = None if new.lasts is None else now() + new.lasts
        with self.writing() as connection:
            quotas.know(connection, new.tenant)
            connection.execute(
                insert(api_keys).values(
                    id=identifier, digest=digest(secret), tenant=new.tenant, name=new.name,
                    scopes=sorted(new.scopes), created_at=now(), expires_at=expires,
                )
            )  # fmt: skip
            row = connection.execute(_LOOK.where(api_keys.c.id == identifier)).one()
            ledger.note(connection, "key.create", identifier, new.tenant, scopes=sorted(new.scopes))
        return _as_key(row), secret

    def api_keys(self, tenant: str | None = None) -> list[ApiKey]:
        """List the keys of all tenants or of one, oldest first, including revoked and expired ones."""
        query = _LOOK.order_by(api_keys.c.created_at, api_keys.c.id)
        if tenant is not None:
            query = query.where(is_text(api_keys.c.tenant, tenant))
        with self.reading() as connection:
            rows = connection.execute(query).all()
        return [_as_key(row) for row in rows]

    def revoke_key(self, id: str) -> ApiKey:
        """Revoke a key, idempotently: the first `revoked_at` stays. Raises `KeyNotFound`."""
        if not storable(id):
            raise KeyNotFound(f"{shown(id)}: no such key")
        mine = api_keys.c.id == id
        with self.writing() as connection:
            valid = update(api_keys).where(mine, api_keys.c.revoked_at.is_(None))
            revoked = connection.execute(valid.values(revoked_at=now()).returning(api_keys.c.id)).one_or_none()
            row = connection.execute(_LOOK.where(mine)).one_or_none()
            if row is not None and revoked is not None:
                ledger.note(connection, "key.revoke", id, row.tenant)
        if row is None:
            raise KeyNotFound(f"{id}: no such key; `tcnn keys list` shows those that there are")
        return _as_key(row)

    def find_key(self, digest: str) -> ApiKey | None:
        """Authenticate: the key whose secret has this digest, valid or no longer; None if there is none."""
        with self.reading() as connection:
            row = connection.execute(_LOOK.where(api_keys.c.digest == digest)).one_or_none()
        return None if row is None else _as_key(row)

    def note_use(self, id: str, wait: float) -> None:
        """Update a key's `used_at`, at most once a minute; gives up after `wait` seconds, as `writing` does."""
        seen = and_(api_keys.c.id == id, _LONG_AGO)
        with self.reading() as connection:
            if connection.scalar(select(api_keys.c.id).where(seen)) is None:
                return
        with self.writing(wait) as connection:
            connection.execute(update(api_keys).where(seen).values(used_at=now()))

    def has_keys(self) -> bool:
        """Whether any key was ever created, revoked and expired ones included."""
        with self.reading() as connection:
            return connection.scalar(select(api_keys.c.id).limit(1)) is not None


def _as_key(row: Row[Any]) -> ApiKey:
    return ApiKey.model_validate(row, from_attributes=True)
