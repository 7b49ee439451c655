"""Stop training on SIGTERM, SIGHUP or Ctrl-C: the signal sets a flag, and the loop ends after the current step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tcnn.errors import Stopped

StopCheck = Callable[[], bool]
SIGNALS = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
"""SIGHUP is what a process gets when its terminal goes, as when an ssh connection drops."""


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
    """Context that catches `SIGNALS`; a second one ends the process at once. Only works in the main thread.

    A SIGHUP that is ignored stays ignored: `nohup` asks for that.
    """
    request = StopRequest(asked)

    def ask(number: int, frame: FrameType | None) -> None:
        if request.number is not None:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(signal.Signals(number))
        request.number = number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    caught = [number for number in SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in caught}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
