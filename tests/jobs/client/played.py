"""A worker that the test plays, through the store: no process, no training."""

import hashlib
from pathlib import Path
from typing import Any

from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.model.jobs import Artifact, Beat, Claim, Failure, NewEvent, Progress, Result
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store

CONTENT = bytes(range(256)) * 4000


class Worker:
    """Takes jobs as a worker does."""

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        self.store = Store(f"sqlite:///{home / 'tcnn.db'}")

    def take(self) -> Claim:
        job = self.store.claim("w")
        assert job
        return Claim(job=job.id, worker="w", number=job.claim)

    def tell(self, claim: Claim, *events: NewEvent, **progress: Any) -> None:
        beat = Beat(claim=claim, progress=Progress(**progress) if progress else None, events=events)
        self.store.heartbeat(WorkerInfo(name="w", host="here", slots=1, version="0"), [beat])

    def finish(self, claim: Claim, content: bytes = CONTENT) -> None:
        folder = self.home.attempt(claim.job, claim.number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "best.safetensors").write_bytes(content)
        sha = hashlib.sha256(CONTENT).hexdigest()
        path = f"{claim.job}/{claim.number}/best.safetensors"
        file = Artifact(name="best.safetensors", path=path, size=len(CONTENT), sha256=sha)
        self.store.finish(claim, Result(checkpoint=file, files=(file,)))

    def fail(self, claim: Claim, code: str, message: str) -> None:
        self.store.fail(claim, Failure(code=code, message=message))
