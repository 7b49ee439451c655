"""Whether the model tells the truth: few real workers with trivial jobs, and the same in the model; part of
`simulation.py`.

A job is a shell that sleeps for 0.2 to 0.6 s, so that its end keeps no time with the worker's ticks, and says in its
result when it ended. The time from there to the start of the same worker's next job, both by the host's one clock, is
what the model calls from free slot to claim.
"""

import multiprocessing
import random
import runpy
import statistics
import tempfile
from collections import defaultdict
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.jobqueue.costs import JOB, POSTGRES, WAIT, Costs
from benchmarks.jobqueue.model import NOW, Fleet, Load, simulate
from tcnn_jobs import logs
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.engines.local import LocalEngine
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker.worker import Worker

WORKERS, JOBS = 4, 200
FACTOR = 2.0
SCRIPT = (
    'sleep "0.$((200 + $$ * 37 % 400))"; '
    'token=$(sed -n \'s/.*"token": "\\([0-9a-f]*\\)".*/\\1/p\' "$0/assignment.json"); '
    'printf \'{"token": "%s", "result": {"metrics": {"ended": %s}}}\' "$token" "$(date +%s.%N)" > "$0/part"; '
    'mv "$0/part" "$0/outcome.json"'
)
COMMAND = ("sh", "-c", SCRIPT)


def check(costs: Costs, seed: int) -> dict[str, Any]:
    """Both medians in seconds; fails if one is more than `FACTOR` times the other."""
    jobs = real()
    took = [_ended(job) - (job.started_at or 0.0) for job in jobs]
    waits = sorted(_waits(jobs))
    lot = random.Random(seed)
    modelled = simulate(costs, NOW, Fleet(WORKERS, starts=0.0), Load(JOBS, 0.4), seed, lambda: lot.choice(took))
    seen = statistics.median(waits)
    found = {
        "workers": WORKERS,
        "jobs": JOBS,
        "length_seconds": [round(min(took), 3), round(max(took), 3)],
        "real": {"p50": round(seen, 3), "p90": round(waits[9 * len(waits) // 10], 3), "max": round(waits[-1], 3)},
        "modelled": {name: modelled[name] for name in ("p50", "p99", "max")},
    }
    if not 1 / FACTOR <= seen / modelled["p50"] <= FACTOR:
        raise SystemExit(f"the model's median is not within a factor of {FACTOR:g} of the real one: {found}")
    return found


def real() -> list[Job]:
    """The jobs after real workers ran them on a real PostgreSQL."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(WORKERS)
    with runpy.run_path(str(POSTGRES))["postgres"](durable=True) as server, tempfile.TemporaryDirectory() as folder:
        url = server.create("check")
        store = Store(url, wait=WAIT)
        store.migrate()
        for _ in range(JOBS):
            store.enqueue(JOB)
        processes = [context.Process(target=_work, args=(url, folder, f"w{n}", ready)) for n in range(WORKERS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        done, _ = store.list(status=Status.SUCCEEDED, limit=JOBS)
        store.close()
    if len(done) != JOBS:
        raise SystemExit(f"{len(done)} of {JOBS} trivial jobs succeeded")
    return list(done)


def _work(url: str, folder: str, name: str, ready: Barrier) -> None:
    logs.configure("json", "error")
    settings = QueueSettings(home=Path(folder, name))
    worker = Worker(
        Store(url, wait=WAIT), Home(settings.root).create(), LocalEngine(COMMAND), settings,
        name=name, host="bench", slots=[None],
    )  # fmt: skip
    ready.wait(120)
    worker.run(until_empty=True)


def _ended(job: Job) -> float:
    assert job.result is not None
    return float(job.result.metrics["ended"])


def _waits(jobs: list[Job]) -> list[float]:
    by_worker: dict[str, list[Job]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: job.started_at or 0.0):
        by_worker[job.worker or ""].append(job)
    return [(after.started_at or 0.0) - _ended(before) for one in by_worker.values() for before, after in pairwise(one)]
