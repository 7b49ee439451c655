"""Artifacts in the home of this host, or in a folder that all hosts mount: the default."""

import ctypes
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tcnn.files import folder_to_disk, to_disk
from tcnn_jobs.artifacts.base import Opened, Reference
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.model.jobs import Artifact, Job, Upload

_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


class LocalArtifacts:
    """As `Artifacts`; nothing is ever fetched."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def add(self, upload: Upload, found: Path) -> Upload:
        """As `Artifacts.add`."""
        place = self._home.inside(self._home.root, upload.path)
        publish(found, place)
        return upload

    def remove_upload(self, upload: Upload) -> None:
        """As `Artifacts.remove_upload`."""
        remove(self._home.inside(self._home.root, upload.path))

    def upload(self, upload: Upload) -> Reference:
        """As `Artifacts.upload`."""
        place = self._home.dataset if upload.kind == "dataset" else self._home.checkpoint
        return Reference(path=str(place(upload.id)))

    def file(self, file: Artifact) -> Reference:
        """As `Artifacts.file`."""
        return Reference(path=str(self._home.inside(self._home.jobs, file.path)))

    def path(self, reference: Reference) -> Path:
        """As `Artifacts.path`."""
        return Path(reference.path)

    def open(self, file: Artifact) -> Opened:
        """As `Artifacts.open`."""
        handle = self._home.inside(self._home.jobs, file.path).open("rb")
        found = os.fstat(handle.fileno())
        return Opened(handle, found.st_size, found.st_mtime)

    def link(self, file: Artifact, seconds: float, **answer: str) -> str | None:
        """As `Artifacts.link`: files of the home are given out by the server alone."""
        return None

    def attempts(self, job: str, newest: int) -> list[int]:
        """As `Artifacts.attempts`."""
        return [claim for claim in self.published(job) if claim <= newest]

    def published(self, job: str) -> list[int]:
        """As `Artifacts.published`."""
        folder = self._home.job(job)
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []

    def attempt_file(self, job: str, claim: int, name: str) -> Path | None:
        """As `Artifacts.attempt_file`."""
        path = self._home.attempt(job, claim) / name
        return path if path.is_file() else None

    def attempt(self, job: Job, claim: int) -> Path | None:
        """As `Artifacts.attempt`."""
        path = self._home.attempt(job.id, claim)
        return path if path.is_dir() else None

    def beside(self, job: str, name: str) -> Path:
        """As `Artifacts.beside`."""
        return self._home.job(job) / name

    def remove_job(self, job: str) -> None:
        """As `Artifacts.remove_job`."""
        shutil.rmtree(self._home.job(job), ignore_errors=True)

    def sizes(self) -> dict[str, int]:
        """Disk usage of every job's files, in bytes."""
        return {path.name: disk_usage(path) for path in self._home.jobs.iterdir()}

    def check(self) -> None:
        """As `Artifacts.check`; whether there is a home is asked elsewhere."""


def publish(found: Path, place: Path) -> None:
    """Give a finished file or folder its name once it is on the disk, for what has a name is believed to be whole, also
    after a power cut; the name is on the disk, too, when this returns."""
    if found.is_dir():
        _all_to_disk(found)
    else:
        to_disk(found)
    found.rename(place)
    folder_to_disk(place.parent)


@contextmanager
def growing(place: Path) -> Iterator[Path]:
    """Context with a hidden name beside `place` for a file or folder, which is published there at the end, or removed
    after an error."""
    _make_folder(place.parent)
    temporary = place.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        publish(temporary, place)
    finally:
        remove(temporary)


def _make_folder(folder: Path) -> None:
    """As `mkdir` with parents; those that are new are on the disk."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        folder_to_disk(folder.parent)


def _all_to_disk(folder: Path) -> None:
    """Flush a folder and all that is in it, in one go: a data set may have a hundred thousand files, and each would
    wait for the disk by itself."""
    if _syncfs is None:
        os.sync()
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _syncfs(number):
            raise OSError(code := ctypes.get_errno(), os.strerror(code), str(folder))
    finally:
        os.close(number)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def disk_usage(folder: Path) -> int:
    """Bytes on disk; a file with several links counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in (folder, *folder.rglob("*")):
        try:
            stat = path.lstat()
        except OSError:
            continue
        seen[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(seen.values())
