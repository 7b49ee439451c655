"""Which backend computes the layer. All are exact: the same output and the same gradients, to rounding.

reference   every map as the formula is written, padding and all
dense       all maps at once, padding left out, every step differentiated by PyTorch (`dense.py`)
fused       no map is kept: on a GPU one kernel over the keys where there is one, elsewhere parts of bounded memory
            whose maps are computed again for the gradients (`parts.py`)
auto        the default: a convolution while the layer still is one (`convolution.py`); else parts that keep for the
            gradients what the memory allows

`TCNN_ATTENTION` forces one, `use_backend` does for a while. Looking at attention, and verifying that it equals a
convolution, depend on neither. Content in windows or pools has one backend beside the reference (`scoped.py`).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from tcnn.errors import RequestError

Backend = Literal["auto", "reference", "dense", "fused"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "dense", "fused")

_forced: ContextVar[Backend | None] = ContextVar("backend", default=None)


def backend() -> Backend:
    """The backend in force here; raises `RequestError` for a `TCNN_ATTENTION` that there is not."""
    return _forced.get() or _from_environment()


@contextmanager
def use_backend(wanted: Backend) -> Iterator[None]:
    """Force a backend for a while, in this thread or task."""
    token = _forced.set(wanted)
    try:
        yield
    finally:
        _forced.reset(token)


def _from_environment() -> Backend:
    wanted = os.environ.get("TCNN_ATTENTION", "auto")
    for known in BACKENDS:
        if wanted == known:
            return known
    raise RequestError(f"TCNN_ATTENTION: expected one of {', '.join(BACKENDS)}, found {wanted!r}")
