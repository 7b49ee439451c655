"""The server's process: a socket, uvicorn on it, and the supervisor of a worker that is its child."""

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
import typer
import uvicorn

from tcnn.errors import EnvironmentFailure, RequestError, one_line
from tcnn.processes import keep_to_oneself
from tcnn_api.app import create_app
from tcnn_api.connections import PatientProtocol
from tcnn_api.settings import ApiSettings
from tcnn_jobs import logs
from tcnn_jobs.artifacts.layout import home_of
from tcnn_jobs.attempts.running import LONGEST
from tcnn_jobs.housekeeping import ownership
from tcnn_jobs.settings import doubts
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.serve")

DRAIN = 15
"""Seconds beyond the jobs' grace time, and a long step of theirs, that a worker gets to hand them back."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60
"""Seconds before a worker that keeps dying is started again; a run of this length begins at one second anew."""
REQUESTS = 5
"""Seconds that requests get to end when the server leaves: after them they are cancelled."""
HANGING_UP = 4.0
"""Seconds after which their connections are closed, so that they end as when a client leaves, and clean up."""
SWITCH = 0.0005
"""Seconds that a thread may keep the interpreter while others wait. A request needs it again after each of a dozen
statements, and at Python's 5 ms it would wait for that long every time."""


def serve(settings: ApiSettings, worker: bool = True) -> None:
    """Serve until SIGTERM or Ctrl-C. Call it from the main thread, which the worker's life hangs on.

    Raises `RequestError` (settings, host, files of another database) and `EnvironmentFailure` (home directory,
    database, port).
    """
    keep_to_oneself()
    app = create_app(settings)  # reads the API keys: a mistake there is told before anything is made
    home = home_of(settings).create()
    store = Store(settings.database)
    store.migrate()
    ownership.check(ownership.place_of(home), store)
    settings.check_host(stored=store.has_keys())
    store.close()
    with contextlib.closing(listen(settings.host, settings.port)) as listener:
        logs.configure(settings.log_format, settings.log_level)
        for doubt in doubts(settings):
            log.warning(doubt)
        tell_of_roots(settings)
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            log_config=None,
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=REQUESTS,
        )
        server = Server(config, address(settings.host, listener), WorkerProcess(settings) if worker else None)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:  # uvloop where there is one
            runner.run(server.serve(sockets=[listener]))


def tell_of_roots(settings: ApiSettings) -> None:
    """A warning for each of the directories of data sets that is none: it may be mounted later, or be misspelt."""
    for root in settings.dataset_roots:
        if not _is_there(root):
            log.warning(
                "TCNN_DATASET_ROOTS: not a directory; data sets below it are refused until it is there", path=str(root)
            )


def _is_there(root: Path) -> bool:
    try:
        return root.expanduser().is_dir()
    except RuntimeError:  # the home of nobody
        return False


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises `RequestError` for an unknown host, `EnvironmentFailure` for a port in use."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise RequestError(f"--host {host}: not an address of this machine ({one_line(error)})") from error
    try:
        listener = socket.create_server(place[:2], family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise EnvironmentFailure(f"{host} port {port}: {reason}; choose another --port or --host") from error
    # asyncio asks for it only where a socket knows its protocol, and this one's connections do not: every answer,
    # whose head and body are written apart, would wait 40 ms for the client's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(host: str, listener: socket.socket) -> str:
    """The URL of a listening socket."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


class WorkerProcess:
    """`tcnn worker` as a child, in a session of its own: a Ctrl-C in the terminal is ours to pass on."""

    def __init__(self, settings: ApiSettings) -> None:
        self._grace = settings.grace + LONGEST + DRAIN
        given = {
            "TCNN_HOME": str(settings.root),
            "TCNN_DATABASE_URL": settings.database_url,
            "TCNN_ARTIFACTS": settings.artifacts,
            "TCNN_SLOTS": settings.slots,
            "TCNN_LOG_FORMAT": settings.log_format,
            "TCNN_LOG_LEVEL": settings.log_level,
        }
        self._environment = os.environ | {name: str(value) for name, value in given.items() if value is not None}
        self._process: asyncio.subprocess.Process | None = None
        self._leaving = False

    async def run(self) -> None:
        """Keep a worker running until `stop`; one that dies, or cannot be started just now, is started again."""
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            try:
                ended: dict[str, object] = {"code": await self._run_one()}
            except Exception as error:  # no process or memory to be had, or whatever else: it may be there later
                ended = {"problem": one_line(error)}
            if self._leaving:
                return
            pause = FIRST_PAUSE if time.monotonic() - started > LONGEST_PAUSE else pause
            log.error("there is no worker", **ended, again_in_seconds=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _run_one(self) -> int:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tcnn", "worker", "--parent", str(os.getpid()),
            env=self._environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return await self._process.wait()

    async def stop(self, server: uvicorn.Server) -> None:
        """Ask the worker to hand its jobs back, and end it if it does not; a second Ctrl-C ends it at once."""
        self._leaving = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            deadline = time.monotonic() + self._grace
            while process.returncode is None and time.monotonic() < deadline and not server.force_exit:
                await asyncio.sleep(0.05)
            if process.returncode is None:
                log.error("the worker did not leave in time and was killed")
                process.kill()
                await process.wait()


def _say(line: str) -> None:
    """Write to stdout. On a full disk, or where nobody reads, the log has the line, and the server goes on."""
    try:
        typer.echo(line)
    except OSError as error:
        log.warning(line, stdout=one_line(error))
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # else what is left of the line is written at the end


class Server(uvicorn.Server):
    """uvicorn's, which also minds the worker."""

    def __init__(self, config: uvicorn.Config, url: str, worker: WorkerProcess | None) -> None:
        super().__init__(config)
        self._url, self._worker = url, worker
        self._minding: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's, this does not raise what it heard again: to leave was what we were asked for."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, then start the worker, then say where we are."""
        await super().startup(sockets)
        if self.started:
            sys.setswitchinterval(SWITCH)
            gc.freeze()  # what is there now stays; looking through it would hold up a request for tens of milliseconds
            if self._worker is not None:
                self._minding = asyncio.create_task(self._worker.run())
            _say(f"tcnn is at {self._url} (what it can do: {self._url}/docs); Ctrl-C stops it")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, let requests end, then let the worker hand its jobs back."""
        hanging_up = asyncio.get_running_loop().call_later(HANGING_UP, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            hanging_up.cancel()
            self._hang_up()  # also when a second signal did not let it wait
        if self._worker is not None and self._minding is not None:
            await self._worker.stop(self)
            self._minding.cancel()
            await asyncio.gather(self._minding, return_exceptions=True)

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()
