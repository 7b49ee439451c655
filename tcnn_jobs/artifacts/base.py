"""The interface of artifact storage that the server and the workers use."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tcnn_jobs.model.jobs import Artifact, Job, Model, Upload


class Reference(Model):
    """Reference of a request to a file or folder: its path on this host, now or once it was fetched.

    `key` is its object in the store, empty if there is none; `folder`: it is packed and is to be unpacked; `before` is
    where it lies if it was kept here before there was a store.
    """

    path: str
    key: str = ""
    sha256: str = ""
    size: int = 0
    folder: bool = False
    before: str = ""


class Opened(NamedTuple):
    """A file that is open for reading and seeking; its size in bytes, when it was written in seconds since 1970."""

    handle: Any
    size: int
    modified: float


class Artifacts(Protocol):
    """Results and uploads. Methods that may fetch or send raise `EnvironmentFailure`, and take their time."""

    def add(self, upload: Upload, found: Path) -> Upload:
        """Keep an upload's checked file or folder, which is moved from `found`; returns what its row shall say."""
        ...

    def remove_upload(self, upload: Upload) -> None:
        """Remove an upload's files."""
        ...

    def upload(self, upload: Upload) -> Reference:
        """The reference to an upload's file or folder."""
        ...

    def file(self, file: Artifact) -> Reference:
        """The reference to a job's published file."""
        ...

    def path(self, reference: Reference) -> Path:
        """The path of a reference on this host, fetched if need be; raises `RequestError` if it is gone."""
        ...

    def open(self, file: Artifact) -> Opened:
        """Open a published file; raises `FileNotFoundError` if it is gone."""
        ...

    def link(self, file: Artifact, seconds: float, **answer: str) -> str | None:
        """A URL at which a published file can be had without a key for so many seconds; None if there is none.

        `answer`: headers that it is given with: `content_type`, `content_disposition`.
        """
        ...

    def attempts(self, job: str, newest: int) -> list[int]:
        """Claim numbers of the attempts of a job of which there are files, the oldest first.

        `newest`: the claim of the job. Files of later ones are of a time that the database does not know of, because
        it was restored.
        """
        ...

    def published(self, job: str) -> list[int]:
        """The claims whose results other hosts can have."""
        ...

    def attempt_file(self, job: str, claim: int, name: str) -> Path | None:
        """A file of an attempt, as new as it is known here; None if there is none."""
        ...

    def attempt(self, job: Job, claim: int) -> Path | None:
        """The folder of an attempt that was published; None if it is gone."""
        ...

    def beside(self, job: str, name: str) -> Path:
        """Cache directory for what was derived from a job's files; it may be removed at any time."""
        ...

    def remove_job(self, job: str) -> None:
        """Remove all files of a job that has no row any more."""
        ...

    def check(self) -> None:
        """Raise `EnvironmentFailure` if nothing can be kept just now."""
        ...
