"""Message frames between two processes on a pipe: a status, a JSON object, and bytes after it."""

import json
import struct
from typing import Any, BinaryIO

HEAD = struct.Struct(">BII")
"""Status, and the lengths of the JSON and of the bytes."""
OK, REFUSED, GONE = 0, 1, 2
"""Done; a mistake of whoever asked; what was asked about is no longer there."""


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
