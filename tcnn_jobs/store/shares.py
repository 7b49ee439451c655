"""Links that show one job to whoever has them: made and revoked by the job's owner, and gone with the job.

Of a link's secret only the digest is stored, as of a key's (`tcnn_jobs.model.accounts`).
"""

from typing import Any

from sqlalchemy import Row, and_, delete, func, insert, select, update

from tcnn_jobs.database.dialects import now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import shares
from tcnn_jobs.errors import KeyNotFound, WrongState
from tcnn_jobs.model.accounts import SHARE_PREFIX, Share, digest, new_secret
from tcnn_jobs.model.jobs import IdempotencyKey
from tcnn_jobs.model.naming import new_id, shown, storable
from tcnn_jobs.store.accounts import ledger
from tcnn_jobs.store.changes import find

MOST = 50
"""Links to one job that are valid at once."""
_VALID = and_(shares.c.revoked_at.is_(None), shares.c.expires_at > now())
_COLUMNS: Any = (*(shares.c[name] for name in Share.model_fields if name != "valid"), _VALID.label("valid"))


class Shares(Database):
    """The links of all tenants."""

    def create_share(
        self, job: str, owner: str, seconds: float, key: IdempotencyKey | None = None
    ) -> tuple[Share, str | None] | None:
        """Make a link that ends by itself; returns it and its secret, which is not stored.

        With a key that has made one before that one, without its secret, or None if it has ended. Raises `JobNotFound`,
        `IdempotencyMismatch`, and `WrongState` if the job has as many as it may.
        """
        identifier, secret = new_id("share"), new_secret(SHARE_PREFIX)
        with self.writing() as connection:
            find(connection, job, owner)
            first = key is None or ledger.is_first(connection, key, identifier)  # before the job is locked
            find(connection, job, owner, lock=True)
            if key is not None and not first:
                made = and_(shares.c.id == ledger.recall(connection, key), shares.c.job == job, _VALID)
                row = connection.execute(select(*_COLUMNS).where(made)).one_or_none()
                return None if row is None else (_as_share(row), None)
            # What has ended nobody asks for any more: the audit log tells of it.
            connection.execute(delete(shares).where(shares.c.job == job, ~_VALID))
            count = connection.scalar(select(func.count()).select_from(shares).where(shares.c.job == job, _VALID)) or 0
            if count >= MOST:
                raise WrongState(f"{job}: has {MOST} links already; revoke one of them first")
            connection.execute(
                insert(shares).values(
                    id=identifier, digest=digest(secret), job=job, owner=owner, created_at=now(),
                    expires_at=now() + seconds,
                )
            )  # fmt: skip
            row = connection.execute(select(*_COLUMNS).where(shares.c.id == identifier)).one()
            ledger.note(connection, "share.create", identifier, owner, job=job)
        return _as_share(row), secret

    def shares(self, job: str, owner: str) -> list[Share]:
        """The links of a job that are valid, the oldest first; raises `JobNotFound`."""
        with self.reading() as connection:
            find(connection, job, owner)
            query = select(*_COLUMNS).where(shares.c.job == job, _VALID).order_by(shares.c.created_at, shares.c.id)
            return [_as_share(row) for row in connection.execute(query)]

    def revoke_share(self, id: str, job: str, owner: str) -> None:
        """End a link; a second time changes nothing. Raises `JobNotFound`, `KeyNotFound`."""
        with self.writing() as connection:
            find(connection, job, owner)
            row = None
            if storable(id):
                mine = and_(shares.c.id == id, shares.c.job == job)
                row = connection.execute(select(shares).where(mine)).one_or_none()
            if row is None:
                raise KeyNotFound(f"{shown(id)}: no such link; GET /jobs/{job}/shares lists yours")
            if row.revoked_at is None:
                connection.execute(update(shares).where(shares.c.id == id).values(revoked_at=now()))
                ledger.note(connection, "share.revoke", id, owner, job=job)

    def find_share(self, digest: str) -> Share | None:
        """The link whose secret has this digest, valid or no longer; None if there is none."""
        with self.reading() as connection:
            row = connection.execute(select(*_COLUMNS).where(shares.c.digest == digest)).one_or_none()
        return None if row is None else _as_share(row)


def _as_share(row: Row[Any]) -> Share:
    return Share.model_validate(row, from_attributes=True)
