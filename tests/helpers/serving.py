"""The HTTP service for tests that talk to it: `tcnn serve` in a process of its own, or on a port in a thread of the
tests' process, for a process takes a second to load; and what its refusals look like.
"""

import asyncio
import functools
import hashlib
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import structlog
import uvicorn
from fastapi import FastAPI
from houses import migrated
from httpx._transports import default

from tcnn_api.app import create_app
from tcnn_api.connections import PatientProtocol
from tcnn_api.settings import load

# Every client reads all certificates first, which takes longer than what most tests ask.
vars(default)["create_ssl_context"] = functools.cache(httpx.create_ssl_context)


@dataclass
class Server:
    """Where it listens, and where its files are."""

    url: str
    home: Path

    def client(self, key: str | None = "key-of-alice") -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def files(self) -> dict[str, str]:
        """Everything in the home directory but the database, with its digest; folders and links too. What the server
        deletes meanwhile is not there.
        """
        found = {}
        for folder, folders, names in os.walk(self.home):
            for path in (Path(folder, name) for name in (*folders, *names) if not name.startswith("tcnn.db")):
                kind = "link" if path.is_symlink() else "folder" if path.is_dir() else None
                with suppress(FileNotFoundError):
                    content = kind or hashlib.sha256(path.read_bytes()).hexdigest()
                    found[str(path.relative_to(self.home))] = content
        return dict(sorted(found.items()))


@contextmanager
def serving(home: Path, *arguments: str, largest_file: int | None = None, **environment: str) -> Iterator[Server]:
    """A server until the block ends; `largest_file` bytes and no more can be written to a file, as on a full disk."""
    home.parent.mkdir(parents=True, exist_ok=True)

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    if largest_file is not None:  # Python would keep bytecode that is cut short
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with (home.parent / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "TCNN_HOME": str(home), "PYTHONUNBUFFERED": "1", **environment},
            preexec_fn=limit,  # noqa: PLW1509 - it calls the kernel and nothing else
        )
        assert process.stdout is not None
        try:
            said = next((line for line in process.stdout if "tcnn is at" in line), "")
            found = re.search(r"http://[\w.:]+", said)
            assert found, (home.parent / "server.log").read_text()
            yield Server(found[0], home)
        finally:
            process.terminate()
            process.stdout.close()
            try:
                process.wait(60)
            finally:
                process.kill()  # one that stands still hears nothing else


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


SMALL = {  # what a server of uploads allows
    "TCNN_MAX_UPLOAD_GB": "0.03",
    "TCNN_MAX_UNPACKED_GB": "0.2",
    "TCNN_MAX_FILES": "2000",
    "TCNN_API_KEYS": "alice:key-of-alice,bob:key-of-bob",
}


def problem(answer: httpx.Response) -> dict[str, Any]:
    """The body of an RFC 9457 error, which names the field and tells nothing of the server's folders."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    assert "\n" not in body["detail"]
    assert "incoming" not in body["detail"]
    if answer.status_code == 422:
        assert [error["field"] for error in body["errors"]] == ["file"]
    return body
