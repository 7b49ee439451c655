"""What reads and changes cost when many jobs are in the store, on SQLite and on PostgreSQL.

    python -m benchmarks.jobqueue.long_queue [--jobs 1000 100000] [--repeats 20]

One tenant has all of the queued jobs, another one as many that have ended, with results, a third has one job. Timed are
the store's calls behind `GET /jobs`, `GET /jobs/{id}`, `POST /transform`, a claim, and `DELETE /datasets/{id}` of a set
that a job needs and of one that none does. Written down are the median and the slowest, in milliseconds, and for the
largest queue how many times longer than for the smallest. What looks at a bounded number of jobs (`listing.SEARCHED`,
`ORDERED`) takes longer until there are so many.
"""

import argparse
import json
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.reporting import processor
from tcnn_jobs.errors import WrongState
from tcnn_jobs.model.columns import Order
from tcnn_jobs.model.jobs import Claim, Kind, NewJob, Result, Status, Upload
from tcnn_jobs.model.naming import new_id
from tcnn_jobs.store import Store

RESULTS = Path(__file__).parents[1] / "results" / "long_queue.json"
POSTGRES = Path(__file__).parents[2] / "tests" / "helpers" / "postgres.py"
JOB = NewJob(
    owner="many", kind=Kind.FINETUNE, request={"model": "resnet50d", "dataset": "cifar10", "config": {"lr": 0.05}}
)
DONE = NewJob(owner="done", kind=Kind.EVALUATE, request=JOB.request, name="an evaluation", tags=("kept",))
FOUND = Result(metrics={f"number_{n}": n / 7 for n in range(60)} | {"top1": 0.5})
COLUMNS = (
    "owner, kind, status, request, priority, attempt, max_attempts, claim, created_at, not_before, started_at, "
    "finished_at, cancel_requested, event_count, slots, result, name, tags, words"
)


def fill(store: Store, count: int) -> None:
    """So many queued jobs of one tenant and so many that have ended of another, copied within the database: submitting
    them one by one would take many minutes."""
    ended = store.enqueue(DONE).id
    taken = store.claim("w")
    assert taken is not None and taken.id == ended
    store.finish(Claim(job=ended, worker="w", number=taken.claim), FOUND)
    queued = store.enqueue(JOB).id
    with store.writing(wait=600) as connection:
        for job in (ended, queued):
            connection.execute(
                text(
                    f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
                    f"INSERT INTO jobs (id, {COLUMNS}) SELECT '{job}_' || i, {COLUMNS} FROM n, jobs WHERE id = '{job}'"
                )
            )
        if not store.is_sqlite:  # as its autovacuum does; of a SQLite file nobody takes statistics
            connection.execute(text("ANALYZE"))


def upload(store: Store) -> str:
    """A data set's row."""
    identifier = new_id("ds")
    store.add_upload(
        Upload(id=identifier, owner="many", kind="dataset", name="a.zip", path="a", size=1, sha256="0" * 64)
    )
    return identifier


def calls(store: Store) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is timed, by the name under which it is written down."""
    page, _ = store.list("many", limit=100)
    ids = [job.id for job in page]
    few = store.enqueue(NewJob(owner="few", kind=Kind.TRANSFORM, request={"model": "resnet18"}))
    needed = upload(store)
    store.enqueue(JOB.model_copy(update={"request": {"model": "resnet50d", "dataset": needed}}))
    free = iter([upload(store) for _ in range(100)])

    def refused() -> None:
        try:
            store.remove_upload(needed, "many")
        except WrongState:
            return
        raise SystemExit("a data set was deleted that a job needs")

    yield "list 100", lambda: store.list("many", limit=100)
    yield "list 20 of another tenant", lambda: store.list("few", limit=20)
    yield "list running", lambda: store.list("many", status=Status.RUNNING)
    yield "list transforms", lambda: store.list("many", kind=Kind.TRANSFORM)
    for order in ("-metrics.top1", "settings.lr", "-finished", "name"):
        yield f"list 20 by {order}", partial(store.list, "done", order=Order.of(order))
    yield "search, found", lambda: store.list("done", search="evaluation")
    yield "search, not found", lambda: store.list("done", search="nothing of the kind")
    yield "tag, found", lambda: store.list("done", tags=["kept"])
    yield "tag, not found", lambda: store.list("done", tags=["gone"])
    yield "show the newest", lambda: store.get(ids[0], "many")
    yield "show another tenant's", lambda: store.get(few.id, "few")
    yield "submit", lambda: store.enqueue(JOB)
    yield "claim", lambda: store.claim("w")
    yield "delete a data set that is needed", refused
    yield "delete a data set", lambda: store.remove_upload(next(free), "many")
    yield "metrics", store.statistics


def measure(url: str, jobs: int, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of every call."""
    store = Store(url, wait=60)
    store.migrate()
    fill(store, jobs)
    found = {}
    for name, call in calls(store):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start))
        found[name] = {"median_ms": round(statistics.median(times), 2), "slowest_ms": round(max(times), 2)}
    store.close()
    return found


def main() -> None:
    """Measure both databases and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    results: dict[str, Any] = {"processor": processor(), "sqlalchemy": version("sqlalchemy"), "repeats": given.repeats}
    postgres = runpy.run_path(str(POSTGRES))["postgres"]
    with tempfile.TemporaryDirectory() as folder, postgres(durable=True) as server:
        for name in ("sqlite", "postgresql"):
            results[name] = {}
            for jobs in given.jobs:
                url = f"sqlite:///{folder}/{jobs}.db" if name == "sqlite" else server.create(f"jobs_{jobs}")
                results[name][str(jobs)] = measure(url, jobs, given.repeats)
            first, last = (results[name][str(jobs)] for jobs in (given.jobs[0], given.jobs[-1]))
            results[name]["times_longer"] = {
                call: round(last[call]["median_ms"] / first[call]["median_ms"], 2) for call in first
            }
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
