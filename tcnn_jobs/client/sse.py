"""A parser of Server-Sent Events (HTML Living Standard, §9.2.6); `retry` is left to whoever reconnects."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Message(NamedTuple):
    """One message. `id` is the last one that was seen, also before this message."""

    event: str
    data: str
    id: str


def messages(chunks: Iterable[bytes], seen: str = "") -> Iterator[Message]:
    """The messages of a stream; one that is cut off is not given out.

    Lines end where the standard says, and nowhere else: U+2028 within JSON is not the end of one.
    """
    event, last = "", seen
    data: list[str] = []
    for line in _lines(chunks):
        if not line:
            if data:
                yield Message(event or "message", "\n".join(data), last)
            event, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id" and "\0" not in value:
            last = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
