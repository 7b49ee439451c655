"""The end of a confined process's standard error: why it failed, for the log of the service that started it."""

import asyncio

from tcnn.errors import shorten

KEPT = 4096
"""Bytes of the end that are kept, however much a process writes."""


async def last_line(stream: asyncio.StreamReader) -> str:
    """The last line of a stream that is not empty, on which an exception's traceback ends; "" where there is none.

    Reads to the stream's end, so that a process never waits for room to write.
    """
    end = b""
    while part := await stream.read(KEPT):
        end = (end + part)[-KEPT:]
    lines = end.decode("utf-8", "replace").strip().splitlines()
    return shorten(lines[-1]) if lines else ""
