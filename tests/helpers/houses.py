"""A house with a real queue in a SQLite file, and workers whose jobs are small scripts or real fine-tuning."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tcnn.files import file_digest
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.database import schema
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.model.jobs import Job, Kind, NewJob, Status, Upload
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.store.needs import named
from tcnn_jobs.worker.worker import Worker

PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
here, parent = Path(sys.argv[1]), int(sys.argv[2])
def replace(name, what): (here / "part").write_text(json.dumps(what)); (here / "part").rename(here / name)
def progress(**facts): replace("progress.json", {"phase": "training", **facts})
def outcome(**what):
    token = json.loads((here / "assignment.json").read_text())["token"]
    replace("outcome.json", {"token": token, **what})
def event(kind, **data): (here / "events.jsonl").open("a").write(json.dumps({"kind": kind, "data": data}) + "\\n")
def succeed(): outcome(result={"metrics": {"top1": 0.5}})
def wait_for_stop(): signal.signal(signal.SIGTERM, lambda *a: sys.exit(75)); event("ready"); time.sleep(60)
"""
"""What a script that plays a job can do: all that the runner does, without loading torch."""


@functools.cache
def migrated() -> bytes:
    """A SQLite file in which all tables are made, for others to begin as: migrations take longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tcnn.db"
        store = Store(f"sqlite:///{path}")
        store.migrate()
        store.close()
        return path.read_bytes()


class House:
    """Store, home and settings; `worker(script)` makes a worker in this process."""

    def __init__(self, root: Path) -> None:
        self.settings = QueueSettings(home=root, lease=60, grace=5, poll=0.05, retry_delay=0)
        self.home = Home(root).create()
        database = root / "tcnn.db"
        if not database.exists():
            database.write_bytes(migrated())
        self.store = Store(self.settings.database)
        self.artifacts: Artifacts = LocalArtifacts(self.home)
        self._made = 0
        self.workers: list[Worker] = []

    def worker(self, script: str, slots: int = 1, **settings: Any) -> Worker:
        self._made += 1
        command = (sys.executable, "-S", "-c", PRELUDE + script)
        worker = Worker(
            self.store, self.home, LocalEngine(command), self.settings.model_copy(update=settings),
            name=f"worker-{self._made}", host="here", slots=[None] * slots,
        )  # fmt: skip
        self.workers.append(worker)
        return worker

    def sweep(self, **settings: object) -> None:
        """What housekeeping does every ten minutes, at once."""
        told = self.settings.model_copy(update=settings)
        janitor.expire(self.store, told, self.artifacts)
        janitor.sweep_home(self.home, self.store, self.artifacts)
        janitor.keep_room(self.store, told, self.artifacts)

    def messages(self, job: Job) -> list[str]:
        """What a job has said."""
        return [event.data["text"] for event in self.store.events(job.id) if event.kind == "message"]

    def submit(self, **options: Any) -> Job:
        """A job. Uploads that it names and that nobody has made are there for as long as it takes to submit it."""
        new = NewJob(**{"owner": "local", "kind": Kind.TRANSFORM, "request": {"model": "resnet18"}, **options})
        names = [name for name in named(new.request) if not name.startswith("job_")]
        missing = sorted({*names} - self.store.known(names))
        for name in missing:
            self.store.add_upload(
                Upload(id=name, owner=new.owner, kind="dataset", name=name, path=name, size=0, sha256="0" * 64)
            )
        job = self.store.enqueue(new)
        if missing:
            with self.store.writing() as connection:
                for table, column in ((schema.uploads, "id"), (schema.stored, "resource")):
                    connection.execute(table.delete().where(table.c[column].in_(missing)))
        return job

    def step_until(self, worker: Worker, reached: Callable[[], Any], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < deadline, "it did not come to that"
            worker.step()
            time.sleep(0.03)

    def kinds(self, job: Job) -> list[str]:
        return [event.kind for event in self.store.events(job.id)]


class RealWorkers:
    """`tcnn worker` processes on one home; all are gone at the end."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.environment = {
            **os.environ, "TCNN_HOME": str(root), "OMP_NUM_THREADS": "1", "TCNN_RETRY_DELAY": "0", "TCNN_POLL": "0.2",
            "TCNN_LEASE": "4", "HF_HUB_OFFLINE": "1", **environment,
        }  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self.root / f"worker-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "worker", *arguments], env=self.environment, stdout=log, stderr=log
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for(reached: Callable[[], Any], seconds: float = 90.0) -> Any:
    """The first true answer, asked for ten times a second."""
    deadline = time.monotonic() + seconds
    while not (answer := reached()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)
    return answer


def processes_of(directory: Path) -> list[int]:
    """Live processes, zombies apart, whose command names a directory or who work in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
            inside = str((entry / "cwd").readlink()).startswith(str(directory))
        except OSError:
            continue
        if state != "Z" and (str(directory) in words or inside):
            found.append(int(entry.name))
    return found


CONFIG: dict[str, Any] = {
    "epochs": 6, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 1, "val_split": 0.2, "checkpoint_steps": 1,
    "anneal_epochs": None, "log_steps": 1,
}  # fmt: skip
"""18 steps of 8 images, each with a resume point."""


def submit(house: House, images: Path, **config: object) -> Job:
    request = {
        "model": "test_resnet", "pretrained": False,
        "finetune": {"dataset": str(images), "preset": "quick", "config": CONFIG | config},
    }  # fmt: skip
    return house.submit(kind=Kind.TRANSFORM, request=request)


def epoch_of(house: House, job: Job) -> int:
    progress = house.store.get(job.id).progress
    return (progress.epoch or 0) if progress and progress.phase == "training" else 0


def wait_for_training(house: House, job: Job, epoch: int = 2) -> None:
    wait_for(lambda: epoch_of(house, job) >= epoch)


def wait_for_end(house: House, job: Job) -> Job:
    return wait_for(lambda: (now := house.store.get(job.id)).terminal and now)


def published(house: House, job: Job) -> Path:
    """The job's checkpoint, once it has been found to be what the row says."""
    import torch

    import tcnn

    after = house.store.get(job.id)
    assert after.status is Status.SUCCEEDED, after.error
    assert after.result is not None and after.result.checkpoint is not None
    for file in after.result.files:
        path = house.home.jobs / file.path
        assert (path.stat().st_size, file_digest(path)) == (file.size, file.sha256), file.name
    path = house.home.jobs / after.result.checkpoint.path
    assert isinstance(tcnn.load(path), torch.nn.Module)
    return path
