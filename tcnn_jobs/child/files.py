"""Files of a job's process that its result names."""

from pathlib import Path

from tcnn.files import file_digest, to_disk
from tcnn_jobs.attempt import Assignment
from tcnn_jobs.model.jobs import Artifact


def artifact_of(assignment: Assignment, path: Path, name: str | None = None) -> Artifact:
    """A file of the attempt's directory, on the disk, with its bytes and SHA-256; known by its own name or another."""
    to_disk(path)  # a result that is announced must survive a power cut
    return Artifact(
        name=name or path.name,
        path=f"{assignment.job}/{assignment.claim}/{path}",
        size=path.stat().st_size,
        sha256=file_digest(path),
    )
