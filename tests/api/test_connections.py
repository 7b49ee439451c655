"""Clients that say half a word, on real sockets: they are given up, and others get in meanwhile."""

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from tcnn_api import connections
from tcnn_api.connections import PatientProtocol


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """A server of one page, which has room for ten connections and little patience."""
    monkeypatch.setattr(connections, "HEAD", 0.4)
    monkeypatch.setattr(PatientProtocol, "most", 10)
    config = uvicorn.Config(PlainTextResponse("here"), log_config=None, lifespan="off", http=PatientProtocol)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def _half(address: tuple[str, int], text: bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Half:") -> socket.socket:
    client = socket.create_connection(address, timeout=10)
    client.sendall(text)
    return client


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_half_a_head_is_given_up(address: tuple[str, int]) -> None:
    """At once, on a connection that was used before, and where nothing was ever sent."""
    whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    begun = time.monotonic()
    used = _half(address, whole)
    assert used.recv(1000).endswith(b"here")
    used.sendall(b"GET / HT")
    clients = [used, _half(address), _half(address, b"")]
    for byte in b"drip":
        time.sleep(0.05)
        clients[1].sendall(bytes([byte]))
    assert all(_is_closed(client) for client in clients)
    assert time.monotonic() - begun < 5
    for client in clients:
        client.close()


def test_many_silent_connections_shut_nobody_out(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty where there is room for ten: those go that wait, and whoever asks is answered."""
    monkeypatch.setattr(connections, "HEAD", 60.0)
    clients = [_half(address) for _ in range(30)]
    for _ in range(3):
        assert httpx.get(f"http://{address[0]}:{address[1]}/", trust_env=False, timeout=5).text == "here"
    assert sum(_is_closed(client) for client in clients[:15]) == 15
    for client in clients:
        client.close()
