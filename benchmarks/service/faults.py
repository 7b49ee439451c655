"""Faults other than death, drawn beside the kills of `chaos.py`: what is frozen, what is poison, who is slow.

| fault | what is done |
|---|---|
| frozen worker | SIGSTOP for up to two and a half leases, so that it comes back to jobs that others have |
| frozen database | PostgreSQL: SIGSTOP of all its processes for up to six seconds; SQLite: a lock on its file |
| frozen bucket | SIGSTOP of the S3 server for as long (where hosts share no folder) |
| clock | the clock of all processes is set forward or back by up to `STEP` seconds (SQLite; needs a C compiler) |
| poison | a request that is no JSON, too deep, too large, too odd, or half; never answered with 5xx |
| doomed job | one that may run for a second, and another one that waits for it: both must fail, and say why |
| greedy job | one whose process is killed, in every attempt, because it takes more memory than it may |
| newer request | a job with a field of a newer version, written past the server's checks, that may be tried 100 times |
| slow clients | twenty connections with half a head, half a body or a dripping body each, for twenty seconds |
| full disk | the file system of the home, of `ROOM` bytes, is filled to the last one for up to a lease (as root only) |

Beside them webhooks go to receivers that never answer, drip or refuse, and to one that answers, and a tenant that has
nothing to do with any of it asks for its list four times a second (`Neighbour`).
"""

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.service.deployments import LEASE, Deployment
from benchmarks.service.poison import BODIES, SLOW, SlowClients

KINDS = {
    "frozen worker": 0.2, "frozen database": 0.15, "poison": 0.15, "doomed job": 0.1, "greedy job": 0.1,
    "newer request": 0.1, "slow clients": 0.15,
}  # fmt: skip
WHERE_POSSIBLE = {"full disk": 0.15, "frozen bucket": 0.2, "clock": 0.2}
DOOMED = ("doomed job", "greedy job", "newer request")
FROZEN = 6.0
"""Seconds for which the database is frozen at most."""
THAWED = 15.0
"""Seconds after which nobody still waits for a database that was frozen."""
STEP = 60
"""Seconds by which the clock is set forward or back at most."""


def kinds(*, disk: bool, bucket: bool, clock: bool) -> dict[str, float]:
    """What can be drawn, with its weight, where a disk can be filled, a bucket frozen and a clock set, or not."""
    possible = dict(zip(WHERE_POSSIBLE, (disk, bucket, clock), strict=True))
    return KINDS | {kind: weight for kind, weight in WHERE_POSSIBLE.items() if possible[kind]}


class Faults:
    """Draws and makes them, and unmakes those whose time is over.

    Args:
        server: the PostgreSQL server, or None for SQLite. doom: submits jobs of a kind of `DOOMED`, which must fail,
            and returns whether it did. small: whether the home has a file system of its own, which may be filled.
    """

    def __init__(
        self, deployment: Deployment, server: Any, luck: random.Random, keys: str, doom: Callable[[str], bool],
        small: bool = False,
    ) -> None:  # fmt: skip
        bucket, clock = deployment.apart is not None, deployment.clock is not None
        self._kinds = kinds(disk=small, bucket=bucket, clock=clock)
        self._deployment, self._server, self._luck = deployment, server, luck
        self._headers = {"Authorization": f"Bearer {keys}"}
        self._doom = doom
        self._undo: list[tuple[float, Callable[[], Any]]] = []
        self._stopped: set[int] = set()
        self.made: Counter[str] = Counter()
        self.problems: list[str] = []
        self.dark_until = 0.0
        """Until then answers may take longer, because the database is or was frozen."""

    def draw(self) -> str:
        """One more; its kind, empty if it could not be made now."""
        kind = self._luck.choices(list(self._kinds), list(self._kinds.values()))[0]
        if kind in DOOMED:
            made = time.monotonic() >= self.dark_until and self._doom(kind)
        else:
            made = {
                "frozen worker": self._freeze_worker, "frozen database": self._freeze_database,
                "frozen bucket": self._freeze_bucket, "clock": self._set_clock, "poison": self._poison,
                "slow clients": self._slow, "full disk": self._fill,
            }[kind]()  # fmt: skip
        self.made[kind] += made
        return kind if made else ""

    def pass_time(self) -> None:
        """Undo what is due."""
        due = [one for one in self._undo if one[0] <= time.monotonic()]
        self._undo = [one for one in self._undo if one not in due]
        for _, undo in due:
            undo()

    def end(self) -> None:
        """Undo all."""
        for _, undo in self._undo:
            undo()
        self._undo = []

    def _later(self, seconds: float, undo: Callable[[], Any]) -> None:
        self._undo.append((time.monotonic() + seconds, undo))

    def _freeze_worker(self) -> bool:
        victims = self._deployment.victims("worker")
        if not victims:
            return False
        self._stop(self._luck.choice(victims), self._luck.uniform(0.3, 2.5) * LEASE)
        return True

    def _freeze_bucket(self) -> bool:
        pid = self._deployment.apart.bucket
        if pid in self._stopped:
            return False
        self._stop(pid, self._luck.uniform(0.3, 2.5) * LEASE)
        return True

    def _set_clock(self) -> bool:
        seconds = self._luck.randint(5, STEP) * self._luck.choice((-1, 1))
        self._deployment.clock.step(seconds)
        return True

    def _stop(self, pid: int, seconds: float) -> None:
        def wake() -> None:
            self._stopped.discard(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)
        self._later(seconds, wake)

    def _freeze_database(self) -> bool:
        if time.monotonic() < self.dark_until or self._deployment.away:
            return False
        seconds = self._luck.uniform(1, FROZEN)
        if self._server is not None:
            frozen = contextlib.ExitStack()
            frozen.enter_context(self._server.frozen())
            self._later(seconds, frozen.close)
        else:
            lock = sqlite3.connect(self._deployment.home / "tcnn.db", isolation_level=None, check_same_thread=False)
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:  # somebody writes
                lock.close()
                return False
            self._later(seconds, lock.close)
        self.dark_until = time.monotonic() + seconds + THAWED
        return True

    def _fill(self) -> bool:
        ballast = self._deployment.home / "ballast"
        if ballast.exists() or not self._deployment.home.is_dir():
            return False
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:  # until no byte is left
                file.write(bytes(1 << 20))
        seconds = self._luck.uniform(0.3, 1.0) * LEASE
        self._later(seconds, lambda: ballast.unlink(missing_ok=True))
        return True

    def _poison(self) -> bool:
        body = self._luck.choice(BODIES)
        headers = {**self._headers, "Content-Type": "application/json"}
        path = self._luck.choice(("/transform", "/finetune", "/evaluate"))
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(self._deployment.url + path, content=body, headers=headers, timeout=30, trust_env=False)
            if answer.status_code >= 500 and answer.status_code != 503:
                self.problems.append(f"{path} answered {answer.status_code} to {body[:60]!r}")
            return True
        return False

    def _slow(self) -> bool:
        clients = SlowClients(self._deployment.port)
        self._later(SLOW, clients.close)
        return len(clients) > 0
