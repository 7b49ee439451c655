"""The service under load, on loopback, while a job trains: submissions, pollers and listeners at once.

    python -m benchmarks.service.load [--rate 50] [--jobs 1000] [--pollers 50] [--listeners 20] [--rounds 5]
                              [--database sqlite|postgres] [--place /tmp]

An open loop: submissions start on a fixed schedule, whether or not the ones before have been answered, so a slow
server cannot slow the load down, and their time counts from when they were due. Pollers look at one job each once a
second; listeners follow the training job's events. The client shares the machine: how late it was itself is given.

No job is answered for before it is on disk, so beside the load a probe writes and syncs 16 KiB at the same rate on the
same disk: nothing that keeps its word can answer faster. With `--place /dev/shm` all files lie in memory, and what is
left is the service. Given are all rounds and their median. Results go to `benchmarks/results/load_DATABASE.json`, or
`load_DATABASE_memory.json`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import httpx
from aiohttp import ClientSession as Client

from benchmarks.reporting import processor
from benchmarks.service.chaos import RESULTS, TRAINING, archive
from benchmarks.service.deployments import database, free_port

REQUEST = {"model": "resnet50d", "pretrained": True}
SETTLED = 1.0
"""Seconds in which pollers and listeners connect before the first submission."""


class Load:
    """Everything that is measured: latencies in seconds by what was done, and what went wrong."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"submit": [], "poll": []}
        self.late: list[float] = []
        self.wrong: Counter[str] = Counter()
        self.jobs: list[str] = []
        self.heard: Counter[str] = Counter()

    async def timed(self, client: Client, what: str, expected: int, due: float, *call: str, **options: Any) -> Any:
        """One request and its answer to the last byte; its time counts from when it was due."""
        try:
            async with client.request(*call, **options) as answer:
                body, status = await answer.read(), answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            self.wrong[f"{what}: {type(error).__name__}"] += 1
            return None
        self.seconds[what].append(time.perf_counter() - due)
        if status != expected:
            self.wrong[f"{what}: status {status}"] += 1
            return None
        return json.loads(body)

    async def submissions(self, client: Client, rate: float, count: int) -> None:
        """`count` jobs at `rate` per second."""
        start = time.perf_counter()

        async def one(number: int) -> None:
            due = start + number / rate
            await asyncio.sleep(due - time.perf_counter())
            self.late.append(time.perf_counter() - due)
            job = await self.timed(client, "submit", 202, due, "POST", "/transform", json=REQUEST)
            if job is not None:
                self.jobs.append(job["id"])

        await asyncio.gather(*(one(number) for number in range(count)))

    async def poller(self, client: Client, number: int, share: float, until: asyncio.Event) -> None:
        """Look at one job once a second; people do not all look at the same moment."""
        await asyncio.sleep(share)
        while not until.is_set():
            if len(self.jobs) > number:
                await self.timed(client, "poll", 200, time.perf_counter(), "GET", f"/jobs/{self.jobs[number]}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), 1.0)

    async def listener(self, client: Client, job: str, until: asyncio.Event) -> None:
        """Follow a job's events until told otherwise."""
        try:
            async with client.get(f"/jobs/{job}/events", headers={"Accept": "text/event-stream"}) as now:
                if now.status != 200:
                    self.wrong[f"listen: status {now.status}"] += 1
                    return
                async for line in now.content:
                    if line.startswith(b"event:"):
                        self.heard[line.removeprefix(b"event:").strip().decode()] += 1
                    if until.is_set():
                        return
        except (aiohttp.ClientError, TimeoutError) as error:
            self.wrong[f"listen: {type(error).__name__}"] += 1


async def measure(url: str, training: str, options: argparse.Namespace) -> Load:
    """All at once, for as long as the submissions take."""
    load, until = Load(), asyncio.Event()
    # aiohttp, whose pool finds a free connection at once: httpx looks through all of them for every request, and with
    # seventy open ones took more of the two cores than the server did.
    async with Client(url, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(30)) as client:
        for _ in range(20):  # the first requests open connections and fill caches
            await load.timed(client, "poll", 202, 0.0, "POST", "/transform", json={**REQUEST, "priority": -100})
        load.seconds["poll"].clear()
        others = [
            asyncio.create_task(load.poller(client, number, number / options.pollers, until))
            for number in range(options.pollers)
        ]
        others += [asyncio.create_task(load.listener(client, training, until)) for _ in range(options.listeners)]
        await asyncio.sleep(SETTLED)
        await load.submissions(client, options.rate, options.jobs)
        until.set()
        await asyncio.wait_for(asyncio.gather(*others), 60)
    return load


PROBE = """
import os, sys, tempfile, time
with tempfile.TemporaryFile(dir=sys.argv[1]) as file:
    due = time.perf_counter()
    while True:
        due += float(sys.argv[2])
        time.sleep(max(0.0, due - time.perf_counter()))
        file.write(bytes(16384))
        file.flush()
        os.fdatasync(file.fileno())
        print(time.perf_counter() - due, flush=True)
"""


@contextlib.contextmanager
def probed(folder: str, rate: float) -> Iterator[list[float]]:
    """Seconds that the disk takes meanwhile to make sixteen kilobytes safe, at the submissions' rate and counted as
    theirs are, from when they were due: the floor of all that answers for what is on this disk. Filled at the end."""
    seconds: list[float] = []
    with tempfile.TemporaryFile("w+") as out:
        probe = subprocess.Popen([sys.executable, "-c", PROBE, folder, str(1 / rate)], stdout=out)
        try:
            yield seconds
        finally:
            probe.kill()
            probe.wait()
            out.seek(0)
            seconds += [float(line) for line in out.read().splitlines()[:-1]]


def rounds_of(url: str, job: str, options: argparse.Namespace, folder: str) -> tuple[list[Load], list[list[float]]]:
    """The load, again and again on one server, and what the disk did in each round."""
    loads, disks = [], []
    for _ in range(options.rounds):
        with probed(folder, options.rate) as disk:
            loads.append(asyncio.run(measure(url, job, options)))
        disks.append(disk)
        last = loads[-1]
        print(figures(last.seconds["submit"]), "client", figures(last.late), "disk", figures(disk), flush=True)
    return loads, disks


def median(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(row[name] for row in rows), 1) for name in rows[0]}


def figures(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    cuts = statistics.quantiles(seconds, n=1000)
    named = {"p50": cuts[499], "p90": cuts[899], "p99": cuts[989], "max": max(seconds)}
    return {name: round(1000 * value, 1) for name, value in named.items()}


def trained_steps(client: httpx.Client, job: str) -> float:
    progress = client.get(f"/jobs/{job}").json()["progress"] or {}
    return float(progress.get("percent") or 0) if progress.get("phase") in ("training", "validating") else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pollers", type=int, default=50)
    parser.add_argument("--listeners", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--place", default="/tmp", help="where the home and the database lie")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with (
        database(options.database, options.place) as (address, _),
        tempfile.TemporaryDirectory(dir=options.place) as scratch,
    ):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        environment = {
            **os.environ, "TCNN_HOME": f"{scratch}/home", "TCNN_LOG_LEVEL": "warning",
            **({"TCNN_DATABASE_URL": address} if address else {}),
        }  # fmt: skip
        server = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "serve", "--port", str(port)], env=environment, stdout=subprocess.DEVNULL
        )
        try:
            with httpx.Client(base_url=url, timeout=30) as client:
                job = start_training(client)
                before = trained_steps(client, job)
                loads, disks = rounds_of(url, job, options, scratch)
                after = trained_steps(client, job)
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(timeout=90)
    submits = [figures(load.seconds["submit"]) for load in loads]
    wrong = sum((load.wrong for load in loads), Counter[str]())
    result = {
        "database": "postgresql" if address else "sqlite", "rate_per_second": options.rate,
        "queued": [len(load.jobs) for load in loads], "pollers": options.pollers, "listeners": options.listeners,
        "submit_ms": median(submits), "poll_ms": median([figures(load.seconds["poll"]) for load in loads]),
        "rounds": [
            {"submit_ms": submit, "client_late_ms": figures(load.late), "disk_ms": figures(disk)}
            for submit, load, disk in zip(submits, loads, disks, strict=True)
        ],
        "polls": sum(len(load.seconds["poll"]) for load in loads),
        "progress_heard": sum(load.heard["progress"] for load in loads),
        "training_went_on": after > before, "wrong": dict(wrong), "server_exit_code": code,
        "hardware": processor(), "versions": {name: version(name) for name in ("tcnn", "fastapi", "sqlalchemy")},
    }  # fmt: skip
    where = "_memory" if options.place == "/dev/shm" else ""
    out = options.out or RESULTS / f"load_{result['database']}{where}.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(1 if wrong or code or not result["training_went_on"] else 0)


def start_training(client: httpx.Client) -> str:
    """A job that trains for longer than the load lasts; returns its id once it does."""
    deadline = time.monotonic() + 300
    while True:
        with contextlib.suppress(httpx.TransportError):
            if client.get("/readyz").status_code == 200:
                break
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not become ready")
        time.sleep(0.2)
    dataset = client.post("/datasets", files={"file": ("set.zip", archive(1000))}).json()["id"]
    # Resume points every ten minutes, as a job has them unless it asks for more.
    config = TRAINING | {"epochs": 100, "batch_size": 16, "size": 64, "checkpoint_steps": None}
    training = {"dataset": dataset, "preset": "quick", "config": config}
    request = {"model": "resnet18", "pretrained": False, "priority": 100, "finetune": training}
    job = str(client.post("/transform", json=request).raise_for_status().json()["id"])
    while trained_steps(client, job) == 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job does not train: {client.get(f'/jobs/{job}').text}")
        time.sleep(0.5)
    return job


if __name__ == "__main__":
    main()
