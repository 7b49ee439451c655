"""A small chaos: what `benchmarks/service/chaos.py` does with sixty jobs and forty kills, with a few."""

from pathlib import Path

import pytest
from postgres import NoPostgres, postgres

from benchmarks.service import chaos

JOBS, KILLS, SEED = 3, 4, 20261121
pytestmark = pytest.mark.slow  # 40 s on each database; tests/jobs/worker/test_real_jobs.py kills a worker in any case


def test_nothing_is_lost_on_sqlite(tmp_path: Path) -> None:
    result = chaos.run(None, JOBS, KILLS, 2, SEED, tmp_path, pace=2.5)
    assert result["problems"] == []
    assert sum(result["kills"].values()) == KILLS
    assert sum(result["attempts"].values()) == JOBS


def test_nothing_is_lost_on_postgresql(tmp_path: Path) -> None:
    try:
        with postgres(durable=True) as server:
            result = chaos.run(server.create("chaos"), JOBS, KILLS, 2, SEED + 1, tmp_path, pace=2.5)
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    assert result["problems"] == []
    assert sum(result["kills"].values()) == KILLS


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
