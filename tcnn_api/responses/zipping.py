"""A zip that is made while it is sent: its members are read in pieces, one after the other, none held in memory."""

import io
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple

PIECE = 1 << 18


class Member(NamedTuple):
    """A file of a zip. `open` gives a handle and may take its time; `size` in bytes."""

    name: str
    size: int
    open: Callable[[], Any]


class _Sent(io.RawIOBase):
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


async def zipped(
    members: Iterable[Member], at: tuple[int, int, int, int, int, int], run: Callable[..., Awaitable[Any]]
) -> AsyncIterator[bytes]:
    """The bytes of a zip of these files, not compressed, for weights cannot be: `run` calls on a thread.

    `at`: the time that all of them have, so that the same files make the same zip. A file that turns out shorter or
    longer than announced ends it with an error, which the client sees as a broken download.
    """
    sent = _Sent()
    with zipfile.ZipFile(sent, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            handle = await run(member.open)
            try:
                info = zipfile.ZipInfo(member.name, at)
                info.external_attr = 0o644 << 16
                left = member.size
                with archive.open(info, "w", force_zip64=member.size >= zipfile.ZIP64_LIMIT) as out:
                    while data := await run(handle.read, PIECE):
                        left -= len(data)
                        await run(out.write, data)  # the checksum takes time
                        yield sent.take()
                if left:
                    raise OSError(f"{member.name}: its size has changed")
            finally:
                await run(handle.close)
            yield sent.take()
    yield sent.take()
