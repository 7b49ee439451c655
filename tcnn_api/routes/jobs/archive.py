"""`GET /jobs/{id}/archive`: all that a job hands back in one zip, made while it is sent.

Its members are read in pieces, one after the other, and none is held in memory.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import IO, Any, NamedTuple

import structlog
from anyio import to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tcnn_api.access.keys import Principal
from tcnn_api.deps import AUTHENTICATED, JobId, Reach, ServiceDep, Tenant
from tcnn_api.description.openapi import problems
from tcnn_api.responses.download import open_file
from tcnn_api.routes.jobs.files import newest_file, succeeded
from tcnn_api.routes.jobs.jobs import seen_by
from tcnn_api.schemas import JobView, file_name
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.model.jobs import Artifact, Job

log = structlog.get_logger("tcnn.api")

router = APIRouter(prefix="/jobs", tags=["results"], dependencies=AUTHENTICATED)
PIECE = 1 << 18


class Member(NamedTuple):
    """A file of a zip. `open` gives a handle and may take its time; `size` in bytes; `sha256` if it is known."""

    name: str
    size: int
    open: Callable[[], Any]
    sha256: str = ""


class _Written(io.RawIOBase):
    """What was written and not yet taken; zipfile sees that it cannot go back in it."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


@router.get(
    "/{id}/archive",
    summary="Download everything",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The zip.",
            "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        },
        **problems(409, 429),
    },
)
async def archive(job: JobId, request: Request, parts: ServiceDep, owner: Reach, own: Tenant) -> Response:
    """Download every file of a succeeded job, its log, and the job itself as `job.json`, in one zip.

    The zip is created while it is sent, so it has no length and no ranges; use `/checkpoint` for large checkpoints,
    which can resume an interrupted download. The same job always gives the same bytes.
    """
    found = succeeded(await to_thread.run_sync(parts.store.get, job, owner))
    parts.pools.downloads.check(own)  # before any file is opened
    members = await parts.pools.storage.run(own, _members, parts.artifacts, found, request.state.principal)
    ended = datetime.fromtimestamp(found.finished_at or found.created_at, UTC)
    at = (ended.year, ended.month, ended.day, ended.hour, ended.minute, ended.second)
    name = file_name(found, "files.zip")
    return Archive(
        zipped(members, at, partial(parts.pools.reading.run, own)),
        partial(parts.pools.downloads.hold, own),
        headers={"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "private, no-store"},
    )


class Archive(StreamingResponse):
    """A zip that takes its place among the downloads before its status is sent, and keeps it until its end."""

    media_type = "application/zip"

    def __init__(
        self, content: AsyncIterator[bytes], hold: Callable[[], AbstractContextManager[None]], headers: dict[str, str]
    ) -> None:
        super().__init__(content, headers=headers)
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the zip. Raises `TooManyAtOnce` before anything is sent."""
        with self._hold():
            await super().__call__(scope, receive, send)


def _members(artifacts: Artifacts, job: Job, principal: Principal) -> list[Member]:
    """Raises `NotFound` if a file is gone or damaged, before anything is sent."""
    told = json.dumps(seen_by(principal, JobView.of(job)).model_dump(mode="json"), indent=1).encode()
    members = [Member("job.json", len(told), partial(io.BytesIO, told))]
    for file in job.files:
        open_file(artifacts, file, file.name).handle.close()
        members.append(Member(file.name, file.size, partial(_handle, artifacts, file), file.sha256))
    log = newest_file(artifacts, job, "log.txt")
    if log is not None:
        members.append(Member("log.txt", log.stat().st_size, partial(log.open, "rb")))
    return members


def _handle(artifacts: Artifacts, file: Artifact) -> Any:
    return open_file(artifacts, file, file.name).handle


def _write(out: IO[bytes], digest: Any, data: bytes) -> None:
    out.write(data)
    digest.update(data)


async def zipped(
    members: Iterable[Member], at: tuple[int, int, int, int, int, int], run: Callable[..., Awaitable[Any]]
) -> AsyncIterator[bytes]:
    """The bytes of a zip of these files, not compressed, for weights cannot be: `run` calls on a thread.

    `at`: the time that all of them have, so that the same files make the same zip. A file that turns out to be of
    another size or content than announced ends it with an error, which the client sees as a broken download.
    """
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            handle = await run(member.open)
            try:
                info = zipfile.ZipInfo(member.name, at)
                info.external_attr = 0o644 << 16
                left, digest = member.size, hashlib.sha256()
                with archive.open(info, "w", force_zip64=member.size >= zipfile.ZIP64_LIMIT) as out:
                    while data := await run(handle.read, PIECE):
                        left -= len(data)
                        await run(_write, out, digest, data)  # checksums take time
                        yield written.take()
                if left:
                    raise OSError(f"{member.name}: its size has changed")
                if member.sha256 and (found := digest.hexdigest()) != member.sha256:
                    log.error("a result's file is damaged", file=member.name, expected=member.sha256, found=found)
                    raise OSError(f"{member.name}: expected SHA-256 {member.sha256[:12]}…, found {found[:12]}…")
            finally:
                await run(handle.close)
            yield written.take()
    yield written.take()
