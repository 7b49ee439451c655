"""Room for uploads: what is left of a tenant's storage quota while bytes come in, and the disk space that is kept free.

The database has the last word on the quota, when an upload is published. Here it is seen to that what cannot fit takes
no disk until then. The server counts in `Rooms`; the process that examines an upload is told its `Bounds`.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tcnn.errors import StorageError
from tcnn_jobs.errors import BytesExceeded

PACKED = {"checkpoint": 1, "dataset": 4, "weights": 4}
"""Kind of an upload → how many times its stored size may be sent. A checkpoint is stored as it comes. An archive has
headers, padding and files that are not kept, too; a file of weights the optimizer's state and averages of the weights.
"""
AROUND = 1 << 20
"""Bytes of those that are not counted: a tar of two tiny images has thousands."""
ADVICE = "delete jobs, data sets or checkpoints"


class Bounds(NamedTuple):
    """What may be written for an upload: `left` bytes, None for any number, and `free` bytes stay free on the disk."""

    left: int | None = None
    free: int = 0

    @classmethod
    def read(cls, text: str) -> "Bounds":
        """From JSON, as the arguments of a process are text."""
        return cls(*json.loads(text))

    def check(self, kept: int, more: int, folder: Path) -> None:
        """Before `more` bytes are written to `folder`, with which `kept` will be stored.

        Raises `BytesExceeded` and `StorageError`.
        """
        if self.left is not None and kept > self.left:
            raise BytesExceeded(f"you may store {self.left:,} bytes more, and these are more; {ADVICE}")
        keep_free(folder, more, self.free)


def keep_free(folder: Path, more: int, free: int) -> None:
    """Raise `StorageError` if with `more` bytes on the disk of `folder` fewer than `free` were left."""
    if free and shutil.disk_usage(folder).free - more < free:
        raise StorageError(
            f"expected {free / 1e9:g} GB of the server's disk to stay free (TCNN_MIN_FREE_GB), found no room for more; "
            "nothing was kept, free some space on it or try again later"
        )


class Rooms:
    """The uploads of one server that are under way: those of a tenant share what is left of its quota.

    Args:
        folder: where uploads are written.
        free: bytes of its disk that stay free.
    """

    def __init__(self, folder: Path, free: int) -> None:
        self.folder, self.free = folder, free
        self.taken: Counter[str] = Counter()

    @contextmanager
    def enter(self, tenant: str, kind: str) -> Iterator["Room"]:
        """The room of one upload, for as long as the block runs."""
        room = Room(self, tenant, PACKED[kind])
        try:
            yield room
        finally:
            room.leave()


class Room:
    """What one upload takes of its tenant's quota, in bytes as they will be stored. `left` is what the database says,
    None for any number; of it the tenant's other uploads have taken some.
    """

    def __init__(self, rooms: Rooms, tenant: str, packed: int) -> None:
        self._rooms, self._tenant, self._packed = rooms, tenant, packed
        self._taken = 0
        self.left: int | None = None

    @property
    def rest(self) -> int | None:
        """What is left beside the other uploads."""
        return None if self.left is None else max(0, self.left - self._others)

    @property
    def bounds(self) -> Bounds:
        """What the process that examines the upload may write."""
        return Bounds(self.rest, self._rooms.free)

    @property
    def _others(self) -> int:
        return self._rooms.taken[self._tenant] - self._taken

    def receive(self, size: int) -> None:
        """So many bytes have come, or are announced; raises `BytesExceeded` for what cannot be stored."""
        more = "" if self._packed == 1 else f" and send {self._packed} times as much"
        counted = size if self._packed == 1 else max(0, size - AROUND)
        self._take(max(self._taken, -(-counted // self._packed)), more)

    def keep(self, size: int) -> None:
        """So many bytes will be stored, as was found out; raises `BytesExceeded`."""
        self._take(size)

    def write(self, more: int) -> None:
        """Before so many bytes are written; raises `StorageError`. Called from any thread."""
        keep_free(self._rooms.folder, more, self._rooms.free)

    def leave(self) -> None:
        """Nothing of it is under way any more."""
        self._rooms.taken[self._tenant] -= self._taken
        self._taken = 0
        if not self._rooms.taken[self._tenant]:
            del self._rooms.taken[self._tenant]

    def _take(self, size: int, sent: str = "") -> None:
        if self.rest is not None and size > self.rest:
            beside = ", beside your uploads under way" if self._others else ""
            raise BytesExceeded(f"you may store {self.rest:,} bytes more{beside}{sent}, and this is more; {ADVICE}")
        self._rooms.taken[self._tenant] += size - self._taken
        self._taken = size
