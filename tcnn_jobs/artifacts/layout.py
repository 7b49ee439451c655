"""Object keys in the store.

jobs/JOB/CLAIM/manifest.json    what of an attempt is there, written after all that it names
jobs/JOB/CLAIM/SHA256/NAME      a file of the attempt, never changed
datasets/ID.tar                 an uploaded data set, unpacked, checked and packed again
checkpoints/ID.safetensors      an uploaded checkpoint, or uploaded weights of a CNN
"""

from typing import NamedTuple

from tcnn_jobs.model.jobs import Artifact, Model, Upload

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
    """The parts of the key of a job's object: job, claim and name."""

    job: str
    claim: int
    name: str


def manifest_key(job: str, claim: int) -> str:
    """The key of an attempt's manifest."""
    return f"jobs/{job}/{claim}/{MANIFEST}"


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
    if len(parts) < 4 or parts[0] != "jobs" or not parts[2].isdecimal():
        return None
    return Named(parts[1], int(parts[2]), parts[-1])
