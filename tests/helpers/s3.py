"""An S3 server of one's own (moto's), in a process on the loopback, and a gate before it that can refuse and fail."""

import http.client
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import httpx

KEYS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}
BUCKET = "results"

Answer = Callable[[str, str], tuple[int, str] | None]
"""(method, path) → the status and S3's error code instead of an answer; None lets the request through."""


class Gate:
    """What stands before the server. `refuse` decides about every request; `seen` are those that came.

    `process` is the number of the server's, which may be frozen.
    """

    def __init__(self, url: str, behind: str, process: int) -> None:
        self.url, self.behind, self.process = url, behind, process
        self.refuse: Answer = lambda method, path: None
        self.seen: list[tuple[str, str]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to know of it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.url}

    def objects(self) -> dict[str, bytes]:
        """Everything in the bucket, asked for behind the gate; for moments when nobody deletes in it."""
        files = self._files()
        return {name: files.cat_file(f"{BUCKET}/{name}") for name in self.names()}

    def names(self) -> set[str]:
        """The keys of everything in the bucket."""
        return {path.removeprefix(f"{BUCKET}/") for path in self._files().find(BUCKET)}

    def unfinished(self) -> list[str]:
        """Uploads in parts that nobody ended."""
        found = self._files().call_s3("list_multipart_uploads", Bucket=BUCKET)
        return [upload["Key"] for upload in found.get("Uploads", [])]

    def empty(self) -> None:
        """As in the beginning."""
        self.refuse = lambda method, path: None
        self.seen.clear()
        files = self._files()
        for path in files.find(BUCKET):
            files.rm_file(path)

    def _files(self) -> "fsspec.AbstractFileSystem":
        return fsspec.filesystem(
            "s3", key="tests", secret="tests", endpoint_url=self.behind, use_listings_cache=False,
            client_kwargs={"region_name": "us-east-1"},
        )  # fmt: skip


def read_only(method: str, path: str) -> tuple[int, str] | None:
    """Refuses what writes, as a store does whose keys may only read."""
    return (403, "AccessDenied") if method in ("PUT", "POST") else None


def full(method: str, path: str) -> tuple[int, str] | None:
    """Answers as MinIO does when its disks are full."""
    return (507, "XMinioStorageFull") if method in ("PUT", "POST") else None


def fails(times: int, method: str = "PUT") -> Answer:
    """An internal error so many times, then all is well."""
    left = [times]

    def answer(asked: str, path: str) -> tuple[int, str] | None:
        if asked != method or not left[0]:
            return None
        left[0] -= 1
        return 500, "InternalError"

    return answer


@contextmanager
def s3(host: str = "127.0.0.1") -> Iterator[Gate]:
    """A server with an empty bucket, on an address of this machine, until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", host, "-p", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    behind = next((found[0] for line in process.stdout if (found := re.search(r"http://[\d.:]+", line))), "")
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        httpx.put(f"{behind}/{BUCKET}", trust_env=False).raise_for_status()
        with gated(behind, process.pid, host) as gate:
            yield gate
    finally:
        process.kill()
        process.wait()


@contextmanager
def gated(behind: str, process: int, host: str = "127.0.0.1") -> Iterator[Gate]:
    """A gate of its own, at an address of its own, before a server that runs.

    Parts of an upload that was stopped are still on their way then, and are tried again a second later: what comes
    after the end of the block is refused, and no other gate sees it.
    """
    server = ThreadingHTTPServer((host, 0), _Handler)
    server.daemon_threads = True
    gate = Gate(f"http://{host}:{server.server_address[1]}", behind, process)
    server.gate = gate  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield gate
    finally:
        gate.refuse = lambda method, path: (403, "AccessDenied")  # connections that are kept are still answered
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Passes a request on as it came, so that its signature stays true."""

    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        gate: Gate = self.server.gate  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        gate.seen.append((self.command, self.path))
        refused = gate.refuse(self.command, self.path)
        if refused is not None:
            status, code = refused
            content = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code} says the store</Message></Error>"
            self._answer(status, {"Content-Type": "application/xml"}, content.encode())
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        # Not httpx, whose client reads all certificates first: ten times as long as the request.
        connection = http.client.HTTPConnection(gate.behind.removeprefix("http://"), timeout=30)
        try:
            connection.request(self.command, self.path, body=body, headers=headers)
            found = connection.getresponse()
            answered = found.read()
        finally:
            connection.close()
        kept = {
            name: value for name, value in found.getheaders()
            if name.lower() not in ("connection", "transfer-encoding")
        }  # fmt: skip
        self._answer(found.status, kept, answered)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        elif not any(name.lower() == "content-length" for name in headers):
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""
