"""What the store's calls cost on a real PostgreSQL, as distributions; part of `simulation.py`.

A call's cost is the time for which its client waited for the database while several asked without a pause: wall time
without the client's own processor time, which in a fleet is spent on another host, and without the time for which
client or server were ready and had no processor (Linux counts it in /proc/PID/schedstat), because the model makes calls
wait for a processor itself; and never less than the server's own processor time. Locks, round trips and the disk are in
it, though the model keeps a processor busy with them, too: a real database with as many processors does more.
"""

import multiprocessing
import os
import random
import runpy
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from tcnn_jobs.model.jobs import Artifact, Beat, Claim, Kind, NewJob, Progress, Result
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store

POSTGRES = Path(__file__).parents[2] / "tests" / "helpers" / "postgres.py"
PARTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
"""Which quantiles are kept; between them the model draws along a line."""
CYCLES = 250
BEATS = 3
JOB = NewJob(owner="bench", kind=Kind.FINETUNE, request={"model": "resnet50d", "dataset": "cifar10"})
RESULT = Result(checkpoint=Artifact(name="best.safetensors", path="x/1/best.safetensors", size=1, sha256="0" * 64))
WAIT = 60.0

Samples = dict[str, list[tuple[float, float]]]
"""By call: seconds that the database took, seconds of the client's own."""


@dataclass(frozen=True)
class Cost:
    """One call: quantiles of the wait at `PARTS`, and the client's own mean time, in seconds."""

    waits: tuple[float, ...]
    own: float

    def draw(self, lot: random.Random) -> float:
        """A wait."""
        part = lot.random()
        for (low, high), (below, above) in zip(pairwise(PARTS), pairwise(self.waits), strict=True):
            if part <= high:
                return below + (above - below) * (part - low) / (high - low)
        return self.waits[-1]


@dataclass(frozen=True)
class Costs:
    """All calls, and how many the database works on at once."""

    at_once: int
    calls: dict[str, Cost]

    def as_json(self) -> dict[str, Any]:
        """Milliseconds, as they are written down."""
        return {
            "at_once": self.at_once,
            "parts": list(PARTS),
            "milliseconds": {
                name: {"waits": [round(1000 * wait, 3) for wait in cost.waits], "own": round(1000 * cost.own, 3)}
                for name, cost in self.calls.items()
            },
        }

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Costs":
        """What `as_json` wrote."""
        calls = {
            name: Cost(tuple(wait / 1000 for wait in cost["waits"]), cost["own"] / 1000)
            for name, cost in kept["milliseconds"].items()
        }
        return cls(kept["at_once"], calls)


def measured(clients: int, jobs: int, workers: int) -> tuple[Costs, dict[str, Any]]:
    """The costs on a server of our own, and what else was seen there."""
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(clients), context.Queue()
    # By its path: below tests/ lie folders of the packages' names.
    with runpy.run_path(str(POSTGRES))["postgres"](durable=True) as server:
        full, empty = server.create("full"), server.create("empty")
        for url in (full, empty):
            store = Store(url, wait=WAIT)
            store.migrate()
            store.close()
        each = (full, empty, jobs // clients, workers // clients, ready, told)
        processes = [context.Process(target=_client, args=(number, *each)) for number in range(clients)]
        for process in processes:
            process.start()
        parts = [told.get(timeout=600) for _ in processes]
        for process in processes:
            process.join(60)
    samples: Samples = {name: [pair for part, _ in parts for pair in part[name]] for name in parts[0][0]}
    calls = {name: _cost(pairs) for name, pairs in samples.items()}
    seen = {
        "calls": {name: len(pairs) for name, pairs in samples.items()},
        "mean_wait_ms": {
            name: round(1000 * statistics.fmean(w for w, _ in pairs), 2) for name, pairs in samples.items()
        },
        "calls_a_second": round(sum(map(len, samples.values())) / max(seconds for _, seconds in parts)),
        "clients": clients,
    }
    return Costs(os.cpu_count() or 1, calls), seen


def _cost(pairs: list[tuple[float, float]]) -> Cost:
    waits = sorted(wait for wait, _ in pairs)
    last = len(waits) - 1
    return Cost(tuple(waits[round(part * last)] for part in PARTS), statistics.fmean(own for _, own in pairs))


def _client(number: int, full: str, empty: str, jobs: int, workers: int, ready: Barrier, told: Any) -> None:
    """Fill the queue, then do what workers do, always together with the others."""
    store, idle = Store(full, wait=WAIT), Store(empty, wait=WAIT)
    samples: Samples = {}

    servers = [_backend(store), _backend(idle)]

    def timed(name: str, call: Callable[[], Any]) -> Any:
        (used, stood), own, began = _scheduled(servers), time.thread_time(), time.perf_counter()
        found = call()
        wall, own = time.perf_counter() - began, time.thread_time() - own
        used, stood = (after - before for after, before in zip(_scheduled(servers), (used, stood), strict=True))
        samples.setdefault(name, []).append((max(used, wall - own - stood), own))
        return found

    names = [f"worker-{number}-{place}" for place in range(workers)]
    ready.wait(60)
    start = time.perf_counter()
    for _ in range(jobs):
        timed("enqueue", lambda: store.enqueue(JOB))
    ready.wait(600)
    for name in names:  # every one of the fleet is known
        store.heartbeat(_info(name), [])
    ready.wait(600)
    for cycle in range(CYCLES):
        _cycle(store, idle, names[cycle % len(names)], timed)
    told.put((samples, time.perf_counter() - start))
    store.close()
    idle.close()


def _backend(store: Store) -> str:
    """The process that serves this store's one connection: opened here, and kept by its pool."""
    with store.reading() as connection:
        return str(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())


def _scheduled(servers: list[str]) -> tuple[float, float]:
    """Seconds for which these processes ran, and for which they or this one were ready while others ran."""
    ran, stood = zip(
        *(Path(f"/proc/{pid}/schedstat").read_text().split()[:2] for pid in ("self", *servers)), strict=True
    )
    return sum(map(int, ran[1:])) / 1e9, sum(map(int, stood)) / 1e9


def _cycle(store: Store, idle: Store, name: str, timed: Callable[[str, Callable[[], Any]], Any]) -> None:
    """What a job costs the store, and what a worker asks meanwhile."""
    job = timed("claim", lambda: store.claim(name))
    claim = Claim(job=job.id, worker=name, number=job.claim)
    timed("look up", lambda: store.count_events(job.id, "epoch"))
    for beat in _beats(claim):
        timed("heartbeat", lambda beat=beat: store.heartbeat(_info(name), [beat]))
    timed("finish", lambda: store.finish(claim, RESULT))
    timed("reap", lambda: store.reap(60.0))
    timed("webhooks", store.due_deliveries)
    timed("count", store.count_workers)
    timed("poll", lambda: idle.claim(name))


def _beats(claim: Claim) -> Iterator[Beat]:
    for step in range(BEATS):
        yield Beat(claim=claim, progress=Progress(phase="training", step=step, steps=BEATS), events=())


def _info(name: str) -> WorkerInfo:
    return WorkerInfo(name=name, host="bench", slots=1, version="0")
