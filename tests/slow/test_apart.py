"""Server, workers and PostgreSQL apart, a store between them, and each of them killed at random moments of 20 jobs."""

from pathlib import Path

import pytest
from postgres import NoPostgres

from benchmarks.service import chaos, deployments

JOBS, KILLS = 20, 15


@pytest.mark.parametrize("seed", [7, 20261121])
def test_no_job_is_lost(tmp_path: Path, seed: int) -> None:
    try:
        with deployments.parted() as (url, apart):
            result = chaos.run(url, JOBS, KILLS, 2, seed, tmp_path, apart=apart)
    except NoPostgres as missing:
        pytest.skip(f"NOT TESTED ON POSTGRESQL: {missing}")
    assert result["problems"] == []
    assert result["kills"]["postgres"] > 0 and sum(result["kills"].values()) == KILLS
    assert sum(result["attempts"].values()) == JOBS
