"""Process settings: load libraries and leave quickly, end with the parent, keep freed memory, low priority."""

import atexit
import contextlib
import ctypes
import gc
import os
import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tcnn.signals import nothing_begun

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""Number of the system call; the C library has no name for it."""
_IDLE = 3
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt, from malloc.h."""
MOST_WORKERS = 1024
"""Processes that may be asked to load images: a slip of the keyboard is not to fill the machine."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import torch and timm without garbage collection: looking for what is not there took a third of the time.

    For a program of its own: whatever exists at the end of the block is left out of later collections, which would take
    long, and stays shared with processes that are forked. Does nothing where torch is loaded already, or where the
    collector is off. On a terminal a line on stderr says meanwhile what is waited for. A signal to a command ends it.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    told = sys.stderr is not None and sys.stderr.isatty()
    if told:  # the imports take seconds, more from a cold disk
        print("loading PyTorch …", end="", file=sys.stderr, flush=True)  # noqa: T201
    try:
        with nothing_begun():
            yield
    finally:
        if told:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # noqa: T201
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries count what was not cleared when the process ends, and complain
        gc.enable()


class QuickExit:
    """Ends a program without clearing its memory object by object: with torch and timm loaded that takes a second.

    Threads are waited for, exit handlers run and output is flushed, as ever; only then the kernel takes the memory at
    once. Make it first thing, so that its own handler runs last, and call it with the exit code. A program that ends
    otherwise, by an exception or because its output cannot be written, ends as Python has it.
    """

    def __init__(self) -> None:
        self._code: int | None = None
        atexit.register(self._leave)

    def __call__(self, code: int) -> NoReturn:
        self._code = code
        sys.exit(code)

    def _leave(self) -> None:
        if self._code is None:
            return
        with contextlib.suppress(OSError, ValueError):  # Python will find the same, and say it
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(self._code)


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """End this process when its parent thread ends, for any reason: on Linux the kernel sends it a signal.

    The request is not inherited: every process must ask for itself, first thing. `parent` is the process that should
    still be there; if it died before we could ask, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def keep_to_oneself() -> None:
    """On Linux other processes of the same user can no longer read this one's memory and environment in /proc, nor
    trace it; root can. It writes no core file either. A program that it starts is as open as any.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, for a process that needs as much again at its next step.

    glibc gives the end of its heap back to the system as soon as 64 MiB of it are free, and pages that come anew cost
    a quarter of a millisecond a MiB: on two CPU cores a third of a small network's training step. Blocks of more than
    32 MiB, the most that glibc can be asked to keep, are given back as before. Does nothing with another C library, nor
    where the environment says how (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES).
    """
    if sys.platform != "linux" or {"MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"} & set(os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for what, value in ((_MMAP_THRESHOLD, 32 * 2**20), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20)):
            mallopt(what, value)


def let_others_go_first() -> None:
    """Set the lowest priority for processor and disk: requests come before training steps, commits before checkpoints.

    Where Linux groups processes by session, niceness counts within a group, so the group is told, too.
    """
    os.nice(10)
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE << 13)  # this process; a kernel that knows no idle class says no
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("10", encoding="ascii")
