"""Deployments of the service that benchmarks and tests may kill: on one home directory, or apart."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx

from benchmarks.service.clock import Clock

TESTS = Path(__file__).parents[2] / "tests" / "helpers"
LEASE = 5.0
"""Seconds without a heartbeat after which a worker's jobs are given away."""
ROOM = 512 << 20
"""Bytes of a file system that can be filled: several times what the jobs need."""


class Apart(NamedTuple):
    """What hosts share that share no folder: PostgreSQL by TCP, and a store with the variables that lead to it.

    `bucket` is the number of the store's process.
    """

    cluster: Any
    store: dict[str, str]
    bucket: int


class Deployment:
    """A server and workers on one home directory, or each on its own, started again whenever they are found dead."""

    def __init__(
        self, root: Path, database: str | None, workers: int, apart: Apart | None = None,
        settings: Mapping[str, str] = MappingProxyType({}), clock: Clock | None = None,
    ) -> None:  # fmt: skip
        self.clock, self.root, self.home, self.apart = clock, root, root / "home", apart
        self.database = database
        self._back_at: float | None = None
        self._logs = root / "logs"
        self._logs.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **os.environ, "TCNN_HOME": str(self.home), "TCNN_LEASE": str(LEASE), "TCNN_POLL": "0.5", "TCNN_GRACE": "10",
            "TCNN_RETRY_DELAY": "0.5", "OMP_NUM_THREADS": "1", "TCNN_MIN_FREE_GB": "0.1",
            **({"TCNN_DATABASE_URL": database} if database else {}),
            **(apart.store if apart else {}), **(clock.environment if clock else {}), **settings,
        }  # fmt: skip
        self._commands = {"server": ["serve", "--no-worker", "--port", str(self.port)]}
        self._commands |= {f"worker-{number}": ["worker", "--slots", "1"] for number in range(workers)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def revive(self) -> None:
        """Start whatever is not running, PostgreSQL when its time has come."""
        if self._back_at is not None and time.monotonic() >= self._back_at:
            self._back_at = None
            self.apart.cluster.start()
        for name, arguments in self._commands.items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                environment = self.environment | {"TCNN_HOME": str(self.home_of(name))}
                with (self._logs / f"{name}.txt").open("ab") as log:
                    self.processes[name] = subprocess.Popen(
                        [sys.executable, "-m", "tcnn", *arguments], env=environment, stdout=log, stderr=log
                    )

    def home_of(self, name: str) -> Path:
        """The home of a process."""
        return self.home / name if self.apart else self.home

    @property
    def homes(self) -> list[Path]:
        """All of them."""
        return sorted({self.home_of(name) for name in self._commands})

    @property
    def away(self) -> bool:
        """Whether PostgreSQL was killed and is not back yet."""
        return self._back_at is not None

    def kill_postgres(self, seconds: float) -> bool:
        """As a crash; it comes back after so many seconds. Returns whether it was there."""
        if self.apart is None or self._back_at is not None:
            return False
        self.apart.cluster.stop()
        self._back_at = time.monotonic() + seconds
        return True

    def victims(self, kind: str) -> list[int]:
        """Live processes of a kind."""
        if kind == "child":
            return [pid for pid, words in commands() if "tcnn_jobs.child.runner" in words and str(self.home) in words]
        return [
            process.pid for name, process in self.processes.items() if name.startswith(kind) and process.poll() is None
        ]

    def drain(self) -> None:
        """SIGTERM, and wait."""
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            process.wait(timeout=60)

    def end(self) -> None:
        """Whatever happened, nobody stays."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


class Client:
    """HTTP calls that go on through a server's death, and see to it that there is a new one."""

    def __init__(self, deployment: Deployment, key: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=deployment.url, timeout=30, headers=headers)
        self.meanwhile = deployment.revive

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
            self.meanwhile()


@contextlib.contextmanager
def own_disk(folder: Path) -> Iterator[bool]:
    """A file system of `ROOM` bytes at `folder`, which can be full; False where none may be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tcnn-chaos", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def commands() -> Iterator[tuple[int, str]]:
    """The command line of every process but this one, by its number."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words:
                    yield int(entry.name), words


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def parted() -> Iterator[tuple[str, Apart]]:
    """PostgreSQL on TCP and a store, both of their own; inside, the variables of the store are set here, too."""
    sys.path.insert(0, str(TESTS))
    from postgres import postgres
    from s3 import BUCKET, KEYS, s3

    with postgres(durable=True, listen="127.0.0.1") as cluster, s3() as gate:
        store = {"TCNN_ARTIFACTS": f"s3://{BUCKET}/chaos", **KEYS, "AWS_ENDPOINT_URL": gate.behind, "TCNN_MIRROR": "1"}
        before = {name: os.environ.get(name) for name in store}
        os.environ.update(store)
        try:
            cluster.create("chaos")
            yield cluster.over_tcp("chaos"), Apart(cluster, store, gate.process)
        finally:  # who comes after this in the same process has no such store
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def database(kind: str, place: str = "/tmp") -> Iterator[tuple[str | None, Any]]:
    """The URL of a PostgreSQL of its own, whose files lie in `place`, and its server; None and None for SQLite."""
    if kind == "sqlite":
        yield None, None
        return
    sys.path.insert(0, str(TESTS))
    from postgres import postgres

    with postgres(durable=True, place=place) as server:
        yield server.create("chaos"), server
