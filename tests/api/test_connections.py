"""Clients that say half a word, on real sockets: they are given up, and others get in meanwhile."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tcnn_api import connections
from tcnn_api.connections import PatientProtocol

LARGE = 12_000_000
"""Bytes of an answer that no buffers between server and client hold."""


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    path = Request(scope).url.path
    while path == "/slow" and (await receive())["type"] != "http.disconnect":
        pass
    await PlainTextResponse(bytes(LARGE) if path == "/large" else "here")(scope, receive, send)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server which has room for twenty connections, ten of a client."""
    monkeypatch.setattr(connections, "HEAD", 60.0)
    monkeypatch.setattr(PatientProtocol, "most", 20)
    config = uvicorn.Config(_app, log_config=None, lifespan="off", http=PatientProtocol, timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def _half(
    address: tuple[str, int], text: bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Half:", source: str = "127.0.0.1"
) -> socket.socket:
    client = socket.create_connection(address, timeout=60, source_address=(source, 0))
    client.sendall(text)
    return client


def _answered(address: tuple[str, int], source: str = "127.0.0.1") -> bool:
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport, timeout=60) as client:
        return client.get(f"http://{address[0]}:{address[1]}/").text == "here"


def _all_of(client: socket.socket) -> int:
    """Bytes that come until the server hangs up."""
    found = 0
    try:
        while data := client.recv(1 << 20):
            found += len(data)
    except ConnectionResetError:
        pass
    return found


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_a_head_is_given_up(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, on a connection that was used before, and where nothing was ever sent."""
    whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    used = _half(address, whole)
    assert used.recv(1000).endswith(b"here")
    monkeypatch.setattr(connections, "HEAD", 0.4)
    used.sendall(b"GET / HT")
    clients = [used, _half(address), _half(address, b"")]
    for byte in b"drip":
        time.sleep(0.05)
        with contextlib.suppress(OSError):  # on a slow machine it is given up by now
            clients[1].sendall(bytes([byte]))
    assert all(_is_closed(client) for client in clients)
    for client in clients:
        client.close()


def test_who_waits_goes_before_who_does_not_read() -> None:
    """Of those that wait the oldest goes first, of the others who has not read for the longest time."""
    waiting = [SimpleNamespace(waits=True, number=number, _paused=None) for number in (10**9, 2 * 10**9)]
    stuck = [SimpleNamespace(waits=False, number=number, _paused=since) for number, since in ((7, 1.0), (3, 2.0))]
    everybody = [*stuck[::-1], *waiting[::-1]]
    assert sorted(everybody, key=connections._worth) == [*waiting, *stuck]  # type: ignore[arg-type]


def test_many_silent_connections_shut_nobody_out(address: tuple[str, int]) -> None:
    """Thirty where there is room for ten: those go that wait, and whoever asks is answered."""
    clients = [_half(address) for _ in range(30)]
    for _ in range(3):
        assert _answered(address)
    assert sum(_is_closed(client) for client in clients[:15]) == 15
    for client in clients:
        client.close()


ASK = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"


def test_an_answer_that_is_not_read_is_given_up(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is read is sent to its end, however often the client stops for a moment."""
    monkeypatch.setattr(connections, "LOOK", 0.4)
    with _half(address, ASK) as reader, _half(address, ASK) as sleeper:
        found = 0
        while found < LARGE:
            came = len(reader.recv(1 << 20))
            assert came, "it was hung up on"
            found += came
            time.sleep(0.03)
        time.sleep(0.9)
        assert _all_of(sleeper) < LARGE


def test_answers_that_are_not_read_shut_nobody_out(address: tuple[str, int]) -> None:
    """Where all of a client's connections are of that kind, its next one is served in place of one of them."""
    clients = [_half(address, ASK) for _ in range(25)]
    assert _answered(address)
    assert _answered(address, "127.0.0.2")
    assert sum(_all_of(client) >= LARGE for client in clients) < 10
    for client in clients:
        client.close()


def test_one_client_has_half_of_all_connections(address: tuple[str, int]) -> None:
    """Even if something is being done on each; then it is refused more of them, and no other client is."""
    clients = [_half(address, b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n") for _ in range(25)]
    assert all(_is_closed(client) for client in clients[10:])
    assert _answered(address, "127.0.0.2")
    for client in clients:
        client.close()
