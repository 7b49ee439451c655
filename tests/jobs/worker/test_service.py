"""A worker's process: its parts hang together, signals and the end of the queue end it, and what it starts jobs by."""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from houses import PRELUDE, House, wait_for
from receiving import Receiver

from tcnn_jobs import logs
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.housekeeping import coordination, janitor
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.worker import service
from tcnn_jobs.worker.service import work
from tcnn_jobs.worker.worker import Worker

Plays = Callable[[str], QueueSettings]


@pytest.fixture
def plays(house: House, monkeypatch: pytest.MonkeyPatch) -> Plays:
    """Has jobs be a script, and housekeeping begin at once."""

    def plays(script: str) -> QueueSettings:
        engine = LocalEngine((sys.executable, "-S", "-c", PRELUDE + script))
        monkeypatch.setattr(service, "engine_for", lambda settings: engine)
        monkeypatch.setattr(coordination, "spread", lambda seconds: seconds / 50)
        monkeypatch.setattr(janitor, "SWEEP", 0.0)
        return house.settings

    return plays


def test_jobs_run_ends_are_told_and_what_is_old_is_swept(
    house: House, plays: Plays, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the queue is empty. On SQLite nobody tells of new jobs, which is said once."""
    left = house.home.incoming / "upload_0123"
    left.mkdir()
    os.utime(left, (0, 0))
    jobs = [house.submit(webhook=receiver.url), house.submit()]
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    work(plays("time.sleep(0.3); succeed()").model_copy(update={"slots": 1}), until_empty=True)
    assert [house.store.get(job.id).status for job in jobs] == [Status.SUCCEEDED] * 2
    ((_, body),) = receiver.calls
    assert json.loads(body)["job"]["id"] == jobs[0].id
    assert not left.exists()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert house.store.statistics().workers == ()
    rows = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    said = [row["event"] for row in rows]
    assert (said[0], said[-1]) == ("working", "left") and rows[0]["worker"] == rows[-1]["worker"]
    (silent,) = (row for row in rows if row["event"].startswith("the database does not tell of new jobs"))
    assert silent["poll"] == house.settings.poll


def test_a_signal_has_jobs_handed_back(house: House, plays: Plays) -> None:
    job = house.submit()

    def stop() -> None:
        wait_for(lambda: "ready" in house.kinds(job))
        os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=stop)
    watcher.start()
    began = time.monotonic()
    work(plays("wait_for_stop()"))
    watcher.join()
    assert house.store.get(job.id).status is Status.QUEUED and "handed_back" in house.kinds(job)
    assert time.monotonic() - began < 30


def test_a_process_that_cannot_be_started_is_tried_as_often_as_the_job_may_be(house: House) -> None:
    """It is this host's trouble, and is told as that."""

    class Full(LocalEngine):
        def start(self, directory: Path, gpus: object) -> object:  # type: ignore[override]
            raise OSError(11, "Resource temporarily unavailable")

    job = house.submit(max_attempts=3)
    worker = house.worker("succeed()")
    worker.engine = Full()  # type: ignore[assignment]
    worker.run(until_empty=True)
    after = house.store.get(job.id)
    assert (after.status, after.attempt) == (Status.FAILED, 3) and after.error is not None
    assert after.error.code == "environment"
    assert after.error.message.startswith("the job's process could not be started: ")
    assert after.error.message.endswith("Resource temporarily unavailable")


def test_a_database_that_can_only_be_read_is_away_once_and_back_once(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk: steps that only read succeed all the time."""
    logs.configure("json")
    worker, patience = house.worker("succeed()"), house.store.wait
    worker.step()

    def steps() -> list[int]:
        for _ in range(8):
            worker.step()
            time.sleep(0.02)
        printed = "".join(capsys.readouterr())
        return [printed.count(f"the database is {what}") for what in ("away", "back")]

    assert steps() == [0, 0]
    house.submit()
    with contextlib.closing(sqlite3.connect(house.store.place, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        house.store.wait = 0.02
        assert steps() == [1, 0]
        assert steps() == [0, 0]
        other.execute("ROLLBACK")
        house.store.wait = patience
        assert steps() == [0, 1]


def test_a_signal_may_ask_a_worker_to_leave_at_any_moment(house: House) -> None:
    """Also in the middle of what its loop waits by, where a lock that the handler wanted would be its own."""

    def asked_at(moment: int) -> bool:
        worker, lines = house.worker("", poll=0.01), 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal lines
            if frame.f_code.co_filename != threading.__file__:
                return None
            lines += event == "line" and _called_by(Worker.run, frame)
            if lines == moment and not worker.draining:
                worker.drain()
            return trace

        def run() -> None:
            sys.settrace(trace)
            worker.run()

        running = threading.Thread(target=run, daemon=True)
        running.start()
        running.join(10)
        return not running.is_alive()

    assert all(map(asked_at, range(1, 41)))


def _called_by(function: Callable[..., object], frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code is function.__code__
