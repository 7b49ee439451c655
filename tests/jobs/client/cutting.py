"""What lies between a client and its server: a TCP relay that hangs up after so many bytes of every answer, and a proxy
that compresses; and a server with a script."""

import gzip
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Relay:
    """Listens at `url`; `cuts` counts the connections that were broken."""

    def __init__(self, target: str, limit: int, cuts: int) -> None:
        self._target = urlsplit(target)
        self._limit, self.left, self.cuts = limit, cuts, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, socket.create_connection((self._target.hostname, self._target.port)) as server:
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            self._pump(server, client, self._limit)

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(4096):
                passed += len(data)
                if limit is not None and passed > limit and self.left > 0:
                    self.left -= 1
                    self.cuts += 1
                    break
                sink.sendall(data)
            for end in (source, sink):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(target: str, limit: int, cuts: int) -> Iterator[Relay]:
    made = Relay(target, limit, cuts)
    try:
        yield made
    finally:
        made.close()


class Scripted(ThreadingHTTPServer):
    """Answers with the next status of its script, the last one for ever, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self, script: list[tuple[int, dict[str, str], bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append((f"{self.command} {self.path}", {k.lower(): v for k, v in self.headers.items()}, body))
        script = self.server.script
        status, headers, content = script.pop(0) if len(script) > 1 else script[0]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def scripted(*script: tuple[int, dict[str, str], bytes]) -> Iterator[Scripted]:
    server = Scripted(list(script))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Compressing(BaseHTTPRequestHandler):
    target: str
    always: bool

    def do_GET(self) -> None:
        place = urlsplit(self.target)
        with closing(http.client.HTTPConnection(place.hostname or "", place.port)) as server:
            server.request("GET", self.path, headers=dict(self.headers))
            answer = server.getresponse()
            body = answer.read()
        packed = self.always or "gzip" in self.headers.get("Accept-Encoding", "")
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        if packed:
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def compressing(target: str, always: bool) -> Iterator[str]:
    """The URL of a proxy that compresses what a client takes compressed, or `always`."""
    handler = type("Handler", (_Compressing,), {"target": target, "always": always})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
