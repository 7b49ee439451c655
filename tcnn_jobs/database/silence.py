"""Whether a PostgreSQL server answers at all: asked aside, as soon as somebody has waited a moment for it.

A frozen server acknowledges everything and answers nothing, and so looks like one with much to do. The first message
of any client tells them apart: whether the server would encrypt is answered by a single letter before anybody logs in,
also by a pooler. While a server answers that, its other answers are waited for as long as they may take; while it does
not, nobody waits for them longer than a moment.
"""

import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

SOON = 0.5
"""Seconds that an answer may take before the server is asked, and from one question to the next while it answers."""
PATIENCE = 0.75
"""Seconds for the letter."""
AGAIN = 0.25
"""Seconds from one question to the next, while the server is silent."""
UNWATCHED = 60.0
"""Seconds after which the questions end if nobody has wanted anything of the server."""
_QUESTION = struct.pack("!II", 8, 80877103)  # the length, and SSLRequest of the PostgreSQL protocol


class Silence:
    """What is known of one server, for all connections of a process. Safe for threads."""

    def __init__(self) -> None:
        self._address: tuple[str, int] | None = None
        self._asking = threading.Lock()
        self._heard = self._wanted = 0.0
        self._silent = False

    def met(self, connection: Any) -> None:
        """A connection has been made: from now on it is known where to ask."""
        found = connection.info
        self._address = (found.host or found.hostaddr, found.port)  # a name may lead elsewhere after a failover
        self.heard()

    def heard(self) -> None:
        """The server has answered somebody."""
        self._heard, self._silent = time.monotonic(), False

    def suspect(self) -> bool:
        """Have the server asked, unless it is being asked or has just answered; returns whether it is silent."""
        self._wanted = time.monotonic()
        if self._address is None or self._wanted - self._heard < SOON:
            return False
        if self._asking.acquire(blocking=False):
            try:
                threading.Thread(target=self._ask, args=self._address, name="silence", daemon=True).start()
            except RuntimeError:  # no more threads: those who wait have their own deadlines
                self._asking.release()
        return self._silent

    def before_connecting(self) -> bool:
        """Whether the server is silent, so that a connection need not be tried: libpq waits for whole seconds, two at
        least, and cannot be told of anything meanwhile."""
        if self._address is None:
            return False
        if not self._silent:
            if answers(*self._address, PATIENCE):
                return False
            self._silent, self._heard = True, 0.0
        return self.suspect()

    def _ask(self, host: str, port: int) -> None:
        """Ask until it answers, or until nobody wants to know."""
        try:
            while True:
                asked = time.monotonic()
                if answers(host, port, PATIENCE):
                    self.heard()
                if self._heard > asked:
                    return
                self._silent = asked - self._wanted < UNWATCHED
                if not self._silent:
                    return
                time.sleep(AGAIN)
        finally:
            self._asking.release()


def answers(host: str, port: int, seconds: float) -> bool:
    """Whether a server says within so many seconds if it would encrypt. One that refuses a connection is not silent: to
    that everybody's own connection says more. `host` may be the directory of a Unix socket."""
    local = host.startswith(("/", "@"))
    try:
        with socket.socket(socket.AF_UNIX) if local else socket.create_connection((host, port), seconds) as asked:
            asked.settimeout(seconds)
            if local:
                asked.connect(_file(host, port))
            asked.sendall(_QUESTION)
            asked.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def _file(directory: str, port: int) -> str:
    name = str(Path(directory) / f".s.PGSQL.{port}")
    return f"\0{name[1:]}" if directory.startswith("@") else name
