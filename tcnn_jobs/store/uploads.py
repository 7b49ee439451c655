"""Data sets and checkpoints that were uploaded."""

from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select

from tcnn_jobs.database.dialects import is_text, now
from tcnn_jobs.database.engine import Database
from tcnn_jobs.database.schema import keys, stored, uploads
from tcnn_jobs.errors import UploadNotFound
from tcnn_jobs.model.columns import Cursor
from tcnn_jobs.model.jobs import IdempotencyKey, Upload
from tcnn_jobs.model.naming import no_such
from tcnn_jobs.store.accounts import ledger, quotas
from tcnn_jobs.store.needs import refuse_if_needed

_MADE = (
    select(uploads.c.size, stored.c.bytes)
    .select_from(
        keys.join(uploads, uploads.c.id == keys.c.resource).outerjoin(stored, stored.c.resource == uploads.c.id)
    )
    .where(keys.c.owner == bindparam("owner"), keys.c.key == bindparam("key"))
)


class Uploads(Database):
    """The rows of uploads; their files are the business of whoever calls."""

    def add_upload(self, upload: Upload, key: IdempotencyKey | None = None) -> Upload:
        """Keep a row; `created_at` becomes the database's time. Raises `BytesExceeded`.

        With a key that was used before, the upload that it made then, whatever the quota; raises `IdempotencyMismatch`
        if the request was another one.
        """
        values = upload.model_dump(mode="json", exclude={"created_at"})
        with self.writing() as connection:
            if key is not None:  # before the quota, which whoever was first may have used up
                winner = ledger.remember(connection, key, upload.id)
                if winner != upload.id:
                    return _as_upload(_find(connection, winner, upload.kind, upload.owner))
            quotas.know(connection, upload.owner)
            quotas.note_upload(connection, upload)
            ledger.note(connection, f"{upload.kind}.upload", upload.id, upload.owner)
            row = connection.execute(insert(uploads).values(**values, created_at=now()).returning(uploads)).one()
        return _as_upload(row)

    def made_bytes(self, owner: str, key: str) -> int:
        """Bytes of the upload that a POST with this key has made, sent or stored, whichever are more; 0 for none."""
        with self.reading() as connection:
            row = connection.execute(_MADE, {"owner": owner, "key": key}).one_or_none()
        return 0 if row is None else max(row.size, row.bytes or 0)

    def upload(self, id: str, kind: str, owner: str | None = None) -> Upload:
        """One upload of this kind; raises `UploadNotFound`."""
        with self.reading() as connection:
            return _as_upload(_find(connection, id, kind, owner))

    def uploads(
        self, owner: str | None, kind: str, after: str | None = None, limit: int = 20
    ) -> tuple[list[Upload], str | None]:
        """Newest first, `limit` of them, and if there are more what to give as `after` to get those.

        `after` may also be the id of an upload. Raises `UploadNotFound` and `WrongPlace` for it.
        """
        query = select(uploads).where(uploads.c.kind == kind)
        if owner is not None:
            query = query.where(is_text(uploads.c.owner, owner))
        with self.reading() as connection:
            if after is not None:
                place = Cursor.of(after) or Cursor(_find(connection, after, kind, owner).number)
                query = query.where(uploads.c.number < place.number)
            rows = connection.execute(query.order_by(uploads.c.number.desc()).limit(limit + 1)).all()
        return [_as_upload(row) for row in rows[:limit]], str(Cursor(rows[limit - 1].number)) if rows[limit:] else None

    def remove_upload(self, id: str, owner: str | None = None) -> Upload:
        """Remove a row and its key; returns what it was.

        Raises `UploadNotFound`, and `WrongState` while a job that has not ended needs it.
        """
        query = delete(uploads).where(is_text(uploads.c.id, id)).returning(uploads)
        with self.writing() as connection:
            if owner is not None:
                query = query.where(is_text(uploads.c.owner, owner))
            row = connection.execute(query).one_or_none()
            if row is None:
                raise _not_found(id, "upload")
            refuse_if_needed(connection, id, row.owner)
            connection.execute(delete(keys).where(keys.c.resource == id))
            quotas.drop(connection, id)
            ledger.note(connection, f"{row.kind}.delete", id, row.owner)
        return _as_upload(row)


def _find(connection: Connection, id: str, kind: str, owner: str | None) -> Row[Any]:
    query = select(uploads).where(is_text(uploads.c.id, id), uploads.c.kind == kind)
    if owner is not None:
        query = query.where(is_text(uploads.c.owner, owner))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise _not_found(id, kind)
    return row


def _as_upload(row: Row[Any]) -> Upload:
    return Upload.model_validate(row, from_attributes=True)


def _not_found(id: str, kind: str) -> UploadNotFound:
    return UploadNotFound(no_such(kind, id, None if kind == "upload" else f"{kind.removesuffix('s')}s"))
