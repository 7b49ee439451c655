"""Both ends of the tests of `tcnn jobs`: the command line inside the test's process, and a worker that the test
plays.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tcnn.cli.main import main
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.model.jobs import Artifact, Beat, Claim, Failure, NewEvent, Progress, Result
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store


class Printed(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def error(self, code: int) -> str:
        """The one line of an error, and nothing beside it."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        return self.err


Run = Callable[..., Printed]


def runner(capsys: pytest.CaptureFixture[str], group: str = "jobs") -> Run:
    """What runs one command after the other."""

    def run(*arguments: object) -> Printed:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([group, *map(str, arguments)])
        out, err = capsys.readouterr()
        return Printed(int(ended.value.code or 0), out, err)

    return run


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

    def write(self, claim: Claim, name: str, text: str) -> None:
        folder = self.home.attempt(claim.job, claim.number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

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
