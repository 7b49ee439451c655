"""Stop training on SIGTERM or Ctrl-C: the signal sets a flag, and the loop ends after the current step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tcnn.errors import Stopped

StopCheck = Callable[[], bool]
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether a stop was requested, by a signal or by the `asked` function; true if so."""

    def __init__(self, asked: StopCheck) -> None:
        self.number: int | None = None
        self._asked = asked

    def __bool__(self) -> bool:
        return self.number is not None or self._asked()

    def stopped(self, message: str) -> Stopped:
        """The `Stopped` error to raise once everything is saved."""
        error = Stopped(message)
        if self.number == signal.SIGINT:
            error.exit_code = 130
        return error


@contextmanager
def stop_on_signal(asked: StopCheck = lambda: False) -> Iterator[StopRequest]:
    """Context that catches SIGTERM and Ctrl-C; a second one ends the process at once. Only works in the main thread."""
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
