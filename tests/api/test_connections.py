"""Clients that say half a word, on real sockets: they are given up, and others get in meanwhile."""

import contextlib
import json
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

from tcnn_api import closing, connections
from tcnn_api.connections import PatientProtocol

LARGE = 12_000_000
"""Bytes of an answer that no buffers between server and client hold."""

_left: list[str] = []
"""Paths of requests that were told that their client has gone."""
_holding: list[socket.socket] = []
"""Clients that hold on until the server has left."""


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    path = Request(scope).url.path
    while path == "/slow" and (await receive())["type"] != "http.disconnect":
        pass
    if path == "/slow":
        _left.append(path)
    if path == "/refuse":
        await PlainTextResponse("no", 413, {"Connection": "close"})(scope, receive, send)
        return
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
        thread.join(30)
        assert not thread.is_alive()
    while _holding:
        _holding.pop().close()


def _half(
    address: tuple[str, int], text: bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX-Half:", source: str = "127.0.0.1"
) -> socket.socket:
    client = socket.create_connection(address, timeout=60, source_address=(source, 0))
    client.sendall(text)
    return client


UPLOAD = f"POST /refuse HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n".encode()


def test_a_refusal_reaches_who_sends_all_of_a_body_first(address: tuple[str, int]) -> None:
    """It is said before the body has come, and read after it was sent."""
    with _half(address, UPLOAD + bytes(LARGE)) as client:
        answer = _read(client)
    assert answer.startswith(b"HTTP/1.1 413 ") and answer.endswith(b"no") and b"connection: close" in answer.lower()


@pytest.mark.parametrize(("bound", "value"), [("LINGER", 0.2), ("MOST_UNREAD", 1 << 20)])
def test_who_goes_on_sending_is_hung_up_on(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, bound: str, value: float
) -> None:
    """By the clock, or by what has come; which of the two is long enough for the other not to matter."""
    monkeypatch.setattr(closing, "LINGER", 600.0)
    monkeypatch.setattr(closing, bound, value)
    sent = 0
    with _half(address, UPLOAD) as client, pytest.raises(ConnectionError):
        while True:
            sent += client.send(bytes(1000 if bound == "LINGER" else 1 << 16))
            time.sleep(0.01)
    assert sent < LARGE


def test_refused_ones_that_hold_on_shut_nobody_out(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they hold up a server that leaves: it waits for none of them."""
    monkeypatch.setattr(closing, "LINGER", 600.0)
    _holding.extend(_half(address, UPLOAD) for _ in range(25))
    assert all(_status(client)[:12] in (b"HTTP/1.1 413", b"") for client in _holding)
    assert _answered(address) and _answered(address, "127.0.0.2")


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
    used = _half(address, WHOLE)
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


def _status(client: socket.socket) -> bytes:
    """The first line that comes, or nothing if the server hangs up without a word."""
    with contextlib.suppress(OSError):
        return client.recv(100).partition(b"\r\n")[0]
    return b""


def _read(client: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    answer = b""
    while data := client.recv(10_000):
        answer += data
    return answer


def _told() -> bool:
    """Whether a request that was under way is soon told that its client has gone."""
    return any(_left or time.sleep(0.01) for _ in range(1000))


START = b"GET / HTTP/1.1\r\nHost: a\r\n"
WHOLE = START + b"\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "filling"),
    [(START, b"a:b\r\n"), (START + b"X: ", b"a" * 1000), (b"GET /", b"a" * 1000), (b"", b"\r\n"), (WHOLE, b"a" * 1000)],
)
def test_a_head_without_end_is_refused(address: tuple[str, int], start: bytes, filling: bytes) -> None:
    """Many short lines, an endless one, or nothing but empty ones; on a connection that was used before, too."""
    with _half(address, start) as client:
        if start == WHOLE:
            assert client.recv(1000).endswith(b"here")
            client.sendall(START + b"X: ")
        sent = 0
        with contextlib.suppress(OSError):
            while sent < LARGE:
                sent += client.send(filling * (8192 // len(filling)))
                time.sleep(0.001)  # it has read what came before: the refusal is not lost
        assert sent < LARGE // 10
        assert _status(client) in (b"HTTP/1.1 431 Request Header Fields Too Large", b"")


def test_a_long_head_is_read_and_a_longer_one_is_told_why(address: tuple[str, int]) -> None:
    with _half(address, START + b"X: " + b"a" * 60_000 + b"\r\n\r\n") as client:
        assert _status(client) == b"HTTP/1.1 200 OK"
    with _half(address, START + b"X: " + b"a" * 90_000) as client:
        answer = _read(client)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ") and b"application/problem+json" in head and b"connection: close" in head
    assert b"expected at most 65,536 bytes" in body and f"content-length: {len(body)}".encode() in head


@pytest.mark.parametrize("filling", [b"0\r\n" + b"a:b\r\n" * 20_000, b"5;" + b"x" * 100_000])
def test_what_surrounds_a_body_has_an_end_too(address: tuple[str, int], filling: bytes) -> None:
    """Trailers, and extensions of chunks; bodies themselves are no matter of the connection."""
    with _half(address, CHUNKED + b"5\r\nhello\r\n" * 20_000) as client:
        with contextlib.suppress(OSError):
            client.sendall(filling)
        assert _is_closed(client)


@pytest.mark.parametrize("start", [b"", WHOLE, CHUNKED])
def test_what_is_no_http_is_answered_as_every_error(address: tuple[str, int], start: bytes) -> None:
    """At once, after another request, and in the middle of a body, whose reader is told that nobody is there."""
    _left.clear()
    with _half(address, start) as client:
        if start == WHOLE:
            assert client.recv(1000).endswith(b"here")
        client.sendall(b"what is this?\r\n\r\n" * 1000)
        head, _, body = _read(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ") and b"application/problem+json" in head
    assert json.loads(body)["detail"] == connections.NO_HTTP
    assert start != CHUNKED or _told()


def test_no_answer_is_written_into_another(address: tuple[str, int]) -> None:
    with _half(address, SLOW + b"what is this?\r\n\r\n") as client:
        assert _is_closed(client)


def test_few_requests_may_be_sent_ahead(address: tuple[str, int]) -> None:
    with _half(address, WHOLE * connections.MOST_AHEAD) as client:
        assert _read(client).count(b"here") == connections.MOST_AHEAD
    with _half(address, SLOW + WHOLE * 1000) as client:
        assert _is_closed(client)


def test_every_request_of_a_connection_is_told_that_its_client_has_gone(address: tuple[str, int]) -> None:
    """Also the one that is being answered while others wait behind it."""
    _left.clear()
    _half(address, SLOW + WHOLE).close()
    assert _told()


def test_no_connection_leaves_the_protocol(address: tuple[str, int]) -> None:
    """A request for WebSockets, or HTTP/2, is answered as any other, and is the last one on its connection."""
    for wanted in (b"websocket", b"h2c"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: " + wanted
        key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13"
        with _half(address, START + upgrade + b"\r\n" + key + b"\r\n\r\n") as client:
            answer = _read(client)
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"here")


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
    assert _answered(address) and _answered(address, "127.0.0.2")
    assert sum(_all_of(client) >= LARGE for client in clients) < 10
    for client in clients:
        client.close()


def test_one_client_has_half_of_all_connections(address: tuple[str, int]) -> None:
    """Even if something is being done on each; then it is refused more of them, and no other client is."""
    clients = [_half(address, SLOW) for _ in range(25)]
    assert all(_is_closed(client) for client in clients[10:])
    assert _answered(address, "127.0.0.2")
    for client in clients:
        client.close()
