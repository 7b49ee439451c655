"""Nothing accepted is lost: real jobs while workers, their children and the server are killed at random with SIGKILL.

    python -m benchmarks.service.chaos [--database sqlite|postgres] [--jobs 60] [--kills 40] [--workers 2] [--seed N]
    python -m benchmarks.service.chaos --apart [--jobs 20] …

Every job converts a small network and fine-tunes it on a data set that was uploaded over HTTP. Killed workers and
servers are started again, as systemd or Docker would. In the end every accepted job must have succeeded exactly once,
its checkpoint be downloadable, hashed and loadable, and no process, file or attempt be left over; anything else ends
in exit code 1 and says what. Results go to `benchmarks/results/chaos_DATABASE.json`.

With `--apart` the server and every worker have a home of their own, and share PostgreSQL by TCP and an S3 server; then
PostgreSQL is killed, too, and stays away for up to ten seconds. Results go to `chaos_apart.json`.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

import tcnn
from benchmarks.machine import processor
from benchmarks.service.deployments import LEASE, Apart, Deployment, commands, database, parted
from tcnn_jobs.artifacts.opened import home_of, open_artifacts
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker import janitor

RESULTS = Path(__file__).parents[1] / "results"
VICTIMS = {"worker": 0.4, "child": 0.4, "server": 0.2}
AWAY = 10.0
"""Seconds for which PostgreSQL is away at most."""
TRAINING = {
    "epochs": 3, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 1, "val_split": 0.2, "checkpoint_steps": 1,
    "anneal_epochs": None, "device": "cpu",
}  # fmt: skip


class Client:
    """HTTP calls that go on through a server's death, and see to it that there is a new one."""

    def __init__(self, deployment: Deployment) -> None:
        self._http = httpx.Client(base_url=deployment.url, timeout=30)
        self._revive = deployment.revive

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The first answer that is none of a server that is going or gone."""
        deadline = time.monotonic() + 120
        while True:
            try:
                answer = self._http.request(method, path, **options)
                if answer.status_code != 503:
                    return answer.raise_for_status()
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path}: no answer for two minutes")
            time.sleep(0.2)
            self._revive()


def archive(images: int = 10) -> bytes:
    """A zip of three class folders of plain images."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in ("blue", "green", "red"):
            for number in range(images):
                picture = io.BytesIO()
                Image.new("RGB", (40, 40), name).point(lambda v, add=4 * number: v // 2 + add).save(picture, "PNG")
                file.writestr(f"{name}/{number}.png", picture.getvalue())
    return buffer.getvalue()


def run(
    database: str | None, jobs: int, kills: int, workers: int, seed: int, root: Path, pace: float = 6.0,
    apart: Apart | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The whole story, a kill every `pace` seconds on average; returns what was measured, and all that is wrong."""
    luck = random.Random(seed)
    deployment = Deployment(root, database, workers, apart)
    client = Client(deployment)
    started = time.monotonic()
    killed: Counter[str] = Counter()
    accepted: list[str] = []
    try:
        deployment.revive()
        data = archive()
        dataset = client.call(
            "POST", "/datasets", files={"file": ("set.zip", data)}, headers={"Idempotency-Key": f"data-{seed}"}
        ).json()["id"]
        request = {
            "model": "test_resnet", "pretrained": False, "max_attempts": 100,
            "finetune": {"dataset": dataset, "preset": "quick", "config": TRAINING},
        }  # fmt: skip
        next_kill = time.monotonic() + luck.uniform(5, 10)
        deadline = time.monotonic() + 60 * (jobs + kills)
        while True:
            deployment.revive()
            if len(accepted) < jobs:
                key = {"Idempotency-Key": f"chaos-{seed}-{len(accepted)}"}
                accepted.append(client.call("POST", "/transform", json=request, headers=key).json()["id"])
            if time.monotonic() >= next_kill and killed.total() < kills:
                next_kill = time.monotonic() + 1 + luck.expovariate(1 / (pace - 1))
                _kill(deployment, luck, killed)
            if len(accepted) == jobs:
                states = _states(client)
                _show(states, killed)
                if all(states.get(job) == "succeeded" for job in accepted) and killed.total() >= kills:
                    break
                if time.monotonic() > deadline:
                    break
                time.sleep(0.5)
        seconds = time.monotonic() - started
        problems = list(_wrong(client, deployment, accepted))
        attempts = Counter(client.call("GET", f"/jobs/{job}").json()["attempt"] for job in accepted)
        deployment.drain()
        problems += [f"process left over: {words[:200]}" for _, words in commands() if str(deployment.home) in words]
    finally:
        deployment.end()
    return {
        "database": "apart" if apart else "postgresql" if database else "sqlite",
        "seed": seed, "jobs": jobs, "workers": workers,
        "kills": dict(killed), "attempts": {str(key): attempts[key] for key in sorted(attempts)},
        "lease_seconds": LEASE, "seconds": round(seconds, 1), "problems": problems,
    }  # fmt: skip


def _kill(deployment: Deployment, luck: random.Random, killed: Counter[str]) -> None:
    chances = VICTIMS | ({"postgres": 0.3} if deployment.apart else {})
    kind = luck.choices(list(chances), list(chances.values()))[0]
    if kind == "postgres":
        killed[kind] += deployment.kill_postgres(luck.uniform(1, AWAY))
        return
    victims = deployment.victims(kind)
    if victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(luck.choice(victims), signal.SIGKILL)
            killed[kind] += 1


def _states(client: Client) -> dict[str, str]:
    page = client.call("GET", "/jobs", params={"limit": 100}).json()
    return {job["id"]: job["status"] for job in page["data"]}


def _show(states: dict[str, str], killed: Counter[str]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{dict(Counter(states.values()))} killed {dict(killed)}      ")


def _wrong(client: Client, deployment: Deployment, accepted: list[str]) -> Iterator[str]:
    """Everything that is not as promised."""
    known = _states(client)
    if set(known) != set(accepted) or len(set(accepted)) != len(accepted):
        yield f"{len(accepted)} jobs were accepted, the store has {len(known)}"
    for job in accepted:
        view = client.call("GET", f"/jobs/{job}").json()
        if view["status"] != "succeeded":
            yield f"{job}: {view['status']} {view['error']}"
            continue
        events = Counter(event["kind"] for event in client.call("GET", f"/jobs/{job}/events").json()["data"])
        if events["succeeded"] != 1:
            yield f"{job}: succeeded {events['succeeded']} times"
        content = client.call("GET", f"/jobs/{job}/checkpoint").content
        if hashlib.sha256(content).hexdigest() != view["result"]["checkpoint"]["sha256"]:
            yield f"{job}: the download is not what was promised"
        file = deployment.root / "check.safetensors"
        file.write_bytes(content)
        if len(tcnn.load(file).state_dict()) == 0:
            yield f"{job}: an empty model"
        file.unlink()
    # The last worker to hear of a finished job cleans up after it, within a beat or two.
    deadline = time.monotonic() + 3 * LEASE
    while (left := list(_left(deployment, accepted))) and time.monotonic() < deadline:
        time.sleep(0.5)
    yield from left


def _left(deployment: Deployment, accepted: list[str]) -> Iterator[str]:
    if deployment.apart is None:
        yield from _left_over(deployment.home, accepted)
    else:
        yield from _left_over_apart(deployment, accepted)


def _left_over_apart(deployment: Deployment, accepted: list[str]) -> Iterator[str]:
    """After a sweep, which else comes every ten minutes: of every job one attempt in the store, nothing at home."""
    store = Store(deployment.database)
    for place in deployment.homes:
        settings = QueueSettings(home=place, artifacts=os.environ["TCNN_ARTIFACTS"])
        home = home_of(settings).create()
        artifacts = open_artifacts(settings, home)
        janitor.sweep(home, store, settings, artifacts)
        yield from (f"left at home: {path}" for path in (*home.jobs.iterdir(), *home.incoming.iterdir()))
    for job in accepted:
        if len(artifacts.published(job)) != 1:
            yield f"{job}: attempts {artifacts.published(job)} are in the store"
    store.close()


def _left_over(home: Path, accepted: list[str]) -> Iterator[str]:
    folders = {path.name: path for path in (home / "jobs").iterdir()}
    if folders.keys() != set(accepted):
        yield f"folders of {len(folders)} jobs, {len(accepted)} were accepted"
    for path in folders.values():
        attempts = [entry.name for entry in path.iterdir()]
        if len(attempts) != 1:
            yield f"{path.name}: attempts {sorted(attempts)} are left"
    yield from (f"stray file {path}" for path in home.rglob("*") if ".tmp" in path.name or path.name.startswith("."))
    yield from (f"stray upload {path}" for path in (home / "incoming").iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    jobs = options.jobs or (20 if options.apart else 60)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, apart = stack.enter_context(parted()) if options.apart else (None, None)
        if not options.apart:
            url = stack.enter_context(database(options.database))
        result = run(url, jobs, options.kills, options.workers, options.seed, scratch, apart=apart)
    result["hardware"] = processor()
    result["versions"] = {name: version(name) for name in ("tcnn", "torch", "sqlalchemy")}
    out = options.out or RESULTS / f"chaos_{result['database']}.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
