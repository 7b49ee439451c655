"""File downloads with byte ranges, a strong ETag and a digest, so that a broken one can be continued and checked."""

import base64
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from tcnn_api.errors import NotFound, problem
from tcnn_jobs.artifacts.base import Artifacts, Opened
from tcnn_jobs.model.jobs import Artifact

log = structlog.get_logger("tcnn.api")

MEDIA = {".json": "application/json", ".jsonl": "application/jsonl", ".csv": "text/csv", ".txt": "text/plain"}
"""What a file's ending says of it."""


class Share(NamedTuple):
    """What a tenant's download takes of the server: `read` calls a file's methods on a thread, `hold` counts it."""

    read: Callable[..., Awaitable[Any]]
    hold: Callable[[], AbstractContextManager[None]]


def download(
    request: Request, artifacts: Artifacts, file: Artifact, name: str, share: Share, link_seconds: float | None = None
) -> Response:
    """A job's file under a name, 304 if the client has it already.

    With `link_seconds` the client is sent to the store, with a link that is valid for so long, if the file lies in one
    that can do so. Raises `NotFound` as `open_file`.
    """
    headers = {
        "ETag": f'"{file.sha256}"',  # the content itself: strong, and the same on every host
        "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(file.sha256)).decode()}:",  # RFC 9530
        "Cache-Control": "private, no-cache",
    }
    if has(request.headers.get("if-none-match", ""), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    media_type = _media(Path(file.path))
    if link_seconds is not None and request.method == "GET":
        there = {"content_type": media_type, "content_disposition": f'attachment; filename="{name}"'}
        if (link := artifacts.link(file, link_seconds, **there)) is not None:
            # Nobody keeps an answer whose link is soon worth nothing.
            return RedirectResponse(link, 307, headers={**headers, "Cache-Control": "no-store"})
    opened = open_file(artifacts, file, name)
    return Download(opened, share, headers=headers, filename=name, media_type=media_type)


def open_file(artifacts: Artifacts, file: Artifact, name: str) -> Opened:
    """Open a job's file. Raises `NotFound` if it is gone or has another size than its row says: then it is not what the
    ETag and the digest stand for, as after a restore that broke off."""
    try:
        opened = artifacts.open(file)
    except OSError as error:
        raise NotFound(f"{name}: the file is no longer on the server; run the job again") from error
    if opened.size != file.size:
        opened.handle.close()
        log.error("a result's file is damaged", file=file.path, expected=file.size, found=opened.size)
        found = f"expected {file.size:,} bytes, found {opened.size:,}"
        raise NotFound(f"{name}: the file on the server is damaged ({found}); run the job again")
    return opened


class Download(FileResponse):
    """Starlette's, of a file that is open already, wherever it lies; its refusals become problem+json."""

    def __init__(
        self,
        opened: Opened,
        share: Share,
        headers: dict[str, str],
        filename: str,
        media_type: str,
    ) -> None:
        found = os.stat_result((stat.S_IFREG, 0, 0, 0, 0, 0, opened.size, 0, int(opened.modified), 0))
        super().__init__(filename, headers=headers, filename=filename, stat_result=found, media_type=media_type)
        self._opened, self._share = opened, share

    @asynccontextmanager
    async def _open_file(self) -> AsyncIterator[Any]:
        yield _Elsewhere(self._opened.handle, self._share.read)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file, a part of it, or what is wrong with the range that was asked for."""
        refused: int | None = None

        async def relay(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] in (400, 416):
                refused = message["status"]
                await self._refuse(scope, receive, send, Headers(raw=message["headers"]))
            elif refused is None:
                await send(message)

        try:
            with self._share.hold():
                await super().__call__(_known_ranges(scope), receive, relay)
        finally:
            with anyio.CancelScope(shield=True):
                await self._share.read(self._opened.handle.close)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        size = self.headers.get("content-length")
        detail = f"expected a range within the file's {size} bytes, as in `bytes=0-499`; GET it without Range"
        kept = {name: headers[name] for name in ("content-range",) if name in headers}
        await problem(scope["path"], 416, detail, kind="RangeNotSatisfiable", headers=kept)(scope, receive, send)


class _Elsewhere:
    """A file whose methods run on threads of somebody's choice."""

    def __init__(self, handle: Any, run: Callable[..., Awaitable[Any]]) -> None:
        self._handle, self._run = handle, run

    async def read(self, size: int) -> bytes:
        """So many bytes, or what is left."""
        found: bytes = await self._run(self._handle.read, size)
        return found

    async def seek(self, place: int) -> None:
        """Go on from there."""
        await self._run(self._handle.seek, place)


def _known_ranges(scope: Scope) -> Scope:
    """The request without a Range in a unit that is unknown here, which must be ignored (RFC 9110, §14.2)."""
    unit = Headers(scope=scope).get("range", "bytes").partition("=")[0]
    if unit.strip().lower() == "bytes":
        return scope
    return {**scope, "headers": [(name, value) for name, value in scope["headers"] if name != b"range"]}


def has(given: str, etag: str) -> bool:
    """If-None-Match compares weakly (RFC 9110, §13.1.2)."""
    return given.strip() == "*" or etag in (part.strip().removeprefix("W/") for part in given.split(","))


def _media(path: Path) -> str:
    """What a file is. Nothing that a browser would run: names of classes are a stranger's words."""
    return MEDIA.get(path.suffix, "application/octet-stream")
