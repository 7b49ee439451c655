"""Processes that must not outlive the one that started them."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """On Linux the kernel sends this process a signal when the thread that started it ends, SIGKILL or not.

    The request is not inherited: every process must ask for itself, first thing. `parent` is the process that should
    still be there; if it died before we could ask, this process ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
