"""What of an attempt's transfers must hold whatever its process does to its files, and whenever it is killed."""

import fcntl
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from apart import RESULT, Host
from houses import PRELUDE, wait_for

from tcnn.errors import EnvironmentFailure, StorageError
from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.artifacts.cache import Held
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.artifacts.mirror import Mirror
from tcnn_jobs.attempt import Assignment, AttemptDirectory, Outcome
from tcnn_jobs.attempts.courier import Courier
from tcnn_jobs.attempts.fitness import Unfit
from tcnn_jobs.engines.base import Process
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.model.jobs import Kind, Result, Status
from tcnn_jobs.worker.service import carried as carried_by
from tcnn_jobs.worker.service import engine_for

SPOIL = "succeed(); (here / 'assignment.json').write_text('{'); (here / 'spoilt').touch()"


class Late(LocalEngine):
    """A process whose start is heard of when it has spoilt its assignment."""

    def start(self, directory: Path, gpus: Sequence[str]) -> Process:
        process = super().start(directory, gpus)
        wait_for((directory / "spoilt").exists)
        return process


def test_a_result_is_sent_though_its_process_has_spoilt_the_assignment(near: list[Host]) -> None:
    first, second = near
    job = first.submit()
    worker = first.courier("")
    worker.engine = Courier(
        Late((sys.executable, "-S", "-c", PRELUDE + RESULT + SPOIL)), first.artifacts, first.home, 0.2
    )
    worker.run(until_empty=True)
    after = first.store.get(job.id)
    assert after.status is Status.SUCCEEDED and after.result is not None and after.result.checkpoint is not None
    path = second.artifacts.path(second.artifacts.file(after.result.checkpoint))
    assert path.read_bytes() == b"weights" * 1000


def test_results_are_carried_where_hosts_share_no_folder(near: list[Host]) -> None:
    host, engine = near[0], engine_for(near[0].settings)
    assert isinstance(engine, LocalEngine)
    assert carried_by(engine, LocalArtifacts(host.home), host.home, 0.1) is engine
    found = carried_by(engine, host.artifacts, host.home, 0.1)
    assert isinstance(found, Courier) and found.every == 0.1 and found.placement(2) == engine.placement(2)


class HeldUp:
    """A process that ends when it is told to, and an engine of it."""

    def __init__(self, refusal: OSError | None = None) -> None:
        self.refusal, self.code, self.killed = refusal, None, False

    def start(self, directory: Path, gpus: Sequence[str]) -> Any:
        if self.refusal is not None:
            raise self.refusal
        return self

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True


def carried(host: Host, engine: Any, folder: Path) -> tuple[Process, AttemptDirectory]:
    """An attempt that needs nothing."""
    directory = AttemptDirectory(folder / "attempt")
    directory.create()
    directory.write(Assignment(job="job_0123456789", claim=1, kind=Kind.FINETUNE, request={}))
    return Courier(engine, host.artifacts, host.home, 0.01).start(directory.path, []), directory


def test_a_process_that_was_killed_is_over_when_it_is_gone(near: list[Host], tmp_path: Path) -> None:
    """Its slots are another job's only then: it still has its memory."""
    engine = HeldUp()
    process, _ = carried(near[0], engine, tmp_path)
    wait_for(lambda: process.poll() is None and process._process is engine)  # type: ignore[attr-defined]
    process.kill()
    assert engine.killed and process.poll() is None
    engine.code = -9
    assert process.poll() == -9


def test_a_process_that_cannot_be_started_may_be_tried_again(near: list[Host], tmp_path: Path) -> None:
    process, directory = carried(near[0], HeldUp(OSError(11, "Resource temporarily unavailable")), tmp_path)
    assert wait_for(process.poll) == EnvironmentFailure.exit_code
    found = directory.outcome()
    assert found is not None and found.retry and found.error is not None and found.error.code == "environment"
    assert found.error.message.startswith("the job's process could not be started: ")
    assert found.error.message.endswith("Resource temporarily unavailable")


def test_a_process_that_cannot_be_started_because_the_home_is_gone_is_no_attempt(
    near: list[Host], tmp_path: Path
) -> None:
    process, _ = carried(near[0], HeldUp(FileNotFoundError(2, "No such file or directory")), tmp_path)
    wait_for(lambda: not process._thread.is_alive())  # type: ignore[attr-defined]
    shutil.rmtree(near[0].home.jobs)
    with pytest.raises(Unfit, match="others: jobs"):
        process.poll()


def test_a_result_that_cannot_be_sent_is_none(
    near: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(self: Mirror, result: Result, stop: threading.Event) -> None:
        raise ValueError("what nobody\nhas thought of")

    monkeypatch.setattr(Mirror, "publish", publish)
    engine = HeldUp()
    with structlog.testing.capture_logs() as logs:
        process, directory = carried(near[0], engine, tmp_path)
        wait_for(lambda: process.poll() is None and process._process is engine)  # type: ignore[attr-defined]
        directory.finish(Outcome(result=Result(metrics={"top1": 0.5})))
        engine.code = 0
        assert wait_for(process.poll) == StorageError.exit_code
    found = directory.outcome()
    assert found is not None and found.result is None and found.retry and found.error is not None
    assert found.error.message == "the result: what nobody has thought of"
    assert [row["problem"] for row in logs if row["event"] == "could not send"] == ["what nobody has thought of"]


def test_what_arrives_after_a_kill_is_held_by_nobody(near: list[Host], tmp_path: Path, monkeypatch: Any) -> None:
    first, _ = near
    entry, arrived, leave = tmp_path / "entry", threading.Event(), threading.Event()
    entry.write_bytes(b"data")

    def hold(reference: Reference, stop: threading.Event) -> Held:
        lock = os.open(entry, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        arrived.set()
        assert leave.wait(30)
        return Held(entry, lock)

    monkeypatch.setattr(first.artifacts, "hold", hold)
    directory = AttemptDirectory(tmp_path / "attempt")
    directory.create()
    needs = (Reference(key="datasets/x", path="x", size=4, sha256="0" * 64),)
    directory.write(Assignment(job="job_0123456789", claim=1, kind=Kind.FINETUNE, request={}, needs=needs))
    process = Courier(LocalEngine((sys.executable, "-c", "")), first.artifacts, first.home, 0.1).start(
        directory.path, []
    )
    assert arrived.wait(30)
    process.kill()
    assert process.poll() is not None
    leave.set()

    def is_free() -> bool:
        with entry.open() as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    assert wait_for(is_free, 30)
