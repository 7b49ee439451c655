"""A local cache of what was fetched from the store: least recently used goes first; entries are whole or not there.

An entry is a file or a folder below `TCNN_HOME/cache`. Who uses one holds a shared lock on it, which ends with the
process at the latest; what nobody holds goes, the least recently used first, when something else needs the room.
"""

import fcntl
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import structlog

from tcnn_jobs.artifacts.local import growing, publish

log = structlog.stdlib.get_logger("tcnn.cache")

YOUNG = 600.0
"""Seconds for which an entry stays though nobody holds it: the server has handed out its path."""


class Held:
    """A reference to a cache entry: it is not evicted until it is released."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    def release(self) -> None:
        """Release the entry, so that it may be evicted; a second time does nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Cache:
    """Entries of one folder, `limit` bytes at most, unless what is in use takes more."""

    def __init__(self, folder: Path, limit: float) -> None:
        self.folder, self.limit = folder, limit
        self._mutex = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}

    def hold(self, name: str, size: int, fetch: Callable[[Path], None]) -> Held:
        """The entry of this name, which `fetch(path)` makes if it is not there, of about `size` bytes.

        Of several threads that want the same one, one fetches it. Raises what `fetch` raises, and `OSError`.
        """
        while (held := self._existing(name)) is None:
            with self._turn(name):
                if not (self.folder / name).exists():
                    self.make_room(size)
                    self._make(name, fetch)
        return held

    def adopt(self, name: str, path: Path) -> None:
        """Take something that lies on the same file system as an entry, so that it need not be fetched."""
        self.make_room(_size(path))
        publish(path, self.folder / name)

    def drop(self, name: str) -> None:
        """Remove an entry, whoever holds it: open files stay readable."""
        self._remove(self.folder / name)

    def make_room(self, size: float) -> None:
        """Evict the least recently used entries that nobody holds, until so many bytes more would fit."""
        entries = [(_modified(path), path) for path in self.folder.iterdir() if not path.name.startswith(".")]
        sizes = {path: _size(path) for _, path in entries}
        total = sum(sizes.values()) + size
        for modified, path in sorted(entries):
            if total <= self.limit or time.time() - modified < YOUNG:
                return
            if self._unused(path):
                log.info("made room", entry=path.name, bytes=sizes[path])
                total -= sizes[path]

    def sweep(self, older: float) -> None:
        """Remove partial downloads of killed processes that are older than `older` seconds."""
        for path in self.folder.glob(".*"):
            if time.time() - _modified(path) > older:
                self._remove(path)

    def _existing(self, name: str) -> Held | None:
        path = self.folder / name
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            if os.stat(path).st_ino == os.fstat(lock).st_ino:  # noqa: PTH116 - the same question of both
                os.utime(path)
                return Held(path, lock)
        except FileNotFoundError:
            pass
        os.close(lock)  # it went between the two
        return None

    def _unused(self, path: Path) -> bool:
        """Remove an entry unless somebody holds it."""
        try:
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove(path)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(lock)

    def _make(self, name: str, fetch: Callable[[Path], None]) -> None:
        try:
            with growing(self.folder / name) as path:
                fetch(path)
        except OSError:
            if not (self.folder / name).exists():  # another process was faster with the same folder
                raise

    def _turn(self, name: str) -> threading.Lock:
        with self._mutex:
            return self._fetching.setdefault(name, threading.Lock())

    def _remove(self, path: Path) -> None:
        """Rename an entry, so that nobody finds it, then delete it."""
        gone = path.with_name(f".{uuid.uuid4().hex}.gone")
        try:
            path.rename(gone)
        except OSError:
            return
        if gone.is_dir():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink(missing_ok=True)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size
        except OSError:
            continue
    return total


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
