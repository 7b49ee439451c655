"""Limits on idle connections: a deadline for request headers, and eviction of the client with the most."""

import asyncio
import itertools
import resource
from collections import defaultdict

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD = 15.0
"""Seconds from a connection, or from the first byte of a further request on it, to the end of the request's head."""
KEPT = 64
"""File descriptors that are kept for everything else: files, the database, processes."""

_numbers = itertools.count()


def most_connections() -> int:
    """How many a process may have open at once."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 4 - KEPT)


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's, whose patience has an end."""

    _late: asyncio.TimerHandle | None = None
    number = 0
    most: int | None = None

    @property
    def waits(self) -> bool:
        """Whether it is open, and no request is being answered on it."""
        if self.transport.is_closing():
            return False
        return (self.cycle is None or self.cycle.response_complete) and not self.pipeline

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; should there be too many, one that waits has to go."""
        super().connection_made(transport)
        self.number = next(_numbers)
        self._expect_head()
        if len(self.connections) > (most_connections() if self.most is None else self.most):
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._late is None and self.waits:
            self._expect_head()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head is whole; its body has a deadline of its own (`middleware.LimitBody`)."""
        self._expect_nothing()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._expect_nothing()
        super().connection_lost(exc)

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

    def _make_room(self) -> None:
        """Of the client that has the most connections on which nothing is being answered, close the oldest."""
        idle: dict[str, list[PatientProtocol]] = defaultdict(list)
        for connection in self.connections:
            if isinstance(connection, PatientProtocol) and connection is not self and connection.waits:
                idle[connection.client[0] if connection.client else ""].append(connection)
        if idle:
            greediest = max(idle.values(), key=len)
            min(greediest, key=lambda connection: connection.number).transport.abort()
