"""Nothing accepted is lost: real jobs while workers, their children and the server are killed at random with SIGKILL.

    python -m benchmarks.service.chaos [--database sqlite|postgres] [--jobs 60] [--kills 40] [--workers 2] [--seed N]
    python -m benchmarks.service.chaos --apart [--jobs 20] …

Every job converts a small network and fine-tunes it on a data set that was uploaded over HTTP. Killed workers and
servers are started again, as systemd or Docker would. In the end every accepted job must have succeeded exactly once,
its checkpoint be downloadable, hashed and loadable, and no process, file or attempt be left over; anything else ends
in exit code 1 and says what. Results go to `benchmarks/results/chaos_DATABASE.json`.

With `--apart` the server and every worker have a home of their own, and share PostgreSQL by TCP and an S3 server; then
PostgreSQL is killed, too, and stays away for up to ten seconds. Results go to `chaos_apart.json`.

With `--faults N` so many other faults are drawn beside the kills (`faults.py`), and the requests of a tenant that has
nothing to do with them are measured. Results go to `chaos_faults_….json`.
"""

import argparse
import contextlib
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
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from PIL import Image

from benchmarks.reporting import processor
from benchmarks.service.clock import Clock, compiler
from benchmarks.service.deployments import LEASE, Apart, Client, Deployment, commands, database, own_disk, parted
from benchmarks.service.faults import THAWED, Faults
from benchmarks.service.neighbours import Moment, Neighbour, Receivers, waits
from benchmarks.service.poison import GREEDY, MEMORY_GB, of_a_newer_version, place
from benchmarks.service.promises import broken, states

RESULTS = Path(__file__).parents[1] / "results"
VICTIMS = {"worker": 0.4, "child": 0.4, "server": 0.2}
KEY, CALM = "key-of-chaos", "key-of-the-neighbour"
SETTINGS = {
    "TCNN_API_KEYS": f"chaos:{KEY},calm:{CALM}", "TCNN_WEBHOOK_HOSTS": "127.0.0.1", "TCNN_JOB_MEMORY_GB": str(MEMORY_GB)
}  # fmt: skip
AWAY = 10.0
"""Seconds for which PostgreSQL is away at most."""
DARKENING = {"server": 30.0, "postgres": AWAY + THAWED}
"""Seconds within which what was killed is there again and nobody waits for it, on a machine that trains."""
TRAINING = {
    "epochs": 3, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 1, "val_split": 0.2, "checkpoint_steps": 1,
    "anneal_epochs": None, "device": "cpu",
}  # fmt: skip


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
    apart: Apart | None = None, faults: int = 0, server: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """The whole story, a kill or a fault every `pace` seconds on average; what was measured, and all that is wrong.

    `server` is the PostgreSQL of the database's URL, which faults freeze.
    """
    with contextlib.ExitStack() as stack:
        return _Story(database, jobs, kills, workers, seed, root, apart, faults, server, stack).told(pace)


class _Story:
    """One run; `doomed` are jobs that must fail."""

    def __init__(
        self, database: str | None, jobs: int, kills: int, workers: int, seed: int, root: Path, apart: Apart | None,
        faults: int, server: Any, stack: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        self.luck, self.seed, self.jobs = random.Random(seed), seed, jobs
        self.wanted = {"kills": kills, "faults": faults}
        self.receivers = stack.enter_context(contextlib.closing(Receivers()))
        small = bool(faults) and os.geteuid() == 0 and stack.enter_context(own_disk(root / "home"))
        clock = Clock(root / "clock") if faults and database is None and compiler() else None
        self.deployment = Deployment(root, database, workers, apart, SETTINGS if faults else {}, clock)
        stack.callback(self.deployment.end)
        self.client = Client(self.deployment, KEY if faults else None)
        self.faults = Faults(self.deployment, server, self.luck, KEY, self._doom, small)
        stack.callback(self.faults.end)
        self.client.meanwhile = self._meanwhile
        self.neighbour = Neighbour(self.deployment.url, CALM)
        self.killed: Counter[str] = Counter()
        self.accepted: list[str] = []
        self.doomed: list[str] = []
        self.dark: list[tuple[float, float]] = []
        self.frozen: list[tuple[float, float]] = []
        self.moments: list[Moment] = []

    def told(self, pace: float) -> dict[str, Any]:
        """From the first submission to the last look."""
        started = time.monotonic()
        self._work(pace)
        seconds = time.monotonic() - started
        self.faults.end()
        problems = list(broken(self.client.call, self.deployment, self.accepted, self.doomed))
        expected = self.accepted[1::2] if self.wanted["faults"] else []
        problems += self.faults.problems + self.receivers.unheard(expected, self.deployment.revive)
        attempts = Counter(self.client.call("GET", f"/jobs/{job}").json()["attempt"] for job in self.accepted)
        if self.wanted["faults"]:
            self.neighbour.stop()
        self.deployment.drain()
        home = str(self.deployment.home)
        problems += [f"process left over: {words[:200]}" for _, words in commands() if home in words]
        kind = "postgresql" if self.deployment.database else "sqlite"
        result = {
            "database": "apart" if self.deployment.apart else kind, "seed": self.seed, "jobs": self.jobs,
            "workers": len(self.deployment.processes) - 1, "kills": dict(self.killed),
            "attempts": {str(key): attempts[key] for key in sorted(attempts)},
            "lease_seconds": LEASE, "seconds": round(seconds, 1), "problems": problems,
        }  # fmt: skip
        if self.wanted["faults"]:
            result |= {
                "faults": dict(self.faults.made), "doomed": len(self.doomed),
                "neighbour": waits(self.neighbour.asked, self.dark, self.moments, self.frozen),
                "load_average": round(os.getloadavg()[1], 1),
            }  # fmt: skip
        return result

    def _work(self, pace: float) -> None:
        luck, key = self.luck, f"chaos-{self.seed}"
        self.deployment.revive()
        form = {"files": {"file": ("set.zip", archive())}, "headers": {"Idempotency-Key": f"data-{self.seed}"}}
        self.dataset = self.client.call("POST", "/datasets", **form).json()["id"]
        if self.wanted["faults"]:
            self.neighbour.start()
        due = time.monotonic() + luck.uniform(5, 10)
        deadline = time.monotonic() + 60 * (self.jobs + sum(self.wanted.values()))
        while time.monotonic() < deadline:
            self._meanwhile()
            if len(self.accepted) < self.jobs:
                self.accepted.append(self._submit(f"{key}-{len(self.accepted)}", webhook=self._webhook()))
            left = self.wanted["kills"] - self.killed.total(), self.wanted["faults"] - self.faults.made.total()
            if time.monotonic() >= due and max(left) > 0:
                due = time.monotonic() + 1 + luck.expovariate(1 / (pace - 1))
                self._fault() if luck.random() * sum(left) < left[1] else self._kill()
            if len(self.accepted) == self.jobs:
                found = states(self.client.call)
                _show(found, self.killed)
                done = all(found.get(job) == "succeeded" for job in self.accepted)
                if done and all(found.get(job) == "failed" for job in self.doomed) and max(left) <= 0:
                    return
                time.sleep(0.5)

    def _meanwhile(self) -> None:
        self.deployment.revive()
        self.faults.pass_time()

    def _submit(
        self, key: str, epochs: int = 3, training: Mapping[str, Any] = MappingProxyType({}), **more: Any
    ) -> str:
        given = {name: value for name, value in more.items() if value is not None}
        config = {**TRAINING, "epochs": epochs, **training}
        request = {
            "model": "test_resnet", "pretrained": False, "max_attempts": 100,
            "finetune": {"dataset": self.dataset, "preset": "quick", "config": config}, **given,
        }  # fmt: skip
        return str(self.client.call("POST", "/transform", json=request, headers={"Idempotency-Key": key}).json()["id"])

    def _webhook(self) -> str | None:
        if not self.wanted["faults"]:
            return None
        return self.receivers.alive if len(self.accepted) % 2 else self.luck.choice(self.receivers.dead)

    def _doom(self, kind: str) -> bool:
        """A job that takes too much memory, one that no worker here understands, or one that may run for a second and
        another that waits for it. A worker may be frozen for longer than that, so there is more to do than can be done
        meanwhile.
        """
        key = f"doomed-{self.seed}-{len(self.doomed)}"
        if kind == "newer request":
            url = self.deployment.database or f"sqlite:///{self.deployment.home / 'tcnn.db'}"
            job = of_a_newer_version("chaos", {"model": "test_resnet", "pretrained": False})
            placed = place(url, job, self.deployment.environment)
            self.doomed += [placed] if placed else []
            return placed is not None
        if kind == "greedy job":
            self.doomed.append(self._submit(key, epochs=1000, training=GREEDY, max_attempts=2))
            return True
        first = self._submit(key, epochs=1000, max_runtime=1)
        self.doomed.append(first)
        with contextlib.suppress(httpx.HTTPStatusError):  # it has failed already, and nobody may wait for it
            self.doomed.append(self._submit(f"{key}-after", depends_on=[first]))
        return True

    def _fault(self) -> None:
        made = self.faults.draw()
        self._note(made)
        if made == "frozen database":
            self.dark.append((time.monotonic() - 1, self.faults.dark_until))
            self.frozen.append((time.monotonic(), self.faults.dark_until - THAWED))

    def _kill(self) -> None:
        before = Counter(self.killed)
        _kill(self.deployment, self.luck, self.killed, self.faults.dark_until)
        for kind in self.killed - before:
            self._note(f"killed {kind}")
            if kind in DARKENING:
                self.dark.append((time.monotonic() - 1, time.monotonic() + DARKENING[kind]))

    def _note(self, what: str) -> None:
        if what:
            self.moments.append(Moment(time.monotonic(), what))


def _kill(deployment: Deployment, luck: random.Random, killed: Counter[str], dark_until: float) -> None:
    """One of them; a database that is frozen cannot hear that it is to stop."""
    mortal = deployment.apart is not None and time.monotonic() >= dark_until
    chances = VICTIMS | ({"postgres": 0.3} if mortal else {})
    kind = luck.choices(list(chances), list(chances.values()))[0]
    if kind == "postgres":
        killed[kind] += deployment.kill_postgres(luck.uniform(1, AWAY))
        return
    victims = deployment.victims(kind)
    if victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(luck.choice(victims), signal.SIGKILL)
            killed[kind] += 1


def _show(states: dict[str, str], killed: Counter[str]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{dict(Counter(states.values()))} killed {dict(killed)}      ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--faults", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--pace", type=float, default=6.0, help="seconds between two kills or faults, on average")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"seed {options.seed}")
    jobs = options.jobs or (20 if options.apart else 60)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url, apart = stack.enter_context(parted()) if options.apart else (None, None)
        server = apart.cluster if apart else None
        if not options.apart:
            url, server = stack.enter_context(database(options.database))
        result = run(
            url, jobs, options.kills, options.workers, options.seed, scratch, options.pace, apart=apart,
            faults=options.faults, server=server,
        )  # fmt: skip
    result["hardware"] = processor()
    result["versions"] = {name: version(name) for name in ("tcnn", "torch", "sqlalchemy")}
    out = options.out or RESULTS / f"chaos_{'faults_' * bool(options.faults)}{result['database']}.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
