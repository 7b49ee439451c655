"""A small chaos: what `benchmarks/service/chaos.py` does with sixty jobs and forty kills, with a few; and its parts by
themselves: its clock, its poison, its slow clients, and what it says of the neighbour."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from postgres import NoPostgres, postgres
from pydantic import ValidationError

from benchmarks.service import chaos, clock, deployments, faults
from benchmarks.service.neighbours import Asked, Moment, Receivers, waits
from benchmarks.service.poison import SlowClients, beginning, of_a_newer_version
from tcnn_jobs.model.jobs import NewJob
from tcnn_jobs.model.requests import KINDS

JOBS, KILLS, SEED = 3, 4, 20261121
JOBS_APART, KILLS_APART = 20, 15


@pytest.mark.slow  # 40 s on each database
def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    result = chaos.run(None, JOBS, KILLS, 2, SEED, tmp_path, pace=2.5)
    assert result["problems"] == []
    assert sum(result["kills"].values()) == KILLS
    assert sum(result["attempts"].values()) == JOBS


@pytest.mark.slow
def test_nothing_is_lost_on_postgresql(tmp_path: Path) -> None:
    try:
        with postgres(durable=True) as server:
            result = chaos.run(server.create("chaos"), JOBS, KILLS, 2, SEED + 1, tmp_path, pace=2.5)
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    assert result["problems"] == []
    assert sum(result["kills"].values()) == KILLS


@pytest.mark.slow
def test_nothing_is_lost_among_other_faults(tmp_path: Path) -> None:
    """Frozen workers and databases, poison, slow clients, a receiver that never answers: nobody else waits for them."""
    try:
        with postgres(durable=True) as server:
            url = server.create("faults")
            result = chaos.run(url, JOBS, 2, 2, SEED + 2, tmp_path, pace=2.5, faults=8, server=server)
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    assert result["problems"] == []
    assert sum(result["faults"].values()) >= 8
    assert result["neighbour"]["over_two_seconds"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 20261121])
def test_no_job_is_lost(tmp_path: Path, seed: int) -> None:
    """Server, workers and PostgreSQL apart, a store between them, and each of them killed at random moments."""
    try:
        with deployments.parted() as (url, apart):
            result = chaos.run(url, JOBS_APART, KILLS_APART, 2, seed, tmp_path, apart=apart)
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    assert result["problems"] == []
    assert result["kills"]["postgres"] > 0 and sum(result["kills"].values()) == KILLS_APART
    assert sum(result["attempts"].values()) == JOBS_APART


READ_CLOCKS = """
import sqlite3, sys, time
for line in sys.stdin:
    at = sqlite3.connect(":memory:").execute("SELECT (julianday('now') - 2440587.5) * 86400").fetchone()[0]
    print(at, time.time(), time.monotonic(), flush=True)
"""


@pytest.mark.skipif(clock.compiler() is None, reason="NOT TESTED: there is no C compiler")
def test_a_clock_is_set_for_its_own_processes_and_its_steady_one_is_not(tmp_path: Path) -> None:
    ours = clock.Clock(tmp_path / "clock")
    environment = {**os.environ, **ours.environment}
    reader = subprocess.Popen(
        [sys.executable, "-c", READ_CLOCKS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert reader.stdin is not None and reader.stdout is not None
    seen = []
    for step in (0, 100_000, -300_000):
        ours.step(step)
        reader.stdin.write("\n")
        reader.stdin.flush()
        seen.append([float(word) for word in reader.stdout.readline().split()])
    reader.stdin.close()
    assert reader.wait() == 0
    for of_day in (0, 1):
        assert seen[1][of_day] - seen[0][of_day] == pytest.approx(100_000, abs=1000)
        assert seen[2][of_day] - seen[1][of_day] == pytest.approx(-300_000, abs=1000)
    assert seen[2][2] - seen[0][2] == pytest.approx(0, abs=1000)


def test_what_cannot_be_done_here_is_not_drawn() -> None:
    assert faults.kinds(disk=False, bucket=False, clock=False) == faults.KINDS
    more = faults.kinds(disk=True, bucket=False, clock=True)
    assert more.keys() - faults.KINDS.keys() == {"full disk", "clock"}
    assert faults.KINDS.keys() > set(faults.DOOMED)


def test_a_newer_request_enters_the_queue_and_no_worker_understands_it() -> None:
    job = NewJob(**of_a_newer_version("ann", {"model": "test_resnet"}))
    with pytest.raises(ValidationError, match="of_a_newer_version"):
        KINDS[job.kind].model_validate(job.request)


def test_slow_clients_send_half_a_head_half_a_body_or_drip() -> None:
    assert not beginning(0).endswith(b"\r\n\r\n")
    assert beginning(1).endswith(b"\r\n\r\n{") and beginning(2).endswith(b"\r\n\r\n")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        clients = SlowClients(server.getsockname()[1], pause=0.005)
        accepted = [server.accept()[0] for _ in range(len(clients))]
        heard = b""
        while not heard.endswith(b"\r\n\r\n   "):  # without an end if it does not drip
            heard += accepted[2].recv(1)
        clients.close()
        for one in accepted:
            one.close()
    assert len(accepted) == 20


def test_slow_answers_are_told_with_what_was_done_before() -> None:
    asked = [Asked(0, 0.1, 200), Asked(10, 3.0, 200), Asked(50, 9.0, 200), Asked(60, 0.1, 0), Asked(70, 1.5, 200)]
    told = waits(asked, [(49.0, 59.0)], [Moment(5.0, "clock"), Moment(12.0, "poison"), Moment(40.0, "frozen worker")])
    assert (told["asked"], told["answers"], told["slowest_seconds"], told["over_two_seconds"]) == (5, 3, 3.0, 1)
    assert told["slow"] == [
        {"seconds": 1.5, "after": []},
        {"seconds": 3.0, "after": ["clock, 8.0 s", "poison, 1.0 s"]},
    ]
    frozen = waits(asked, [(49.0, 64.0)], frozen=[(49.0, 58.0)])["while_the_database_is_frozen"]
    assert frozen == {"asked": 1, "slowest_seconds": 9.0, "over_two_seconds": 1}
    assert waits([], []) == {"asked": 0, "answers": 0, "over_two_seconds": 0}


def test_webhooks_that_were_not_made_or_say_something_else_are_told() -> None:
    receivers = Receivers()
    try:
        receivers.heard |= {"job_a": {"job.succeeded"}, "job_b": {"job.succeeded", "job.failed"}}
        found = receivers.unheard(["job_a", "job_c"], lambda: None, patience=0)
    finally:
        receivers.close()
    assert found[0] == "job_c: no webhook" and found[1].startswith("job_b: webhooks") and len(found) == 2
