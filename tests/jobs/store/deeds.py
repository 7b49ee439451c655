"""What the store's tests do again and again, in this process and in others.

`python deeds.py URL NAME DEED` is a worker process of its own; it prints a line for everything that it has done.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs.model import Artifact, Claim, Failure, Job, Kind, NewJob, Result, WorkerInfo
from jobs.store import Store

RESULT = Result(checkpoint=Artifact(name="best.safetensors", path="a/1/best.safetensors", size=7, sha256="0" * 64))
OUCH = Failure(code="diverged", message="the loss is no longer finite")
SRC = Path(__file__).parents[3]


def new(**options: Any) -> NewJob:
    """A job of the tenant ann."""
    return NewJob(**{"owner": "ann", "kind": Kind.TRANSFORM, "request": {"model": "resnet18"}, **options})


def hold(job: Job | None) -> Claim:
    """The fence that a worker keeps of what it has claimed."""
    assert job is not None and job.worker is not None
    return Claim(job=job.id, worker=job.worker, number=job.claim)


def info(name: str = "w1") -> WorkerInfo:
    """A worker with one slot."""
    return WorkerInfo(name=name, host="here", slots=1, version="0.1")


def kinds(store: Store, job: str) -> list[str]:
    """The kinds of a job's events, whose numbers have no gap."""
    events = store.events(job)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return [event.kind for event in events]


def process(url: str, name: str, deed: str) -> subprocess.Popen[str]:
    """Another process that does `deed` under this worker's name."""
    return subprocess.Popen(
        [sys.executable, __file__, url, name, deed],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def work(store: Store, name: str) -> None:
    """Claim and finish until the queue is empty."""
    while (job := store.claim(name)) is not None:
        print(job.id, flush=True)
        store.finish(hold(job), RESULT)


def die(store: Store, name: str, module: str, function: str) -> None:
    """Claim a job and finish it, and be killed where this function of the store's is called."""

    def kill(*arguments: object, **options: object) -> None:
        print("dying", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(sys.modules[f"jobs.store.{module}"], function, kill)
    store.finish(hold(store.claim(name)), RESULT)


def main(url: str, name: str, deed: str) -> None:
    """Do one deed."""
    store = Store(url, wait=30)
    if deed == "work":
        print("ready", flush=True)
        sys.stdin.readline()
        work(store, name)
    elif deed == "migrate":
        store.migrate()
        store.check()
    elif deed.startswith("die:"):
        die(store, name, *deed.split(":")[1:])
    elif deed == "lock":  # until the parent goes
        with store.writing():
            print("locked", flush=True)
            time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
