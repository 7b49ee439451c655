"""What two processes say to each other through a pipe: a status, a JSON object, and bytes behind it."""

import json
import struct
from typing import Any, BinaryIO

HEAD = struct.Struct(">BII")
"""Status, and the lengths of the JSON and of the bytes."""
OK, REFUSED, GONE = 0, 1, 2
"""Done; a mistake of whoever asked; what was asked about is no longer there."""


def frame(status: int, said: Any, content: bytes = b"") -> bytes:
    """The bytes that `read` understands."""
    text = json.dumps(said).encode()
    return HEAD.pack(status, len(text), len(content)) + text + content


def write(out: BinaryIO, status: int, said: Any) -> None:
    """Say something, now."""
    out.write(frame(status, said))
    out.flush()


def read(source: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next request, or None when there will be none."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    _, text, content = HEAD.unpack(head)
    return json.loads(source.read(text)), source.read(content)
