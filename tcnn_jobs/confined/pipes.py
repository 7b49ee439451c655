"""Pipes of a confined process: message frames that go in and come out, and the end of its standard error.

A frame is a status, a JSON object, and bytes after it.
"""

import json
import struct
from typing import TYPE_CHECKING, Any, BinaryIO

from tcnn.errors import shorten

if TYPE_CHECKING:
    import asyncio  # the child has no use for it

HEAD = struct.Struct(">BII")
"""Status, and the lengths of the JSON and of the bytes."""
OK, REFUSED, GONE = 0, 1, 2
"""Done; a mistake of whoever asked; what was asked about is no longer there."""
KEPT = 4096
"""Bytes of the end of standard error that are kept, however much a process writes."""


def frame(status: int, said: Any, content: bytes = b"") -> bytes:
    """Encode a frame, as `read` decodes it."""
    text = json.dumps(said).encode()
    return HEAD.pack(status, len(text), len(content)) + text + content


def write(out: BinaryIO, status: int, said: Any) -> None:
    """Write a frame and flush it."""
    out.write(frame(status, said))
    out.flush()


def read(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read the next frame, or None at the end of the pipe."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    _, text, content = HEAD.unpack(head)
    return json.loads(source.read(text)), source.read(content)


async def last_line(stream: "asyncio.StreamReader") -> str:
    """The last line of a stream that is not empty, on which an exception's traceback ends; "" where there is none.

    It says why a process failed, to the log of the service that started it. Reads to the stream's end, so that a
    process never waits for room to write.
    """
    end = b""
    while part := await stream.read(KEPT):
        end = (end + part)[-KEPT:]
    lines = end.decode("utf-8", "replace").strip().splitlines()
    return shorten(lines[-1]) if lines else ""
