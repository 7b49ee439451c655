"""Signals to a command: the first one unwinds it, so that nothing is left half-written; the second ends it at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

received: list[int] = []
"""Signals received since the command began."""


@contextmanager
def unwinding(leaving: bool) -> Iterator[None]:
    """Have SIGTERM, SIGHUP and Ctrl-C unwind what runs within; signals that are ignored stay so.

    With `leaving` the process ends afterwards: what Python does on its way out is then not to be unwound by Ctrl-C.
    """
    received.clear()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup has it ignored
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # in the background it is ignored, and stays so
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _once_more
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is signal.default_int_handler and leaving else handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    received.append(number)
    raise SystemExit(128 + number)  # unwinds, so that temporary files are removed


def _interrupt(number: int, frame: FrameType | None) -> None:
    if received:  # asked once more, while what the first one interrupted is put in order: now
        os._exit(128 + number)
    received.append(number)
    raise KeyboardInterrupt


def _once_more(dropped: Any) -> None:
    """Send a signal again that came within a callback, as that of a module's lock: what is raised there is lost."""
    if received and isinstance(dropped.exc_value, KeyboardInterrupt | SystemExit):
        again = threading.Timer(0.01, os.kill, (os.getpid(), received.pop()))  # not here: this is a callback, too
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(dropped)
