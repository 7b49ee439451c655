"""Requests that are poison, for the server that reads them or for the worker that starts them, and slow clients."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

BODIES = (
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
"""What no route may answer with 5xx."""
MEMORY_GB = 1.6
"""More than an ordinary small job takes, and less than one of `GREEDY` takes in its first step."""
GREEDY = {"size": 1024}
"""Settings of a training that takes some 3 GB: its process is killed, and nobody else's."""
DRIP, SLOW = 20, 20.0
"""Connections of slow clients, and for how many seconds they stay."""
_HEAD = b"POST /transform HTTP/1.1\r\nHost: a\r\n"
_PLACE = (
    "import json, sys; from tcnn_jobs.model.jobs import NewJob; from tcnn_jobs.store import Store; "
    "store = Store(sys.argv[1]); print(store.enqueue(NewJob(**json.loads(sys.argv[2]))).id); store.close()"
)


def of_a_newer_version(owner: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """A job as a server of a newer release would write it who forgot to say so: a field that nobody here knows."""
    return {
        "owner": owner,
        "kind": "transform",
        "request": {**request, "of_a_newer_version": True},
        "max_attempts": 100,
    }


def place(database: str, job: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """Write a job into the queue past the server's checks, by the clock of `environment`.

    Returns:
        Its id, or None where the database does not take it now.
    """
    words = [sys.executable, "-c", _PLACE, database, json.dumps(job)]
    try:
        done = subprocess.run(words, env=dict(environment), capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() or None


def beginning(number: int) -> bytes:
    """What a slow client sends at first: half a head, a head and half a body, or a head whose body it will drip."""
    return _HEAD + (b"X-Half:", b"Content-Length: 1000\r\n\r\n{", b"Content-Length: 1000\r\n\r\n")[number % 3]


class SlowClients:
    """`DRIP` connections at once: every third sends half a head, half a body, or a body byte by byte."""

    def __init__(self, port: int, pause: float = 1.0) -> None:
        self._clients: list[socket.socket] = []
        self._over, self._pause = threading.Event(), pause
        with contextlib.suppress(OSError):
            for number in range(DRIP):
                self._clients.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                self._clients[-1].sendall(beginning(number))
        self._dripping = threading.Thread(target=self._drip, daemon=True)
        self._dripping.start()

    def __len__(self) -> int:
        return len(self._clients)

    def _drip(self) -> None:
        while not self._over.wait(self._pause):
            for client in self._clients[2::3]:
                with contextlib.suppress(OSError):  # the server has given it up
                    client.sendall(b" ")

    def close(self) -> None:
        """They go away."""
        self._over.set()
        self._dripping.join(10)
        for client in self._clients:
            client.close()
