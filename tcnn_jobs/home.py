"""The layout of TCNN_HOME. Every path that a database row or a request names is made here, and stays inside.

tcnn.db                     the queue, unless it is on PostgreSQL
jobs/JOB/CLAIM/             one attempt: what it was told, its log, its reports, its files
datasets/ID/                an uploaded data set, unpacked
checkpoints/ID.safetensors  an uploaded checkpoint, or uploaded weights of a CNN
incoming/                   uploads that are still being received
cache/                      what was fetched from the store of TCNN_ARTIFACTS, if there is one
"""

import re
from pathlib import Path

from tcnn.errors import EnvironmentFailure, RequestError

_ID = re.compile(r"(job|ds|ckpt|wts)_[0-9a-z]{8,40}")


class Home:
    """The service's root directory. `shared`: what has succeeded, and uploads, lie in a store that hosts share."""

    def __init__(self, root: Path, shared: bool = False) -> None:
        self.root, self.shared = root, shared
        self.jobs, self.datasets = root / "jobs", root / "datasets"
        self.checkpoints, self.incoming = root / "checkpoints", root / "incoming"
        self.cache = root / "cache"

    def create(self) -> "Home":
        """Make the folders, readable by this user alone; raises `EnvironmentFailure`."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.jobs, self.datasets, self.checkpoints, self.incoming, *[self.cache] * self.shared):
                folder.mkdir(exist_ok=True)
            probe = self.root / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)
        except OSError as error:
            raise EnvironmentFailure(
                f"TCNN_HOME={self.root}: cannot be used ({(error.strerror or str(error)).lower()}); "
                "choose a directory that this user can write to"
            ) from error
        return self

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
