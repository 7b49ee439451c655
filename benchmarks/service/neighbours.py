"""Those beside the chaos: a tenant that has nothing to do with it, and receivers of webhooks, dead and alive."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx

from benchmarks.service.deployments import free_port

LIMIT = 2.0
"""Seconds in which a tenant is answered that has nothing to do with what is frozen."""
RECENT = 20.0
"""Seconds for which a fault may still explain a slow answer."""


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


class Moment(NamedTuple):
    """What was done to the service, and when."""

    at: float
    what: str


def waits(
    asked: Sequence[Asked],
    dark: Collection[tuple[float, float]],
    moments: Sequence[Moment] = (),
    frozen: Collection[tuple[float, float]] = (),
) -> dict[str, Any]:
    """How long the neighbour waited while it could be answered, and to be refused while the database was frozen.

    Args:
        dark: when the database was frozen or the server starting. frozen: when it was the database. moments: of faults
            and kills; those shortly before the end of an answer of half the limit or more are named with it.
    """
    answers = sorted(
        (
            one
            for one in asked
            if one.status == 200 and not any(begin - one.seconds <= one.began <= end for begin, end in dark)
        ),
        key=lambda one: one.seconds,
    )
    if not answers:
        return {"asked": len(asked), "answers": 0, "over_two_seconds": 0}
    slow = [one for one in answers if one.seconds >= LIMIT / 2]
    return {
        "asked": len(asked), "answers": len(answers),
        "median_seconds": round(answers[len(answers) // 2].seconds, 3),
        "slowest_seconds": round(answers[-1].seconds, 3),
        "over_two_seconds": sum(one.seconds > LIMIT for one in answers),
        "slow": [{"seconds": round(one.seconds, 3), "after": _before(one, moments)} for one in slow],
        "while_the_database_is_frozen": _refusals(asked, frozen),
    }  # fmt: skip


def _refusals(asked: Sequence[Asked], frozen: Collection[tuple[float, float]]) -> dict[str, Any]:
    met = [one for one in asked if any(one.began <= end and one.began + one.seconds >= begin for begin, end in frozen)]
    waited = max((one.seconds for one in met), default=0.0)
    return {
        "asked": len(met), "slowest_seconds": round(waited, 3),
        "over_two_seconds": sum(one.seconds > LIMIT for one in met),
    }  # fmt: skip


def _before(one: Asked, moments: Sequence[Moment]) -> list[str]:
    end = one.began + one.seconds
    return [f"{moment.what}, {end - moment.at:.1f} s" for moment in moments if 0 <= end - moment.at <= RECENT]


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

    def unheard(self, expected: Collection[str], meanwhile: Callable[[], None], patience: float = 90) -> list[str]:
        """Jobs of whose success nobody was told though somebody answers there, or of which something else was."""
        deadline = time.monotonic() + patience
        while (left := set(expected) - self.heard.keys()) and time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.5)
        wrong = {job: types for job, types in self.heard.items() if types != {"job.succeeded"}}
        return [*(f"{job}: no webhook" for job in sorted(left)), *(f"{j}: webhooks {t}" for j, t in wrong.items())]

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
