"""A PostgreSQL server of one's own, in a temporary directory, on a Unix socket and, if asked to, on TCP.

It refuses to run as root, so root starts it as the distribution's `postgres` user. It dies with whoever started it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from tcnn.processes import die_with_parent


class NoPostgres(Exception):
    """There are no server programs, and none could be installed; the message says what was tried."""


MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""


class Server:
    """A running server; `stop` and `start` as often as wanted."""

    def __init__(
        self, programs: Path, folder: Path, user: dict[str, Any], durable: bool, listen: str = "",
        of: "Server | None" = None,
    ) -> None:  # fmt: skip
        self._programs, self.folder, self._user = programs, folder, user
        self._listen, self._port = listen, free_port() if listen else 5432
        self._options = () if durable else ("-F", "-c", "max_wal_size=256MB")
        self._in_memory = folder.is_relative_to(MEMORY)
        self._process: subprocess.Popen[bytes] | None = None
        data = str(folder / "data")
        if of is None:
            self._run("initdb", "--pgdata", data, "--auth=trust", "--username=tcnn", "--no-sync", "-E", "UTF8")
        else:
            source = ("--dbname", f"host={of.folder} port={of._port} user=tcnn application_name=standby")
            self._run("pg_basebackup", "--pgdata", data, "--write-recovery-conf", "--checkpoint=fast", *source)
        if listen:
            with (folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write("host all all 0.0.0.0/0 trust\n")
        self.start()

    def start(self) -> None:
        """Run the server if it does not run, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._programs / "postgres",
                    *("-D", self.folder / "data", "-k", self.folder, *self._options),
                    *("-c", f"listen_addresses={self._listen}", "-c", f"port={self._port}"),
                    *("-c", "max_connections=200", "-c", "shared_buffers=32MB"),
                ],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                # After the change of user: that would undo it.
                preexec_fn=partial(die_with_parent, signal.SIGQUIT),  # noqa: PLW1509 - nobody else holds a lock that prctl needs
                **self._user,
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                with psycopg.connect(self.address("postgres")):
                    return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log.txt").read_text()[-2000:]) from None
                time.sleep(0.05)

    @contextmanager
    def standby(self) -> Iterator["Server"]:
        """Another server that follows this one; from now on a commit is one when both have it."""
        folder = Path(tempfile.mkdtemp(prefix="tcnn-pg-", dir=self.folder.parent))
        if self._user:
            shutil.chown(folder, "postgres", "postgres")
        other = None
        try:
            other = Server(self._programs, folder, self._user, durable=not self._options, of=self)
            self._admin("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self._admin("SELECT pg_reload_conf()")
            yield other
        finally:
            if other is not None:
                other.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def promote(self) -> None:
        """Follow no more: from now on this is the server that takes changes."""
        self._admin("ALTER SYSTEM RESET synchronous_standby_names")
        self._admin("SELECT pg_promote()")

    def stop(self) -> None:
        """Stop at once, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGQUIT)
            self._process.wait(60)
            self._process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """All its processes are stopped, as by a frozen virtual machine: the kernel goes on acknowledging."""
        assert self._process is not None
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children")
        self._process.send_signal(signal.SIGSTOP)
        pids = [int(pid) for pid in children.read_text().split()]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in (*pids, main):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def address(self, database: str) -> str:
        """What libpq calls a connection URI."""
        return f"postgresql://tcnn@/{database}?host={self.folder}&port={self._port}"

    def over_tcp(self, database: str, host: str = "127.0.0.1") -> str:
        """The same for another host, where it listens on more than its socket."""
        return f"postgresql://tcnn@{host}:{self._port}/{database}"

    def create(self, database: str, template: str = "template1") -> str:
        """A new database, a copy of another; returns its URL."""
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            # Files are copied as they are where that can be chosen; else, page by page by way of the log.
            how = " STRATEGY FILE_COPY" if connection.info.server_version >= 150000 and self._in_memory else ""
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"{how}')
        return self.address(database)

    def drop(self, database: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._admin(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')

    def _admin(self, statement: str) -> None:
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments], cwd=self.folder, check=True, capture_output=True, **self._user
        )


@contextmanager
def postgres(*, durable: bool = False, listen: str = "", place: str | None = None) -> Iterator[Server]:
    """A server that is gone, files and all, when the block is left; raises `NoPostgres`.

    `durable` makes every commit reach the disk, as in production; tests that only kill processes are faster without.
    `listen`: an address to listen on besides, with trust in everybody who can reach it. `place`: where its files lie;
    in memory, unless they are to last or there is little of it: to copy and remove a database on a disk took most of
    the tests' time in the kernel.
    """
    if place is None:
        place = "/tmp" if durable or not _roomy(MEMORY) else str(MEMORY)
    with Path(tempfile.gettempdir(), "tcnn-pg-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one installs, the others find it done
        programs = _programs() or _install()
    user: dict[str, Any] = {}
    # Not below pytest's own folder, which root alone may enter; and a socket's path has at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="tcnn-pg-", dir=place))
    server = None
    try:
        if os.geteuid() == 0:
            user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(folder, "postgres", "postgres")
        server = Server(programs, folder, user, durable, listen)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _roomy(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 2 << 30


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _programs() -> Path | None:
    """The newest server programs of this machine."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/postgres"), *Path("/usr/pgsql").glob("*/bin/postgres")]
    if found:
        return max(found, key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0).parent
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path and shutil.which("initdb") else None


def _install() -> Path:
    """From the distribution's packages, where that is possible."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise NoPostgres("PostgreSQL's server programs are missing; install the package postgresql")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        for command in (
            ["apt-get", "update"],
            ["apt-get", "install", "--yes", "--no-install-recommends", "postgresql"],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    except (subprocess.SubprocessError, OSError) as error:
        raise NoPostgres(
            f"PostgreSQL's server programs are missing and apt-get cannot install them ({error})"
        ) from None
    programs = _programs()
    if programs is None:
        raise NoPostgres("the package postgresql was installed, but its server programs are not found")
    return programs
