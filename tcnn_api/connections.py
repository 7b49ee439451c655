"""Limits on connections: deadlines for request headers and for reading answers, bounds of a head and for each client.

A connection that nobody gets anything from costs a file descriptor: one that waits for a request, one whose answer the
client does not read, in the middle of it or after its end.
"""

import asyncio
import http
import ipaddress
import itertools
import json
import resource
import time
from collections import defaultdict
from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tcnn_api.closing import MOST_OF_A_HEAD, Closing

HEAD = 15.0
"""Seconds from a connection, or from the first byte of a further request on it, to the end of the request's head."""
MOST_HEAD = 64 << 10
"""Bytes of a head. The parser keeps what it has read of one, which takes twenty times the memory of short lines."""
TOO_LONG = f"expected at most {MOST_HEAD:,} bytes of headers, found more; send fewer or shorter ones"
NO_HTTP = "expected a request of HTTP/1.1, found what cannot be read as one; send it again with an HTTP client"
MOST_AHEAD = 32
"""Requests that a client may send before it has the answer to the first."""
PIECE = 16 << 10
"""Bytes that are parsed at a time."""
LOOK = 15.0
"""Seconds between two looks whether the client reads what it is sent."""
SLOWEST = 1024
"""Bytes a second that it has to read meanwhile."""
KEPT = 64
"""File descriptors that are kept for everything else: files, the database, processes."""

_numbers = itertools.count()


def most_connections() -> int:
    """How many a process may have open at once."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4 - KEPT)


def network(address: str) -> str:
    """Who an address is: of IPv6 its network of 64 bits, for whoever has one may come from any address of it."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found.packed, 64), strict=False))


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's, whose patience has an end."""

    _late: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _unread: int | None = None
    _paused: float | None = None
    _unfinished = 0
    _asked: Sequence[RequestResponseCycle] = ()
    number = 0
    most: int | None = None
    transport: Closing  # type: ignore[assignment]

    @property
    def waits(self) -> bool:
        """Whether it is open, and no request is being answered on it, or will be any more."""
        if self.transport.is_closing():
            return self.transport.lingers
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    @property
    def stuck(self) -> bool:
        """Whether nothing more can be sent until the client reads."""
        return self._paused is not None or (self.transport.is_closing() and self._left > 0)

    @property
    def who(self) -> str:
        """The client, one of those among whom room is shared."""
        return network(self.client[0]) if self.client else ""

    @property
    def _left(self) -> int:
        return int(self.transport.get_write_buffer_size())

    def _sends(self) -> bool:
        """Whether the client is in the middle of a request that is answered already."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; should there be too many, of it or of all, one that is of no use to anybody has to go."""
        super().connection_made(Closing(transport, self._sends))  # type: ignore[arg-type]
        self.number = next(_numbers)
        self._expect_head()
        self._looking = self.loop.call_later(LOOK, self._look)
        self._make_room(most_connections() if self.most is None else self.most)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request. Those that are part of no body, and do not end a head either, are counted: of a head, of
        a chunked body's trailers, of the extensions of its chunks.
        """
        if self.transport.lingers:
            self.transport.discard(data)
            return
        if self._late is None and self.waits:
            self._expect_head()
        for start in range(0, len(data), PIECE):
            if self.transport.is_closing():
                return
            piece = data[start : start + PIECE]
            self._unfinished += len(piece)
            super().data_received(piece)
            if self._unfinished > MOST_HEAD and not self.transport.is_closing():
                self._refuse()

    def on_headers_complete(self) -> None:
        """The head is whole; its body has a deadline of its own (`middleware.LimitBody`)."""
        self._expect_nothing()
        self._unfinished = 0
        super().on_headers_complete()
        self._asked = [one for one in (*self._asked, self.cycle) if not one.response_complete]
        if len(self.pipeline) >= MOST_AHEAD:
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        """A part of a body has come."""
        self._unfinished = 0
        super().on_body(body)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._paused = time.monotonic()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._paused = self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._expect_nothing()
        if self._looking is not None:
            self._looking.cancel()
        self.transport.lost()
        self._tell_gone()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """No: there are no WebSockets here, and nothing would bound a connection that left this protocol."""
        return False

    def _unsupported_upgrade_warning(self) -> None:
        """A request for another protocol is answered in this one, and is the last one: the parser reads no further."""
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read; if another answer has begun, or is waited for, only hang up."""
        under_way = [cycle for cycle in self._asked if not cycle.response_complete]
        if any(cycle.response_started or not cycle.more_body for cycle in under_way):
            self.transport.abort()
        else:
            self._answer(400, NO_HTTP)
            self._tell_gone()

    def _refuse(self) -> None:
        """Answer a head that is too long, and hang up; in the middle of a request only hang up."""
        if self.waits:
            self._answer(431, TOO_LONG)
        else:
            self.transport.abort()

    def _answer(self, status: int, detail: str) -> None:
        """The last answer of a connection, which no route gives, in the form of all errors (RFC 9457)."""
        title = http.HTTPStatus(status).phrase
        told = {"type": "about:blank", "title": title, "status": status, "detail": detail, "instance": "", "errors": []}
        body = json.dumps(told).encode()
        head = f"content-type: application/problem+json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.linger(MOST_OF_A_HEAD)

    def _tell_gone(self) -> None:
        """Tell those who answer that nobody listens any more."""
        self.pipeline.clear()  # further requests that were sent already, which uvicorn would still answer
        for cycle in self._asked:  # uvicorn tells only the last one
            cycle.disconnected = True
            cycle.message_event.set()

    def shutdown(self) -> None:
        """The server leaves, and waits for nobody who has been answered."""
        if self.transport.lingers:
            self.transport.abort()
        else:
            super().shutdown()

    def _expect_head(self) -> None:
        self._late = self.loop.call_later(HEAD, self._give_up)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self.waits:
            self.transport.close()

    def _look(self) -> None:
        """Hang up on a client that has hardly read anything since the last look, though there was something to read."""
        before, self._unread = self._unread, self._left if self.stuck else None
        if before is not None and self._unread is not None and before - self._unread < SLOWEST * LOOK:
            self.transport.abort()
        else:
            self._looking = self.loop.call_later(LOOK, self._look)

    def _make_room(self, most: int) -> None:
        """Close the oldest useless connection of this client if it has more than half of all, of the client that has
        the most such ones if there are too many. Where all are of use, the new one is closed."""
        everybody = [one for one in self.connections if isinstance(one, PatientProtocol)]
        too_many = len(everybody) > most
        if not too_many and sum(one.who == self.who for one in everybody) <= most // 2:
            return
        useless: dict[str, list[PatientProtocol]] = defaultdict(list)
        for one in everybody:
            if one is not self and (one.waits or one.stuck) and (too_many or one.who == self.who):
                useless[one.who].append(one)
        greediest = max(useless.values(), key=len, default=[self])
        min(greediest, key=_worth).transport.abort()


def _worth(connection: PatientProtocol) -> tuple[bool, float]:
    """Those that wait go first, the oldest before the others; then those that are not read, for the longest time."""
    if connection.waits:
        return False, connection.number
    return True, connection._paused or 0.0
