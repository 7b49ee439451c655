"""Multipart form uploads: from the socket to disk in pieces of a megabyte; nothing ever holds a whole file."""

import asyncio
import hashlib
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from anyio import to_thread
from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from tcnn.characters import without_faults
from tcnn.errors import storage_errors
from tcnn_api import middleware
from tcnn_api.errors import Refused, UnsupportedMedia
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.confined.room import Room

FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {"file": {"type": "string", "format": "binary", "description": "The file."}},
                }
            }
        },
    }
}
"""The body in OpenAPI: FastAPI cannot know it, since no route asks it to read one."""
_PIECE = 1 << 20


class Received(NamedTuple):
    """A file that has arrived, in a folder of its own below `incoming`."""

    folder: Path
    path: Path
    name: str
    size: int
    sha256: str


@asynccontextmanager
async def received(
    request: Request, home: Home, room: Room, run: Callable[..., Awaitable[Any]]
) -> AsyncIterator[Received]:
    """The file of a multipart form, for as long as the block runs; the middleware cuts off what is too long, and `room`
    what the tenant may not store.

    `run` makes a call on a thread: disks and hashes are slow.

    Raises `Refused`, `TooLarge`, `UnsupportedMedia`, `BytesExceeded`, `StorageError`.
    """
    boundary = _boundary(request)
    announced = request.headers.get("content-length", "")
    if announced.isdigit():
        room.receive(max(0, int(announced) - middleware.FORM))
        await to_thread.run_sync(room.write, int(announced))
    folder = home.incoming / f"upload_{secrets.token_hex(12)}"
    with storage_errors(Path("the upload")):
        folder.mkdir(mode=0o700)
        form = _Form(boundary, folder / "file")
        try:
            await _read(request, form, room, run)
            yield await run(form.finish)
        finally:
            form.close()
            await _discard(folder)


async def _discard(folder: Path) -> None:
    """Remove a folder on a thread; at once where nobody waits for threads any more, for the server leaves."""
    try:
        await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
    except asyncio.CancelledError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _read(request: Request, form: "_Form", room: Room, run: Callable[..., Awaitable[Any]]) -> None:
    """Feed the form in pieces, off the event loop."""
    waiting: list[bytes] = []
    size = 0

    def feed(data: bytes) -> int:
        room.write(len(data))
        form.feed(data)
        return form.size

    try:
        async for chunk in request.stream():
            waiting.append(chunk)
            size += len(chunk)
            if size >= _PIECE:
                room.receive(await run(feed, b"".join(waiting)))
                waiting, size = [], 0
    except ClientDisconnect as error:
        raise Refused("file", "the upload broke off; send it again") from error
    room.receive(await run(feed, b"".join(waiting)))


class _Form:
    """A multipart form with one file, `file`, which goes to disk as it comes."""

    def __init__(self, boundary: bytes, path: Path) -> None:
        self._path = path
        self._out = path.open("xb")
        self._sha = hashlib.sha256()
        self.size = self._files = 0
        self._name = "file"
        self._field, self._value = b"", b""
        self._disposition = ""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._data,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        """The next bytes of the body."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise Refused("file", f"expected a multipart form, found another body ({error})") from error

    def finish(self) -> Received:
        """The file, when the form is complete."""
        if not self._ended:
            raise Refused("file", "expected a whole multipart form, it ends too early; send it again")
        if not self._files:
            raise Refused("file", "required, found nothing; send it as the form's part `file`")
        self._out.close()
        return Received(self._path.parent, self._path, self._name, self.size, self._sha.hexdigest())

    def close(self) -> None:
        self._out.close()

    def _begin(self) -> None:
        self._field, self._value, self._disposition = b"", b"", ""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value.decode("utf-8", "replace")
        self._field, self._value = b"", b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition.encode().decode("latin-1"))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name != "file":
            raise Refused("file", f"expected one part, `file`, found {name[:60]!a}; leave the others out")
        self._files += 1
        if self._files > 1:
            raise Refused("file", "expected one file, found two; send them one after the other")
        self._name = _display_name(options.get(b"filename", b"").decode("utf-8", "replace"))

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.size += end - start
        piece = memoryview(data)[start:end]
        self._sha.update(piece)
        self._out.write(piece)

    def _end(self) -> None:
        self._ended = True


def _boundary(request: Request) -> bytes:
    given = request.headers.get("content-type", "")
    media, options = parse_options_header(given)
    if media != b"multipart/form-data":
        raise UnsupportedMedia(f"expected Content-Type: multipart/form-data, found {ascii(given[:100]) or 'none'}")
    boundary = options.get(b"boundary", b"")
    if not 0 < len(boundary) <= 70:
        raise Refused("file", "expected a boundary of 1 to 70 characters in Content-Type; let the HTTP client set it")
    return boundary


def _display_name(given: str) -> str:
    """The last part of a file's name, as it may be shown."""
    last = given.replace("\\", "/").rpartition("/")[2]
    return without_faults(last)[:200] or "file"
