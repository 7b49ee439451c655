"""Streaming uploads: a folder as a tar, a file as a multipart form, made while they are sent.

The same folder always gives the same bytes, so that a repeated upload is recognised by its idempotency key.
"""

import secrets
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tcnn.data.sources.folder import walk
from tcnn.data.sources.names import sort_key
from tcnn.errors import RequestError, StorageError

CHUNK = 1 << 18
BLOCK = tarfile.BLOCKSIZE


def tar_folder(root: Path) -> Iterator[bytes]:
    """The images below a folder, and its folders, as an uncompressed tar: images do not compress.

    Raises `RequestError` if there is no image.
    """
    images, folders, _ = walk(root)
    if not images:
        raise RequestError(f"{root}: expected a folder of images for every class, found no image")
    for name in sorted(folders, key=sort_key):
        yield _header(name, None)
    for name in sorted(images, key=sort_key):
        path = root / name
        try:
            size = path.stat().st_size
            yield _header(name, size)
            left = size
            for chunk in read_file(path):
                left -= len(chunk)
                yield chunk
        except OSError as error:
            raise RequestError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()})") from error
        if left:
            raise StorageError(f"{path}: changed while it was sent; send the folder again")
        yield bytes(-size % BLOCK)
    yield bytes(2 * BLOCK)


def read_file(path: Path) -> Iterator[bytes]:
    """A file in pieces."""
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK):
            yield chunk


class Form:
    """A multipart form whose only part is the file."""

    def __init__(self, name: str) -> None:
        self._boundary = f"tcnn-{secrets.token_hex(16)}"
        quoted = name.replace("\\", "_").replace('"', "%22").replace("\r", "_").replace("\n", "_")
        self._head = (
            f'--{self._boundary}\r\nContent-Disposition: form-data; name="file"; filename="{quoted}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode("utf-8", "replace")
        self._tail = f"\r\n--{self._boundary}--\r\n".encode()

    @property
    def content_type(self) -> str:
        """The header that goes with it."""
        return f"multipart/form-data; boundary={self._boundary}"

    def around(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The body."""
        yield self._head
        yield from chunks
        yield self._tail


def _header(name: str, size: int | None) -> bytes:
    """A tar header for a file of a size, or for a folder; nothing in it depends on when or by whom it was made."""
    member = tarfile.TarInfo(name)
    member.mode = 0o644
    if size is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.size = size
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
