"""Select the backend that computes the layer. All are exact: the same output and the same gradients, to rounding.

reference   every map as the formula is written, with the padding
dense       all maps at once, without the padding, differentiated by autograd (`dense.py`)
fused       no map is saved: on a GPU one kernel over the keys where available, elsewhere chunks of bounded memory
            whose maps are recomputed in the backward pass (`chunked.py`)
auto        the default: a convolution while the layer is in the hard limit (`convolution.py`); else on a GPU, in 16
            bits, whole maps by few kernels (`materialised.py`), elsewhere chunks that save for the backward pass what
            the memory allows

The environment variable `TCNN_ATTENTION` forces one, `use_backend` does for a while. Inspecting attention, and
verifying that it equals a convolution, depend on neither. Windowed or pooled content attention has one backend besides
the reference (`scoped.py`).
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch

from tcnn.errors import RequestError

Backend = Literal["auto", "reference", "dense", "fused"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "dense", "fused")

_forced: ContextVar[Backend | None] = ContextVar("backend", default=None)
_forcing: list[Backend] = []
"""What contexts of any thread force, the last one last: what a compiler reads, which before torch 2.12 could not read a
context variable."""
_changing = threading.Lock()


def backend() -> Backend:
    """The selected backend; raises `RequestError` if `TCNN_ATTENTION` names an unknown one."""
    if not _forcing:
        return _from_environment()
    return (_forcing[-1] if torch.compiler.is_compiling() else _forced.get()) or _from_environment()


@contextmanager
def use_backend(wanted: Backend) -> Iterator[None]:
    """Context that forces a backend in this thread or task."""
    token = _forced.set(wanted)
    with _changing:
        _forcing.append(wanted)
    try:
        yield
    finally:
        with _changing:
            _forcing.remove(wanted)
        _forced.reset(token)


def _from_environment() -> Backend:
    wanted = os.environ.get("TCNN_ATTENTION", "auto")
    for known in BACKENDS:
        if wanted == known:
            return known
    raise RequestError(f"TCNN_ATTENTION: expected one of {', '.join(BACKENDS)}, found {wanted!r}")
