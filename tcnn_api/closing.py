"""The end of a connection after an answer to a request that is still being sent: RFC 9112, §9.6.

A socket that is closed while bytes lie unread in it resets the connection, and a client that was sending loses the
answer: why its upload was refused. So the server sends nothing more, reads on for a while without looking at what
comes, and then closes.
"""

import asyncio
from collections.abc import Callable
from typing import Any

LINGER = 5.0
"""Seconds that a client gets to read the answer and to stop sending."""
MOST_UNREAD = 256 << 20
"""Bytes of a body that it may send meanwhile: some send all of one before they read anything."""
MOST_OF_A_HEAD = 256 << 10
"""Bytes that it may send meanwhile if it was no body that was refused."""


class Closing:
    """A connection's transport, which is closed so; to whoever uses it, it is closing from then on.

    Args:
        transport: the real one.
        sends: whether the client is in the middle of something when an ordinary `close` comes.
    """

    def __init__(self, transport: asyncio.Transport, sends: Callable[[], bool]) -> None:
        self._transport = transport
        self._sends = sends
        self._most = 0
        self._end: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the real one's."""
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """Whether all has been said, and the client may still be sending."""
        return self._end is not None and not self._transport.is_closing()

    def is_closing(self) -> bool:
        """Whether nothing more is to be said."""
        return self._end is not None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send, unless all has been said."""
        if self._end is None:
            self._transport.write(data)

    def close(self) -> None:
        """Close when what was written is sent; if the client is still sending, linger."""
        if self._sends():
            self.linger(MOST_UNREAD)
        elif self._end is None:
            self._transport.close()

    def linger(self, most: int) -> None:
        """Send what was written and no more, discard what comes, and close after a while, or after `most` bytes."""
        if self.is_closing():
            return
        if not self._transport.can_write_eof():  # TLS, which proxies speak
            self._transport.close()
            return
        self._transport.write_eof()
        self._most = most
        self._transport.resume_reading()  # it pauses while nobody reads the body
        self._end = asyncio.get_running_loop().call_later(LINGER, self._transport.close)

    def discard(self, data: bytes) -> None:
        """What came while it lingers: too much of it ends the connection at once."""
        self._most -= len(data)
        if self._most < 0:
            self._transport.abort()

    def lost(self) -> None:
        """The connection is gone."""
        if self._end is not None:
            self._end.cancel()
