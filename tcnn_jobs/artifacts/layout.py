"""The layout of artifacts: paths in TCNN_HOME, and keys of objects in the store of TCNN_ARTIFACTS.

Every path that a database row or a request names is made here, and stays inside TCNN_HOME.

tcnn.db                         the queue, unless it is on PostgreSQL
jobs/JOB/CLAIM/                 one attempt: what it was told, its log, its reports, its files
jobs/JOB/CLAIM.RANDOM/          one that was set aside, because a later one has its number
datasets/ID/                    an uploaded data set, unpacked
checkpoints/ID.safetensors      an uploaded checkpoint, or uploaded weights of a CNN
incoming/                       uploads that are still being received
cache/                          what was fetched from the store, if there is one
database.id                     which database these files belong to

In the store:

jobs/JOB/CLAIM/manifest.json    what of an attempt is there, written after all that it names
jobs/JOB/CLAIM/SHA256/NAME      a file of the attempt, never changed
jobs/JOB/CLAIM.RANDOM/manifest.json  that of one that was set aside; its files stay where they are
datasets/ID.tar                 an uploaded data set, unpacked, checked and packed again
checkpoints/ID.safetensors      an uploaded checkpoint, or uploaded weights of a CNN
database.id                     which database these objects belong to
writable.txt                    written now and then, to see whether the store can be
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn_jobs.model.jobs import Artifact, Model, Upload
from tcnn_jobs.settings import QueueSettings

_ID = re.compile(r"(job|ds|ckpt|wts)_[0-9a-z]{8,40}")


class Home:
    """The service's root directory. `shared`: what has succeeded, and uploads, lie in a store that hosts share."""

    def __init__(self, root: Path, shared: bool = False) -> None:
        self.root, self.shared = root, shared
        self.jobs, self.datasets = root / "jobs", root / "datasets"
        self.checkpoints, self.incoming = root / "checkpoints", root / "incoming"
        self.cache = root / "cache"

    def create(self) -> "Home":
        """Make the folders, readable by this user alone; raises `EnvironmentFailure` if one of them cannot be written
        to."""
        with self._usable():
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in self._folders:
                folder.mkdir(exist_ok=True)
        self.check()
        return self

    def check(self) -> None:
        """Raise `EnvironmentFailure` if files cannot be written here, or a folder is not there or cannot be written
        to. None is made: a home that was moved away could no longer be moved back."""
        ids = {"effective_ids": True} if os.access in os.supports_effective_ids else {}
        if closed := [one.name for one in self._folders if not os.access(one, os.R_OK | os.W_OK | os.X_OK, **ids)]:
            raise EnvironmentFailure(
                f"TCNN_HOME={self.root}: expected folders that this user can write to, found others: "
                f"{', '.join(closed)}; change their owner or mode, or how they are mounted"
            )
        with self._usable():
            for folder in (self.root, self.jobs):
                probe = folder / ".writable"
                probe.write_bytes(bytes(1 << 16))  # a full disk takes an empty file
                probe.unlink(missing_ok=True)

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.jobs, self.datasets, self.checkpoints, self.incoming, *[self.cache] * self.shared)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise EnvironmentFailure(
                f"TCNN_HOME={self.root}: cannot be used ({(error.strerror or str(error)).lower()}); "
                "choose a directory that this user can write to"
            ) from error

    def job(self, job: str) -> Path:
        """All attempts of a job."""
        return self.jobs / checked(job)

    def attempt(self, job: str, claim: int) -> Path:
        """One attempt's own directory: two that run at once by accident share nothing."""
        return self.job(job) / str(int(claim))

    def dataset(self, identifier: str) -> Path:
        """An unpacked data set."""
        return self.datasets / checked(identifier)

    def checkpoint(self, identifier: str) -> Path:
        """An uploaded checkpoint."""
        return self.checkpoints / f"{checked(identifier)}.safetensors"

    def inside(self, folder: Path, relative: str) -> Path:
        """A path that a row names, below `folder`; raises `RequestError` if it leaves it."""
        path = (folder / relative).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise RequestError(f"{relative}: leaves {folder.name}/")
        return path


def checked(identifier: str) -> str:
    """An identifier that is safe as a file name; raises `RequestError` for any other text."""
    if not _ID.fullmatch(identifier):
        raise RequestError("no such id")
    return identifier


def id_in(name: str) -> str:
    """The id of the job or upload that a file, folder or object of this name is of; empty if its name has none."""
    found = name.partition(".")[0]
    return found if _ID.fullmatch(found) else ""


def home_of(settings: QueueSettings) -> Home:
    """The `Home` of the settings; no directory is created yet."""
    return Home(settings.root, shared=settings.artifacts is not None)


MARK = "database.id"
MANIFEST = "manifest.json"
TAR_DIGEST = "stored_sha256"
"""Where an uploaded data set's `details` keep the digest of its object."""


class Manifest(Model):
    """What of an attempt is in the store. Two attempts share nothing: a worker that is thought dead spoils nothing."""

    files: tuple[Artifact, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the files, relative to the attempt."""
        return frozenset(file.path.split("/", 2)[2] for file in self.files)

    def file(self, job: str, claim: int, name: str) -> Artifact | None:
        """The file of this name, relative to the attempt."""
        return next((file for file in self.files if file.path == f"{job}/{claim}/{name}"), None)


class Named(NamedTuple):
    """The parts of the key of a job's object: job, attempt (`3`, or `3.RANDOM`), its claim, and name."""

    job: str
    attempt: str
    claim: int
    name: str


def claim_of(attempt: str) -> int | None:
    """The claim of an attempt by its name: `3`, or `3.RANDOM` if it was set aside; None for any other name."""
    number = attempt.partition(".")[0]
    return int(number) if number.isdecimal() else None


def manifest_key(job: str, attempt: int | str) -> str:
    """The key of an attempt's manifest."""
    return f"jobs/{job}/{attempt}/{MANIFEST}"


def file_key(file: Artifact) -> str:
    """The key of a job's file."""
    job, claim, _ = file.path.split("/", 2)
    return f"jobs/{job}/{claim}/{file.sha256}/{file.path.rpartition('/')[2]}"


def upload_key(kind: str, identifier: str) -> str:
    """The key of an upload."""
    return f"datasets/{identifier}.tar" if kind == "dataset" else f"checkpoints/{identifier}.safetensors"


def upload_digest(upload: Upload) -> str:
    """The SHA-256 of an upload's object."""
    return str(upload.details.get(TAR_DIGEST, "")) if upload.kind == "dataset" else upload.sha256


def parse(key: str) -> Named | None:
    """Parse the key of a job's object; None for any other."""
    parts = key.split("/")
    claim = claim_of(parts[2]) if len(parts) > 3 and parts[0] == "jobs" else None
    return None if claim is None else Named(parts[1], parts[2], claim, parts[-1])
