"""Signal handling of a command: SIGINT, SIGTERM and SIGHUP raise an exception that unwinds the stack.

The first signal unwinds what runs, so that nothing is left half-written; a second one ends the process at once, and
what is half-written is removed all the same. What is raised may get lost in a library; the command that goes on
finishes no output then, and ends as one that was interrupted, whatever it has come to. While libraries are loaded
nothing has been begun, and the first one ends it at once: an exception raised in an import may pass through C++, which
aborts the process, or through a library that takes it for a module that is not installed.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tcnn.starting import end_at_once

SOON, LATER = 0.02, 2.0
"""Seconds until it is tried again to unwind: what is imported may be done soon; what was raised may get lost."""
IMPORT = "<frozen importlib._bootstrap>"

received: list[int] = []
"""Signals received since the command began."""


class _State:
    """What the handlers know; signals come to the main thread alone."""

    process = os.getpid()
    loading = False
    raised = False
    taken_over = False
    imports = 0
    alarm: Any = None


@contextlib.contextmanager
def unwinding(leaving: bool) -> Iterator[None]:
    """Have SIGTERM, SIGHUP and Ctrl-C unwind what runs within; signals that are ignored stay so.

    With `leaving` the process ends afterwards, and a signal ends at once what Python does on its way out.
    """
    received.clear()
    _State.process, _State.imports = os.getpid(), _imports(sys._getframe())
    _State.raised = _State.taken_over = False
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _ask)}
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup has it ignored
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _ask)
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, end_at_once):  # ignored in the background
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _ask)
    hook, sys.unraisablehook = sys.unraisablehook, _dropped
    try:
        yield
    finally:
        _forget()
        last = _end_in_silence if received else end_at_once
        received.clear()
        sys.unraisablehook = hook
        for number, handler in before.items():
            usual = handler in (signal.SIG_DFL, signal.default_int_handler, end_at_once)
            signal.signal(number, last if usual and leaving else handler)


@contextlib.contextmanager
def nothing_begun() -> Iterator[None]:
    """Have a signal end the command at once: while libraries are loaded there is nothing to be unwound."""
    before, _State.loading = _State.loading, True
    try:
        yield
    finally:
        _State.loading = before


def take_over() -> int | None:
    """The signal received that has not ended the command, if there is one, for a handler that now takes its place."""
    _forget()
    _State.taken_over = bool(received)
    return received[0] if received else None


def pending() -> bool:
    """Whether a signal was received that nobody has taken over, so that the command is to end as interrupted."""
    return bool(received) and not _State.taken_over and os.getpid() == _State.process


def heed() -> None:
    """Unwind if that is pending, and what was raised has got lost; called before an output gets its name."""
    if pending() and threading.current_thread() is threading.main_thread():
        _unwind(sys._getframe())


def is_importing(frame: FrameType | None, but: int = 0) -> bool:
    """Whether a frame runs within the import of a module, where nothing must be raised; `but` so many imports."""
    return _imports(frame) > but


def _imports(frame: FrameType | None) -> int:
    found = 0
    while frame is not None:
        found += frame.f_code.co_filename == IMPORT
        frame = frame.f_back
    return found


def _ask(number: int, frame: FrameType | None) -> None:
    if os.getpid() != _State.process:  # a worker that has just been forked, and is to go with its parent
        os._exit(128 + number)
    if received:  # asked once more, while what the first one interrupted is put in order: now
        end_at_once(number, say=not _State.raised)
    received.append(number)
    _unwind(frame)


def _end_in_silence(number: int, frame: FrameType | None) -> None:
    end_at_once(number, say=False)


def _again(number: int, frame: FrameType | None) -> None:
    if received:
        _unwind(frame)


def _unwind(frame: FrameType | None) -> None:
    """Raise what unwinds: now, after an import, and again if it gets lost in the `except:` of a library."""
    number = received[0]
    if _State.loading:
        end_at_once(number)
    if is_importing(frame, _State.imports):
        return _remind(SOON)
    _remind(LATER)
    if _State.raised and sys.exc_info()[1] is not None:  # it is on its way, or what somebody has made of it
        return None
    _State.raised = True
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _dropped(lost: Any) -> None:
    """Raise again what was raised within a callback, as that of a module's lock: Python drops it there."""
    if received and isinstance(lost.exc_value, KeyboardInterrupt | SystemExit):
        _State.raised = False
        _remind(SOON)  # not here: this is a callback, too
    else:
        sys.__unraisablehook__(lost)


def _remind(seconds: float) -> None:
    """Have SIGALRM come in so many seconds: unlike a thread's timer it needs no lock, which may be held just now."""
    if hasattr(signal, "setitimer"):
        if _State.alarm is None:
            _State.alarm = signal.signal(signal.SIGALRM, _again)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _forget() -> None:
    """Have no SIGALRM come; the timer of a program that calls `main` is left alone where there was no signal."""
    if _State.alarm is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _State.alarm)
        _State.alarm = None
