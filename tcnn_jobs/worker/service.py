"""Entry point of a worker process: builds the worker from settings, handles signals, runs it, listens for new jobs."""

import os
import random
import secrets
import signal
import socket
import threading
from types import FrameType

import structlog

from tcnn.processes import keep_to_oneself
from tcnn_jobs import logs
from tcnn_jobs.artifacts.layout import Home, home_of
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.artifacts.shared import SharedArtifacts, open_artifacts
from tcnn_jobs.attempts.courier import Courier
from tcnn_jobs.engines.base import Engine
from tcnn_jobs.engines.local import LocalEngine, RayEngine
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.housekeeping import coordination, ownership
from tcnn_jobs.housekeeping.janitor import Chores
from tcnn_jobs.housekeeping.webhooks import Outbox
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker.heartbeats import check_fellows
from tcnn_jobs.worker.slots import slots_for
from tcnn_jobs.worker.worker import Worker

log = structlog.stdlib.get_logger("tcnn.worker")

LEAVING = 15.0
"""Seconds that housekeeping and webhooks get to end what they are doing."""
SHORTEST, LONGEST = 1.0, 30.0
"""Seconds between two attempts to listen again, doubled each time that one fails."""


def work(settings: QueueSettings, *, until_empty: bool = False) -> None:
    """Run a worker until SIGTERM or Ctrl-C, or until the queue is empty. Call it from the main thread.

    Raises `EnvironmentFailure` if the home directory or the database cannot be used, or workers of other versions are
    at the queue; `OtherDatabase` if files of another database are in the home directory or the bucket.
    """
    keep_to_oneself()
    logs.configure(settings.log_format, settings.log_level)
    home = home_of(settings).create()
    artifacts = open_artifacts(settings, home)
    store = Store(settings.database)
    store.migrate()
    ownership.check_all(ownership.places(home, artifacts), store)
    check_fellows(store)
    host = socket.gethostname()
    name = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
    slots = slots_for(settings.slots)
    engine = carried(engine_for(settings), artifacts, home, settings.mirror)
    worker = Worker(store, home, engine, settings, name=name, host=host, slots=slots, artifacts=artifacts)
    beside = (
        Chores(store, home, settings, artifacts, worker.election),
        Outbox(store, settings, worker.election),
        Listening(store, worker),
    )

    def leave(number: int, frame: FrameType | None) -> None:
        worker.drain()

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    log.info("working", worker=name, slots=len(slots), gpus=[slot for slot in slots if slot], home=str(home.root))
    for thread in beside:
        thread.start()
    try:
        worker.run(until_empty=until_empty)
    finally:
        for thread in beside:
            thread.stop()
        for thread in beside:
            thread.join(timeout=LEAVING / len(beside))
        store.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    log.info("left", worker=name)


def carried(engine: Engine, artifacts: LocalArtifacts | SharedArtifacts, home: Home, every: float) -> Engine:
    """The engine, wrapped by a `Courier` where artifacts are in an object store."""
    return engine if isinstance(artifacts, LocalArtifacts) else Courier(engine, artifacts, home, every)


def engine_for(settings: QueueSettings) -> Engine:
    """The configured engine: local processes or Ray."""
    passed = settings.job_environment
    if settings.engine == "ray":
        return RayEngine(settings.ray_address, settings.grace, passed)
    return LocalEngine(passed=passed)


class Listening(threading.Thread):
    """Makes a worker look at the queue at once when PostgreSQL tells that a job is due; polling goes on beside it.

    Ends with the process, when told to, or where nobody tells.
    """

    def __init__(self, store: Store, worker: Worker) -> None:
        super().__init__(name="listening", daemon=True)
        self._store, self._worker = store, worker
        self._told = threading.Event()
        self._pause = SHORTEST

    def run(self) -> None:
        """Listen until `stop`."""
        while not self._told.is_set():
            try:
                if not self._store.listen(self._hear, self._told):
                    log.info(
                        "the database does not tell of new jobs; they are looked for", poll=self._worker.settings.poll
                    )
                    return
            except StoreUnavailable as error:
                log.warning("cannot hear of new jobs; they are looked for until it can", problem=str(error))
            except Exception:
                log.exception("cannot hear of new jobs; they are looked for until it can")
            self._told.wait(coordination.spread(self._pause))
            self._pause = min(2 * self._pause, LONGEST)

    def stop(self) -> None:
        """End within half a second."""
        self._told.set()

    def _hear(self) -> None:
        self._pause = SHORTEST
        # In a large fleet some answer, or all would ask at once for a job that one of them gets.
        if random.random() < coordination.answering(self._worker.fellows):  # noqa: S311 - nobody gains from guessing it
            self._worker.look()
