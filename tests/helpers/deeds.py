"""What the store's tests do again and again, in this process and in others."""

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
from forked import processes

from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Artifact, Claim, Failure, Job, Kind, NewJob, Result
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store
from tcnn_jobs.store.fleet import HOUSE

RESULT = Result(checkpoint=Artifact(name="best.safetensors", path="a/1/best.safetensors", size=7, sha256="0" * 64))
OUCH = Failure(code="diverged", message="the loss is no longer finite")


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


@contextmanager
def unavailable(match: str, within: float) -> Iterator[None]:
    """The store says within so many seconds, on one line, that the database cannot be used."""
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match=match) as caught:
        yield
    assert time.monotonic() - start < within
    assert "\n" not in str(caught.value)


class Child:
    """Another process that does `deed`, a function of this file, as the worker `name`, and tells what it has done."""

    def __init__(self, deed: str, url: str, name: str = "w2", *arguments: object) -> None:
        self._ours, theirs = processes.Pipe()
        self._process = processes.Process(target=_child, args=(theirs, deed, url, name, arguments), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed

    def hear(self) -> str | None:
        """The next thing that it says; None when it is gone."""
        assert self._ours.poll(60)
        try:
            return str(self._ours.recv())
        except EOFError:
            return None

    def go(self) -> None:
        """What some deeds wait for."""
        self._ours.send("go")

    def rest(self) -> list[str]:
        """All that it says until it is gone."""
        return list(iter(self.hear, None))

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        self._process.kill()
        self._process.join(60)

    @property
    def exitcode(self) -> int | None:
        """How it ended, minus the signal's number."""
        self._process.join(60)
        return self._process.exitcode


def _child(pipe: Connection, deed: str, url: str, name: str, arguments: tuple[object, ...]) -> None:
    DEEDS[deed](Store(url, wait=30), name, pipe, *arguments)


def work(store: Store, name: str, pipe: Connection) -> None:
    """Claim and finish until the queue is empty."""
    pipe.send("ready")
    pipe.recv()
    while (job := store.claim(name)) is not None:
        pipe.send(job.id)
        store.finish(hold(job), RESULT)


def die(store: Store, name: str, pipe: Connection, module: str, function: str) -> None:
    """Claim a job and finish it, and be killed where this function of the store's is called."""

    def kill(*arguments: object, **options: object) -> None:
        pipe.send("dying")
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(sys.modules[f"tcnn_jobs.store.{module}"], function, kill)
    store.finish(hold(store.claim(name)), RESULT)


def migrate(store: Store, name: str, pipe: Connection) -> None:
    """Make the tables as soon as all are there."""
    pipe.send("ready")
    pipe.recv()
    store.migrate()
    store.check()
    pipe.send("done")


def lock(store: Store, name: str, pipe: Connection) -> None:
    """Be in the middle of a transaction until killed."""
    with store.writing():
        pipe.send("locked")
        time.sleep(600)


def fill(store: Store, name: str, pipe: Connection, limit: int) -> None:
    """Submit jobs on a disk that has no room beyond `limit` bytes a file, until five were refused; then make room."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    sys.dont_write_bytecode = True  # Python would keep what is cut short
    refused = 0
    while refused < 5:
        try:
            pipe.send(store.enqueue(new(request={"model": "resnet18", "long": "x" * 5000})).id)
        except StoreUnavailable as error:
            refused += 1
            pipe.send(f"refused: {error}")
    pipe.send(f"readable: {len(store.list(limit=5)[0])}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    pipe.send(store.enqueue(new()).id)


def check_without_room(store: Store, name: str, pipe: Connection) -> None:
    """Check the database on a disk that has no room at all, and with room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))
    _check(store, pipe)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _check(store, pipe)


def check_as_another(store: Store, name: str, pipe: Connection) -> None:
    """Check the database as a user who may read it and no more."""
    store.check()  # Python's own modules may be closed to others
    store.close()
    os.seteuid(65534)
    _check(store, pipe)


def _check(store: Store, pipe: Connection) -> None:
    try:
        store.check()
        pipe.send("accepted")
    except StoreUnavailable as error:
        pipe.send(f"refused: {error}")


def keep(store: Store, name: str, pipe: Connection, seconds: float) -> None:
    """Keep house until killed."""
    pipe.send(str(store.hold(HOUSE, name, seconds).mine))
    time.sleep(600)


DEEDS: dict[str, Any] = {
    deed.__name__: deed for deed in (work, die, migrate, lock, fill, check_without_room, check_as_another, keep)
}
