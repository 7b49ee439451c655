"""API keys in the database: create, list, revoke, and find by the digest of their secret.

A row is never deleted, so that what was done with a key can be told for as long as anybody wants to know, and a server
that has ever had a key never opens again.
"""

from typing import Any

from sqlalchemy import Row, and_, func, insert, or_, select, update

from tcnn_jobs.access import ApiKey, NewKey, digest, new_secret
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import api_keys, now
from tcnn_jobs.errors import KeyNotFound
from tcnn_jobs.identifiers import new_id, shown, storable
from tcnn_jobs.store.accounts import audits, quotas

MINUTE = 60.0
"""Seconds between two times that the use of a key is written down."""
_FIELDS = tuple(name for name in ApiKey.model_fields if name != "valid")
_VALID = and_(api_keys.c.revoked_at.is_(None), or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now()))
_LOOK: Any = select(*(api_keys.c[name] for name in _FIELDS), _VALID.label("valid"))
_LONG_AGO = or_(api_keys.c.used_at.is_(None), api_keys.c.used_at < now() - MINUTE)


class ApiKeys(Database):
    """The keys of all tenants."""

    def create_key(self, new: NewKey) -> tuple[ApiKey, str]:
        """Create a key; returns it and its secret, which is not stored."""
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
            audits.note(connection, "key.create", identifier, new.tenant, scopes=sorted(new.scopes))
        return _as_key(row), secret

    def api_keys(self, tenant: str | None = None) -> list[ApiKey]:
        """All keys, or one tenant's, the oldest first; revoked and expired ones, too."""
        query = _LOOK.order_by(api_keys.c.created_at, api_keys.c.id)
        with self.reading() as connection:
            rows = connection.execute(query if tenant is None else query.where(api_keys.c.tenant == tenant)).all()
        return [_as_key(row) for row in rows]

    def revoke_key(self, id: str) -> ApiKey:
        """Revoke a key; a second time changes nothing. Raises `KeyNotFound`."""
        if not storable(id):
            raise KeyNotFound(f"{shown(id)}: no such key")
        mine = api_keys.c.id == id
        with self.writing() as connection:
            connection.execute(
                update(api_keys).where(mine).values(revoked_at=func.coalesce(api_keys.c.revoked_at, now()))
            )
            row = connection.execute(_LOOK.where(mine)).one_or_none()
            if row is not None:
                audits.note(connection, "key.revoke", id, row.tenant)
        if row is None:
            raise KeyNotFound(f"{id}: no such key; `tcnn keys list` shows those that there are")
        return _as_key(row)

    def find_key(self, digest: str) -> ApiKey | None:
        """The key whose secret has this digest, if it is valid."""
        with self.reading() as connection:
            row = connection.execute(_LOOK.where(api_keys.c.digest == digest, _VALID)).one_or_none()
        return None if row is None else _as_key(row)

    def note_use(self, id: str, wait: float) -> None:
        """Record the use of a key, once a minute at most; `wait` as for `writing`."""
        seen = and_(api_keys.c.id == id, _LONG_AGO)
        with self.reading() as connection:
            if connection.scalar(select(api_keys.c.id).where(seen)) is None:
                return
        with self.writing(wait) as connection:
            connection.execute(update(api_keys).where(seen).values(used_at=now()))

    def has_keys(self) -> bool:
        """Whether a key was ever made."""
        with self.reading() as connection:
            return connection.scalar(select(api_keys.c.id).limit(1)) is not None


def _as_key(row: Row[Any]) -> ApiKey:
    return ApiKey(**{name: getattr(row, name) for name in _FIELDS}, valid=bool(row.valid))
