"""How long a job waits for an idle worker that looks once a second, without and with PostgreSQL telling of it.

    python -m benchmarks.jobqueue.notices [--jobs 40] [--submissions 1000]

One worker with the default TCNN_POLL; jobs come one by one, each at a random moment after the one before has ended.
Timed is from a job's row to its start, both by the database's clock. Then what telling costs who submits: submissions
a second by four threads, with and without. Every commit reaches the disk.
"""

import argparse
import json
import random
import runpy
import statistics
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.reporting import processor
from tcnn_jobs.model.jobs import Job, Kind, NewJob
from tcnn_jobs.store import Store
from tcnn_jobs.worker.service import Listening

RESULTS = Path(__file__).parents[1] / "results" / "notices.json"
TESTS = Path(__file__).parents[2] / "tests" / "helpers"
JOB = NewJob(owner="bench", kind=Kind.TRANSFORM, request={"model": "resnet18"})
POLL = 1.0
TOLD = "tcnn_jobs.database.postgres.ring"


def waits(url: str, jobs: int, told: bool) -> dict[str, float]:
    """Milliseconds from the row to the start."""
    with tempfile.TemporaryDirectory(prefix="tcnn-notices-") as folder:
        house = runpy.run_path(str(TESTS / "houses.py"))["House"](Path(folder) / "home")
        house.store.close()
        house.store = store = Store(url)
        worker = house.worker("succeed()", poll=POLL)
        listening = Listening(store, worker)
        working = threading.Thread(target=worker.run)
        working.start()
        if told:
            listening.start()
        time.sleep(2 * POLL)
        took = [1000 * _waited(store, random.uniform(0.0, POLL)) for _ in range(jobs)]
        listening.stop()
        worker.drain()
        working.join()
        store.close()
    took.sort()
    return {"median_ms": _digits(statistics.median(took)), "p95_ms": _digits(took[int(0.95 * len(took))])}


def _waited(store: Store, pause: float) -> float:
    time.sleep(pause)
    job: Job = store.enqueue(JOB)
    while not (job := store.get(job.id)).terminal:
        time.sleep(0.02)
    return (job.started_at or 0.0) - job.created_at


def submissions(url: str, count: int, told: bool) -> float:
    """A second, by four threads."""
    store = Store(url)

    def submit(_: int) -> None:
        for _ in range(count // 4):
            store.enqueue(JOB)

    began = time.perf_counter()
    with ThreadPoolExecutor(4) as pool:
        if told:
            list(pool.map(submit, range(4)))
        else:
            with mock.patch(TOLD):
                list(pool.map(submit, range(4)))
    store.close()
    return round(count / (time.perf_counter() - began))


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--submissions", type=int, default=1000)
    options = parser.parse_args()
    found: dict[str, Any] = {"waits": {}, "submissions_per_second": {}}
    with runpy.run_path(str(TESTS / "postgres.py"))["postgres"](durable=True) as server:
        for told in (False, True):
            name = "told" if told else "looking"
            store = Store(url := server.create(f"waits_{name}"))
            store.migrate()
            store.close()
            found["waits"][name] = waits(url, options.jobs, told)
            runs = [submissions(url, options.submissions, told) for _ in range(3)]
            found["submissions_per_second"][name] = {"median": statistics.median(runs), "runs": runs}
    found |= {
        "database": "PostgreSQL 15, synced to disk", "poll_seconds": POLL, "jobs": options.jobs,
        "processor": processor(), "versions": {name: version(name) for name in ("psycopg", "sqlalchemy")},
    }  # fmt: skip
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
