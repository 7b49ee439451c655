"""A job that takes too much memory dies, and nothing beside it: real processes that really take it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from houses import House, processes_of, wait_for

from tcnn_jobs.attempts import running
from tcnn_jobs.engines import memory
from tcnn_jobs.model.jobs import Status

MB = 2**20
HOLD = "held = bytearray(200 << 20); held[::4096] = b'x' * len(held[::4096])\n"
"""200 MiB that are really there."""
FORKS = f"""
import os, time
{HOLD}
for _ in range(2):
    if os.fork() == 0: time.sleep(60)
print("ready", flush=True); time.sleep(60)
"""
LEAVES = f"""
import subprocess, sys, time
child = {HOLD!r} + "import time; print('ready', flush=True); time.sleep(60)"
started = subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True)
try: time.sleep(60)
finally: started.kill()
"""
GREEDY = (
    """
if json.loads((here / "assignment.json").read_text())["request"]["model"] == "modest":
    time.sleep(0.5); succeed(); sys.exit()
"""
    + HOLD
    + "time.sleep(60)"
)


@contextmanager
def _running(script: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        for one in memory._family(process.pid):
            os.kill(one.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "FRESH", -1.0)
    monkeypatch.setattr(running, "LOOK", 0.1)
    monkeypatch.setattr(running, "SHARE", 1.0)


def test_pages_that_processes_share_are_counted_once_where_it_matters() -> None:
    with _running(FORKS) as pid:
        assert memory.taken(pid, most=10**12) > 600 * MB, "a quick look, which counts them three times"
        assert 200 * MB < memory.taken(pid, most=300 * MB) < 300 * MB
    wait_for(lambda: memory.taken(pid, most=0) == 0)  # its forks are still going


def test_what_left_the_session_counts_too() -> None:
    with _running(LEAVES) as pid:
        assert memory.taken(pid, most=0) > 200 * MB


def test_a_greedy_job_is_killed_and_its_neighbour_is_not(house: House) -> None:
    greedy, modest = house.submit(max_attempts=2), house.submit(request={"model": "modest"})
    house.worker(GREEDY, slots=2, job_memory_gb=0.1).run(until_empty=True)
    failed = house.store.get(greedy.id)
    assert (failed.status, failed.attempt) == (Status.FAILED, 2)
    assert failed.error is not None and failed.error.code == "out_of_memory"
    # More than it may, however far it had come when it was looked at.
    assert re.match(r"killed for memory: it took 0\.[12]", failed.error.message)
    assert "may take 0.1 (TCNN_JOB_MEMORY_GB); ask for smaller batches" in failed.error.message
    assert house.store.get(modest.id).status is Status.SUCCEEDED
    assert processes_of(house.home.job(greedy.id)) == []


@pytest.mark.slow  # one of one slot is above
def test_a_wide_job_may_take_as_much_for_each_slot(house: House) -> None:
    job = house.submit(slots=3)
    script = HOLD + "time.sleep(0.5); succeed()"
    house.worker(script, slots=3, job_memory_gb=0.1).run(until_empty=True)
    assert house.store.get(job.id).status is Status.SUCCEEDED


def test_jobs_go_first_when_the_host_runs_out_of_memory_and_the_worker_does_not(house: House) -> None:
    """Their processes' children, too."""
    script = """
child = subprocess.run(["cat", "/proc/self/oom_score_adj"], capture_output=True, text=True).stdout
event("scores", own=Path("/proc/self/oom_score_adj").read_text().strip(), child=child.strip()); succeed()
"""
    before = Path("/proc/self/oom_score_adj").read_text()
    job = house.submit()
    house.worker("time.sleep(0.2)\n" + script).run(until_empty=True)
    (scores,) = [event.data for event in house.store.events(job.id) if event.kind == "scores"]
    assert scores == {"own": "1000", "child": "1000"}
    assert Path("/proc/self/oom_score_adj").read_text() == before


def test_what_the_system_ended_for_memory_is_told_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the job ends itself as the system would, and the system's count is raised."""
    before = memory.kills()
    monkeypatch.setattr(memory, "kills", lambda: before + 1)
    job = house.submit(max_attempts=1)
    house.worker("os.kill(os.getpid(), 9)").run(until_empty=True)
    error = house.store.get(job.id).error
    assert error is not None and error.code == "out_of_memory"
    assert error.message.startswith("killed for memory: this host had none left") and "\n" not in error.message


def test_a_system_that_counts_what_it_ends_is_believed() -> None:
    counted = [
        line.split()[1] for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")
    ]
    assert [str(memory.kills())] == (counted or ["0"])
