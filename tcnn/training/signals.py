"""Stopping when asked: a signal sets a flag, and the loop leaves at the next whole step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tcnn.errors import Stopped

ASKED = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Which signal has asked the run to stop, if any."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.number is not None

    def stopped(self, message: str) -> Stopped:
        """The error to raise once everything is saved."""
        error = Stopped(message)
        if self.number == signal.SIGINT:
            error.exit_code = 130
        return error


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Catch SIGTERM and Ctrl-C; a second one ends the process at once. Only the main thread can catch signals."""
    request = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        if request:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.Signals(number))
        request.number = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, ask) for number in ASKED}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
