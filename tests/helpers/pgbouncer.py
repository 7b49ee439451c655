"""A PgBouncer of one's own before a PostgreSQL of one's own: transactions share few connections to the server."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from postgres import Server

from tcnn.processes import die_with_parent


class NoPgbouncer(Exception):
    """The program is missing and could not be installed; the message says what was tried."""


class Pooler:
    """A running pooler; `stop` and `start` as often as wanted."""

    def __init__(self, program: str, server: Server, more: str) -> None:
        self._program, self._server = program, server
        self.folder = server.folder / "pooler"
        self.folder.mkdir()
        (self.folder / "users.txt").write_text('"tcnn" ""\n')
        (self.folder / "pooler.ini").write_text(
            f"[databases]\n* = host={server.folder} port=5432 user=tcnn\n"
            f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {self.folder}\nlisten_port = 6432\n"
            f"auth_type = trust\nauth_file = {self.folder}/users.txt\nlogfile = {self.folder}/log.txt\n"
            f"pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\n{more}\n"
        )
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
        if self._user:
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, "postgres", "postgres")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Run it, and wait until it answers."""
        self._process = subprocess.Popen(
            [self._program, "--quiet", str(self.folder / "pooler.ini")], cwd=self.folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **self._user,
            preexec_fn=partial(die_with_parent, signal.SIGKILL),  # noqa: PLW1509 - nobody else holds a lock that prctl needs
        )  # fmt: skip
        deadline = time.monotonic() + 90
        while True:
            try:
                with psycopg.connect(self.address("postgres"), prepare_threshold=None):
                    return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log.txt").read_text()[-2000:]) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def address(self, database: str) -> str:
        """What libpq calls a connection URI."""
        return f"postgresql://tcnn@/{database}?host={self.folder}&port=6432"


@contextmanager
def pgbouncer(server: Server, more: str = "") -> Iterator[Pooler]:
    """A pooler that is gone when the block is left, with `more` lines in its settings; raises `NoPgbouncer`."""
    pooler = Pooler(shutil.which("pgbouncer") or _install(), server, more)
    try:
        yield pooler
    finally:
        pooler.stop()
        shutil.rmtree(pooler.folder, ignore_errors=True)


def _install() -> str:
    """From the distribution's packages, where that is possible."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoPgbouncer("the program is missing; install the package pgbouncer")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "--yes", "--no-install-recommends", "pgbouncer"],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    except (subprocess.SubprocessError, OSError) as error:
        raise NoPgbouncer(f"the program is missing and apt-get cannot install it ({error})") from None
    program = shutil.which("pgbouncer")
    if program is None:
        raise NoPgbouncer("the package pgbouncer was installed, but its program is not found")
    return program
