"""Which of the exact ways to compute attention is taken.

`TCNN_ATTENTION=reference` computes every map as the formula is written, padding and all; `auto`, the default, takes the
fastest way that gives the same result for the shape at hand. Looking at attention, and verifying a conversion, never
depends on it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from tcnn.errors import RequestError

Way = Literal["auto", "reference"]
WAYS: tuple[Way, ...] = ("auto", "reference")


def _from_environment() -> Way:
    wanted = os.environ.get("TCNN_ATTENTION", "auto")
    for known in WAYS:
        if wanted == known:
            return known
    raise RequestError(f"TCNN_ATTENTION: expected one of {', '.join(WAYS)}, found {wanted!r}")


_way: ContextVar[Way | None] = ContextVar("way", default=None)


def way() -> Way:
    """The way in force here; raises `RequestError` for a `TCNN_ATTENTION` that there is not."""
    return _way.get() or _from_environment()


@contextmanager
def taking(wanted: Way) -> Iterator[None]:
    """Force a way for a while, in this thread or task."""
    token = _way.set(wanted)
    try:
        yield
    finally:
        _way.reset(token)
