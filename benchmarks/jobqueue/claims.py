"""How many jobs a second can be claimed and finished, on SQLite and on PostgreSQL.

    python -m benchmarks.jobqueue.claims [--workers 4] [--jobs 1000] [--repeats 5]

Worker processes empty one queue: claim, finish with a result, again. Timed is from the moment when all of them are
ready to when the last has found the queue empty, so start-up does not count. Every commit reaches the disk. Afterwards
every job must have succeeded exactly once. Written down are all repeats and their median, the slowest cycle of each,
submissions a second by one client before that, and what one commit to the same disk costs.
"""

import argparse
import json
import multiprocessing
import os
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.reporting import processor
from tcnn_jobs.model.jobs import Artifact, Claim, Kind, NewJob, Result, Status
from tcnn_jobs.store import Store

RESULTS = Path(__file__).parents[1] / "results" / "queue.json"
POSTGRES = Path(__file__).parents[2] / "tests" / "helpers" / "postgres.py"
FLOOR = 200  # claims a second that four workers must reach

JOB = NewJob(owner="bench", kind=Kind.FINETUNE, request={"model": "resnet50d", "dataset": "cifar10"})
RESULT = Result(checkpoint=Artifact(name="best.safetensors", path="x/1/best.safetensors", size=1, sha256="0" * 64))
WAIT = 60.0


def work(url: str, name: str, ready: Barrier, told: Any) -> None:
    """Claim and finish until the queue is empty; tell how long the slowest cycle took."""
    store = Store(url, wait=WAIT)
    store.check()
    ready.wait()
    slowest, start = 0.0, time.perf_counter()
    while (job := store.claim(name)) is not None:
        store.finish(Claim(job=job.id, worker=name, number=job.claim), RESULT)
        slowest, start = max(slowest, time.perf_counter() - start), time.perf_counter()
    told.put(slowest)
    ready.wait()
    store.close()


def measure(url: str, workers: int, jobs: int) -> tuple[float, float, float]:
    """Submissions and claim-and-finish cycles a second, and the slowest cycle in milliseconds.

    Fails unless every job succeeded in its first attempt.
    """
    store = Store(url, wait=WAIT)
    store.migrate()
    start = time.perf_counter()
    for _ in range(jobs):
        store.enqueue(JOB)
    submitted = time.perf_counter() - start
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(workers + 1)
    told = context.Queue()
    processes = [context.Process(target=work, args=(url, f"w{number}", ready, told)) for number in range(workers)]
    for process in processes:
        process.start()
    ready.wait(120)
    start = time.perf_counter()
    ready.wait(600)
    seconds = time.perf_counter() - start
    slowest = max(told.get(timeout=60) for _ in processes)
    for process in processes:
        process.join(60)
    done, more = store.list(status=Status.SUCCEEDED, limit=jobs)
    if len(done) != jobs or more or any(job.claim != 1 for job in done):
        raise SystemExit(f"{len(done)} of {jobs} jobs succeeded in their first attempt")
    store.close()
    return jobs / submitted, jobs / seconds, 1000 * slowest


def commit_cost(folder: Path) -> float:
    """Milliseconds that the disk takes to keep 4 KiB, the median of 50."""
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(50):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fsync(file.fileno())
            took.append(1000 * (time.perf_counter() - start))
    return statistics.median(took)


def repeat(make: Callable[[int], str], workers: int, jobs: int, repeats: int) -> dict[str, Any]:
    """All repeats, each in a database of its own."""
    runs = [measure(make(number), workers, jobs) for number in range(repeats)]
    submitted, claimed, slowest = ([round(run[part]) for run in runs] for part in range(3))
    return {
        "claims_per_second": statistics.median(claimed),
        "runs": claimed,
        "slowest_cycle_ms": slowest,
        "submissions_per_second": submitted,
    }


def main() -> None:
    """Measure both and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    load = [round(os.getloadavg()[0], 1)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tcnn-claims-") as folder:
        fsync = commit_cost(Path(folder))
        found["sqlite"] = repeat(lambda number: f"sqlite:///{folder}/{number}.db", **_sizes(options))
    # By its path: below tests/ lie folders of the packages' names.
    with runpy.run_path(str(POSTGRES))["postgres"](durable=True) as server:
        found["postgresql"] = repeat(lambda number: server.create(f"claims_{number}"), **_sizes(options))
    load.append(round(os.getloadavg()[0], 1))
    results = {
        **_sizes(options),
        **found,
        "fsync_ms": round(fsync, 2),
        "load_average": load,
        "hardware": processor(),
        "versions": {name: version(name) for name in ("tcnn", "sqlalchemy", "psycopg")},
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))
    slow = [name for name, figures in found.items() if figures["claims_per_second"] < FLOOR]
    if slow:
        raise SystemExit(f"fewer than {FLOOR} claims a second: {', '.join(slow)}")


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    return {"workers": options.workers, "jobs": options.jobs, "repeats": options.repeats}


if __name__ == "__main__":
    main()
