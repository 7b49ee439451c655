"""A real server in a process of its own, with small limits, and what its home directory holds."""

import hashlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

LIMITS = {
    "TCNN_MAX_UPLOAD_GB": "0.03",
    "TCNN_MAX_UNPACKED_GB": "0.2",
    "TCNN_MAX_FILES": "20000",
    "TCNN_API_KEYS": "alice:key-of-alice,bob:key-of-bob",
}


@dataclass
class Server:
    """Where it listens, where its files are, and its process."""

    url: str
    home: Path
    process: subprocess.Popen[bytes]

    def client(self, key: str = "key-of-alice") -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=60, trust_env=False)

    def files(self) -> dict[str, str]:
        """Everything in the home directory but the database, with its digest; folders and links too."""
        found = {}
        for path in sorted(self.home.rglob("*")):
            if path.name.startswith("tcnn.db"):
                continue
            kind = "link" if path.is_symlink() else "folder" if path.is_dir() else None
            found[str(path.relative_to(self.home))] = kind or hashlib.sha256(path.read_bytes()).hexdigest()
        return found


@contextmanager
def serving(home: Path, largest_file: int | None = None, **environment: str) -> Iterator[Server]:
    """A server until the block ends; `largest_file` bytes and no more can be written to a file, as on a full disk."""
    home.parent.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "uvicorn", "--factory", "api.app:create_app", "--fd", str(listener.fileno())]
        port = listener.getsockname()[1]

        def limit() -> None:
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        log = (home.parent / "server.log").open("wb")
        process = subprocess.Popen(
            [*command, "--no-access-log"],
            pass_fds=(listener.fileno(),),
            stdout=log,
            stderr=log,
            env={**os.environ, **LIMITS, "TCNN_HOME": str(home), **environment},
            preexec_fn=limit,  # noqa: PLW1509 - it calls the kernel and nothing else
        )
    try:
        server = Server(f"http://127.0.0.1:{port}", home, process)
        with server.client() as client:
            for _ in range(300):
                assert process.poll() is None, (home.parent / "server.log").read_text()
                try:
                    client.get("/healthz")
                    break
                except httpx.TransportError:
                    pass
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(20)
        log.close()


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
