"""Faults other than death, drawn beside the kills of `chaos.py`: what is frozen, what is poison, who is slow.

| fault | what is done |
|---|---|
| frozen worker | SIGSTOP for up to two and a half leases, so that it comes back to jobs that others have |
| frozen database | PostgreSQL: SIGSTOP of all its processes for up to six seconds; SQLite: a lock on its file |
| poison | a request that is no JSON, too deep, too large, too odd, or half; never answered with 5xx |
| doomed job | one that may run for a second, and another one that waits for it: both must fail, and say why |
| slow clients | twenty connections with half a head or half a body each, for twenty seconds |
| full disk | the file system of the home, of `ROOM` bytes, is filled to the last one for up to a lease (as root only) |

Beside them webhooks go to receivers that never answer, drip or refuse, and to one that answers, and a tenant that has
nothing to do with any of it asks for its list four times a second (`Neighbour`).
"""

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx

from benchmarks.service.deployments import LEASE, Deployment, free_port

KINDS = {"frozen worker": 0.25, "frozen database": 0.2, "poison": 0.2, "doomed job": 0.2, "slow clients": 0.15}
FULL = {"full disk": 0.15}
FROZEN = 6.0
"""Seconds for which the database is frozen at most."""
DRIP, SLOW = 20, 20.0
"""Connections of slow clients, and for how many seconds."""
LIMIT = 2.0
"""Seconds in which a tenant is answered that has nothing to do with what is frozen."""
POISON = (
    b"[" * 900 + b"]" * 900,
    b'{"model": "resnet18", "head_dim": ' + b"9" * 400 + b"}",
    b'{"model": "resnet18", "seed": 1e999}',
    b'{"model": "\\ud800"}',
    b'{"model": "resnet18", "depends_on": ["job_000000000000000000000000"]}',
    b'{"model": "resnet18", "max_runtime": -1, "stall_minutes": "x"}',
    b'{"model": "' + b"x" * 2_000_000 + b'"}',
    b"\x80\xff\x00 no JSON",
    b"",
)


class Faults:
    """Draws and makes them, and unmakes those whose time is over.

    Args:
        server: the PostgreSQL server, or None for SQLite. doom: submits jobs that must fail. small: whether the home
            has a file system of its own, which may be filled.
    """

    def __init__(
        self, deployment: Deployment, server: Any, luck: random.Random, keys: str, doom: Callable[[], None],
        small: bool = False,
    ) -> None:  # fmt: skip
        self._kinds = KINDS | (FULL if small else {})
        self._deployment, self._server, self._luck = deployment, server, luck
        self._headers = {"Authorization": f"Bearer {keys}"}
        self._doom = doom
        self._undo: list[tuple[float, Callable[[], Any]]] = []
        self.made: Counter[str] = Counter()
        self.problems: list[str] = []
        self.dark_until = 0.0
        """Until then answers may take longer, because the database is or was frozen."""

    def draw(self) -> None:
        """One more."""
        kind = self._luck.choices(list(self._kinds), list(self._kinds.values()))[0]
        made = {
            "frozen worker": self._freeze_worker, "frozen database": self._freeze_database, "poison": self._poison,
            "doomed job": self._doomed, "slow clients": self._slow, "full disk": self._fill,
        }[kind]()  # fmt: skip
        self.made[kind] += made

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
        pid = self._luck.choice(victims)

        def wake() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        os.kill(pid, signal.SIGSTOP)
        self._later(self._luck.uniform(0.3, 2.5) * LEASE, wake)
        return True

    def _freeze_database(self) -> bool:
        if time.monotonic() < self.dark_until:
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
        self.dark_until = time.monotonic() + seconds + 15.0
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
        body = self._luck.choice(POISON)
        headers = {**self._headers, "Content-Type": "application/json"}
        path = self._luck.choice(("/transform", "/finetune", "/evaluate"))
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(self._deployment.url + path, content=body, headers=headers, timeout=30, trust_env=False)
            if answer.status_code >= 500 and answer.status_code != 503:
                self.problems.append(f"{path} answered {answer.status_code} to {body[:60]!r}")
            return True
        return False

    def _doomed(self) -> bool:
        self._doom()
        return True

    def _slow(self) -> bool:
        head = b"POST /transform HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n"
        clients = []
        with contextlib.suppress(OSError):
            for number in range(DRIP):
                clients.append(socket.create_connection(("127.0.0.1", self._deployment.port), timeout=5))
                clients[-1].sendall(head + (b"X-Half:" if number % 2 else b"\r\n{"))
        self._later(SLOW, lambda: [client.close() for client in clients])
        return bool(clients)


class Asked(NamedTuple):
    """One request of the neighbour."""

    began: float
    seconds: float
    status: int


class Neighbour(threading.Thread):
    """A tenant with nothing to do with it: how long it waits for its list. 0 is no answer: the server is dead."""

    def __init__(self, url: str, key: str) -> None:
        super().__init__(name="neighbour", daemon=True)
        self._url, self._headers, self._over = url, {"Authorization": f"Bearer {key}"}, threading.Event()
        self.asked: list[Asked] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._url, headers=self._headers, timeout=60, trust_env=False) as client:
            while not self._over.wait(0.25):
                began = time.monotonic()
                try:
                    status = client.get("/jobs").status_code
                except httpx.TransportError:
                    status = 0
                self.asked.append(Asked(began, time.monotonic() - began, status))

    def stop(self) -> None:
        """The last request."""
        self._over.set()
        self.join(60)


class Receivers:
    """Of webhooks: `dead` ones never answer, drip or refuse, `alive` keeps the type of what it is told of every job."""

    def __init__(self) -> None:
        self._deaf = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.heard: dict[str, set[str]] = {}
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                told = json.loads(self.rfile.read(int(self.headers["content-length"])))
                heard.setdefault(told["job"]["id"], set()).add(told["type"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._dripping = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._over = threading.Event()
        threading.Thread(target=self._drip, daemon=True).start()
        doors = (self._deaf.getsockname()[1], self._dripping.getsockname()[1], free_port())
        self.dead = tuple(f"http://127.0.0.1:{door}/" for door in doors)
        self.alive = f"http://127.0.0.1:{self._server.server_port}/"

    def _drip(self) -> None:
        open_ones: list[socket.socket] = []
        self._dripping.settimeout(0.5)
        while not self._over.is_set():
            with contextlib.suppress(OSError):
                open_ones.append(self._dripping.accept()[0])
                open_ones[-1].sendall(b"HTTP/1.1 200 OK\r\nX-Header: ")
            for one in list(open_ones):
                try:
                    one.sendall(b"x")
                except OSError:
                    open_ones.remove(one)
                    one.close()
        for one in (*open_ones, self._dripping):
            one.close()

    def close(self) -> None:
        """Nobody listens any more."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._deaf.close()
