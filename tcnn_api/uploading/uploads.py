"""An upload: received, checked elsewhere, and published whole or not at all.

What becomes of a refused one is that its folder below `TCNN_HOME/incoming` is removed.
"""

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from anyio import from_thread, to_thread
from fastapi import Request

from tcnn.errors import EnvironmentFailure, RequestError, storage_errors
from tcnn_api.deps import Service, idempotency_key, refuse_anothers
from tcnn_api.errors import Refused
from tcnn_api.uploading.forms import Received, received
from tcnn_jobs.artifacts.layout import checked
from tcnn_jobs.confined.room import Bounds, Room
from tcnn_jobs.errors import BytesExceeded, QuotaExceeded, StoreUnavailable, UploadNotFound
from tcnn_jobs.model.jobs import Upload
from tcnn_jobs.model.naming import new_id, no_such
from tcnn_jobs.store import Store


class Examined(NamedTuple):
    """What is to be published, still in the received file's folder, and what was found in it."""

    path: Path
    details: dict[str, Any]
    size: int | None = None
    sha256: str | None = None
    """Of the file, if it is another one than the received."""


Examine = Callable[[Received, Bounds], Awaitable[Examined]]
"""What is in a file, and what of it is to be kept within bounds."""


async def accept(
    request: Request, parts: Service, owner: str, key: str | None, kind: str, prefix: str, examine: Examine
) -> Upload:
    """Receive, examine and publish an upload, or return the one that was made with this idempotency key before.

    Raises what ends in a 4xx (`Refused`, `TooLarge`, `BytesExceeded`, …), `StorageError` for a full disk,
    `StoreUnavailable`; then nothing of it remains, but for files that a sweep removes if the database did not say
    whether it has the row.
    """
    # The same request at once is received when the first one has ended, and needs no room of its own then.
    twin = nullcontext() if key is None else parts.pools.twins.take(f"{owner} {key}")
    with parts.pools.uploads.hold(owner):
        async with twin:
            with parts.rooms.enter(owner, kind) as room:
                room.left = await to_thread.run_sync(_left, parts.store, owner, key)
                return await _accept(request, parts, room, owner, key, kind, prefix, examine)


def _left(store: Store, owner: str, key: str | None) -> int | None:
    """Bytes that an upload may take, None for any number; raises `BytesExceeded`. What has used up the quota may be
    this very request: it may come again.
    """
    try:
        left = store.check_room(owner)
    except BytesExceeded:  # asked in this order, what this request has made is there
        if not (made := 0 if key is None else store.made_bytes(owner, key)):
            raise
        return made
    return left if left is None or key is None else left + store.made_bytes(owner, key)


async def _accept(
    request: Request, parts: Service, room: Room, owner: str, key: str | None, kind: str, prefix: str, examine: Examine
) -> Upload:
    async with received(request, parts.home, room, partial(parts.pools.disk.run, owner)) as file:
        identity = idempotency_key(request, owner, key, file.sha256.encode())
        if identity and (earlier := await to_thread.run_sync(parts.store.replay, identity)):
            return await to_thread.run_sync(parts.store.upload, earlier, kind, owner)
        try:
            async with parts.pools.checks.take(owner):
                room.left = await to_thread.run_sync(_left, parts.store, owner, key)  # some may have ended since
                examined = await examine(file, room.bounds)
        except QuotaExceeded:
            raise
        except RequestError as error:
            raise Refused("file", str(error)) from error
        stored = int(examined.details.get("bytes", examined.size or file.size))
        room.keep(stored)
        identifier = new_id(prefix)
        target = parts.home.dataset(identifier) if kind == "dataset" else parts.home.checkpoint(identifier)
        upload = Upload(
            id=identifier, owner=owner, kind=kind, name=file.name, path=str(target.relative_to(parts.home.root)),
            size=examined.size or file.size, sha256=examined.sha256 or file.sha256, details=examined.details,
        )  # fmt: skip

        def publish() -> Upload:
            with storage_errors(Path(file.name)):
                if parts.home.shared and kind == "dataset":  # which is packed again for the store
                    room.write(stored)
                kept = parts.artifacts.add(upload, examined.path)
            from_thread.run_sync(room.leave)  # from now on the database counts it
            try:
                added = parts.store.add_upload(kept, identity)
            except BaseException as error:
                if not (isinstance(error, StoreUnavailable) and error.in_doubt):  # else there may be a row of them
                    _withdraw(parts, kept)
                raise
            if added.id != identifier:  # the same request came twice at once, and the other one was faster
                _withdraw(parts, kept)
            return added

        return await parts.pools.disk.run(owner, publish)


async def forget(parts: Service, identifier: str, kind: str, owner: str, reach: str | None) -> None:
    """Delete an upload, its row first: files without a row are swept, a row without files would lie.

    Raises `UploadNotFound`, `NotOwn` for another tenant's that may be seen, and `WrongState` while a job that waits or
    runs needs it; nothing once the row is gone.
    """
    refuse_anothers(kind, (await to_thread.run_sync(parts.store.upload, identifier, kind, reach)).owner, owner)
    upload = await to_thread.run_sync(parts.store.remove_upload, identifier, owner)
    await parts.pools.remove(owner, parts.artifacts.remove_upload, upload)


def identified(identifier: str, kind: str) -> str:
    """Validate the form of an upload's id; raises `UploadNotFound`."""
    try:
        return checked(identifier)
    except RequestError as error:
        raise UploadNotFound(no_such(kind, identifier, f"{kind.removesuffix('s')}s")) from error


def _withdraw(parts: Service, upload: Upload) -> None:
    """Remove files that certainly have no row. What the store of results keeps of them is swept."""
    with contextlib.suppress(EnvironmentFailure):
        parts.artifacts.remove_upload(upload)
