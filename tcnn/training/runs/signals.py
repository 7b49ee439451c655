"""Stopping when asked: a signal sets a flag, and the loop leaves at the next whole step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tcnn.errors import Stopped

Asked = Callable[[], bool]
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Which signal has asked the run to stop, if any; or `asked` says that somebody else has."""

    def __init__(self, asked: Asked) -> None:
        self.number: int | None = None
        self._asked = asked

    def __bool__(self) -> bool:
        return self.number is not None or self._asked()

    def stopped(self, message: str) -> Stopped:
        """The error to raise once everything is saved."""
        error = Stopped(message)
        if self.number == signal.SIGINT:
            error.exit_code = 130
        return error


@contextmanager
def stop_on_signal(asked: Asked = lambda: False) -> Iterator[StopRequest]:
    """Catch SIGTERM and Ctrl-C; a second one ends the process at once. Only the main thread can catch signals."""
    request = StopRequest(asked)

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.Signals(number))
        request.number = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, ask) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
