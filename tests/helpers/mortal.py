"""Crash recovery of `tcnn serve`: a process that is killed (SIGKILL) and begun again on the same port and home, or is
suspended (SIGSTOP, SIGCONT), so that what is tried is what happens, and no mock of it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from houses import migrated
from serving import Server


class Mortal(Server):
    """A server of a home, without a worker, that listens on the same port whenever it runs.

    To begin it takes seconds: what a page does with a lost answer or a refused connection alone is tried with
    `hosted`, and here what needs a server that is gone with all that it held.
    """

    def __init__(self, home: Path, **environment: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        super().__init__(f"http://127.0.0.1:{self.port}", home)
        self.environment = {**os.environ, "TCNN_HOME": str(home), "PYTHONUNBUFFERED": "1", **environment}
        if not (home / "tcnn.db").exists():
            home.mkdir(parents=True, exist_ok=True)
            (home / "tcnn.db").write_bytes(migrated())

    def start(self) -> None:
        """Return when it listens."""
        with (self.home.parent / "server.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tcnn", "serve", "--port", str(self.port), "--no-worker"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.search("tcnn is at", line):
                return
        raise AssertionError((self.home.parent / "server.log").read_text())

    def kill(self) -> None:
        """Between any two instructions."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def suspend(self) -> None:
        """It keeps its connections, the kernel takes more for it, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was."""
        self.process.send_signal(signal.SIGCONT)

    def revive(self) -> None:
        """As it is to be for whoever comes next: running, whatever was done to it."""
        if self.process.poll() is not None:
            self.start()
        self.resume()


@contextmanager
def mortal(home: Path, **environment: str) -> Iterator[Mortal]:
    """One that runs when the block begins, and no longer than it."""
    server = Mortal(home, **environment)
    server.start()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()
