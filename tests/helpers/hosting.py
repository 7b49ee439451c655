"""The HTTP service on a port, in a thread of the tests' process: a process of its own takes a second to load."""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import structlog
import uvicorn
from fastapi import FastAPI
from houses import migrated
from serving import Server

from tcnn_api.app import create_app
from tcnn_api.connections import PatientProtocol
from tcnn_api.settings import load


async def ask_here(module: str, function: str, *arguments: str, memory: int, seconds: int) -> dict[str, Any]:
    """In the place of `tcnn_jobs.confined.process.ask`: in a thread, without the bounds that a process has."""
    found = await asyncio.to_thread(getattr(import_module(module), function), *arguments)
    answer: dict[str, Any] = json.loads(json.dumps(found))
    return answer


def look_here(patch: pytest.MonkeyPatch, *routes: ModuleType) -> None:
    """What these routes take is looked at by threads of the server: a process for each takes a quarter of a second."""
    for route in routes:
        patch.setattr(route, "ask", ask_here)


@contextmanager
def listening(app: FastAPI, port: int = 0) -> Iterator[str]:
    """The app on a real port, as `tcnn serve` puts it there; its URL."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app, http=PatientProtocol, log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def hosted(home: Path, port: int = 0, **settings: Any) -> Iterator[Server]:
    """A server of this home, with settings of its own, until the block ends. It has no worker.

    Its log is on stderr as that is now, not on what a test looks at. A new home's tables are made before it looks:
    that each server can make them is in `tests/api/test_serve_process.py`.
    """
    if not (home / "tcnn.db").exists():
        home.mkdir(parents=True, exist_ok=True)
        (home / "tcnn.db").write_bytes(migrated())
    structlog.reset_defaults()  # what a command of a test before this one has configured
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        with listening(create_app(load(home=home, **settings)), port) as url:
            yield Server(url, home)
    finally:
        structlog.reset_defaults()
