"""Which of the exact ways to compute the layer is taken.

`TCNN_ATTENTION` forces one; all of them give the same output and the same gradients, to rounding:

reference   every map as the formula is written, padding and all
dense       all maps at once, padding left out (`dense.py`)
fused       the same in parts that are forgotten and computed again backwards: memory linear in pixels (`dense.py`)
auto        the fastest of the last two for the shape at hand; while the layer is still a convolution, a convolution
            (`hard.py`). The default.

Looking at attention, and verifying a conversion, never depend on it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from tcnn.errors import RequestError

Way = Literal["auto", "reference", "dense", "fused"]
WAYS: tuple[Way, ...] = ("auto", "reference", "dense", "fused")


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
