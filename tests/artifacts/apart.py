"""Hosts that share nothing with others but a database and a store; their jobs are scripts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from houses import PRELUDE, House, migrated
from s3 import BUCKET

from tcnn_jobs.artifacts.layout import home_of
from tcnn_jobs.artifacts.shared import SharedArtifacts, open_artifacts
from tcnn_jobs.attempts.courier import Courier
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.store import Store
from tcnn_jobs.worker.worker import Worker

URL = f"s3://{BUCKET}/team"
"""Where their store is, beside what others have in the bucket."""
RESULT = """
import hashlib
told = json.loads((here / "assignment.json").read_text())
def publish(name, content):
    path = here / name; path.parent.mkdir(parents=True, exist_ok=True); path.write_bytes(content)
    return dict(name=path.name, path=f"{told['job']}/{told['claim']}/{name}", size=len(content),
                sha256=hashlib.sha256(content).hexdigest())
def point(number, content): publish(f"run/resume/step-{number:09d}.safetensors", content)
def succeed(content=b"weights" * 1000):
    publish("run/config.json", b"{}"); publish("run/metrics.jsonl", b'{"loss": 1}\\n')
    best = publish("run/best.safetensors", content)
    outcome(result={"checkpoint": best, "files": [best]})
"""
"""What a script that plays a job can do beside `PRELUDE`'s."""


class Host(House):
    """A host with a home of its own, whose results go to the store."""

    artifacts: SharedArtifacts

    def __init__(self, root: Path, database: str, every: float = 0.2, store: str = URL) -> None:
        super().__init__(root)
        self.store.close()
        self.settings = self.settings.model_copy(update={"artifacts": store, "database_url": database})
        self.home = home_of(self.settings).create()
        self.store = Store(database)
        self.store.migrate()
        opened = open_artifacts(self.settings, self.home)
        assert isinstance(opened, SharedArtifacts)
        self.artifacts, self._every = opened, every

    def stored(self) -> set[str]:
        """Keys of all that is in the store, digests left out."""
        found = {**self.artifacts.bucket.keys("jobs"), **self.artifacts.bucket.keys("datasets")}
        return {"/".join(part for part in key.split("/") if len(part) != 64) for key in found}

    def courier(self, script: str, slots: int = 1, **settings: object) -> Worker:
        self._made += 1
        engine = LocalEngine((sys.executable, "-S", "-c", PRELUDE + RESULT + script))
        worker = Worker(
            self.store, self.home, Courier(engine, self.artifacts, self.home, self._every),
            self.settings.model_copy(update=settings), name=f"{self.home.root.parent.name}-{self._made}",
            host=self.home.root.parent.name, slots=[None] * slots, artifacts=self.artifacts,
        )  # fmt: skip
        self.workers.append(worker)
        return worker


@contextmanager
def two_hosts(folder: Path, store: str) -> Iterator[list[Host]]:
    """Both have one database; their jobs end with the block."""
    (folder / "shared.db").write_bytes(migrated())
    database = f"sqlite:///{folder / 'shared.db'}"
    hosts = [Host(folder / name / "home", database, store=store) for name in ("first", "second")]
    yield hosts
    for host in hosts:
        for worker in host.workers:
            for attempt in worker._running:
                attempt.process.kill()
        host.store.close()
