"""What of an attempt's transfers must hold whatever its process does to its files, and whenever it is killed."""

import fcntl
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apart import RESULT, Host
from houses import PRELUDE, wait_for

from tcnn_jobs.artifacts.base import Reference
from tcnn_jobs.artifacts.cache import Held
from tcnn_jobs.attempt import Assignment, AttemptDirectory
from tcnn_jobs.attempts.courier import Courier
from tcnn_jobs.engines.base import Process
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.model.jobs import Kind, Status

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
