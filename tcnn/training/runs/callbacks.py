"""Callbacks of a run: who receives its progress (steps, loss, estimated time) and notes, and what stops it.

A stop may be asked for by the caller, or by SIGTERM, SIGHUP or Ctrl-C: the signal sets a flag, and the loop ends after
the current step.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from pydantic import BaseModel

from tcnn import signals
from tcnn.errors import Stopped
from tcnn.starting import end_at_once

BASELINE_PHASE = "baseline "
"""What the phases of a baseline's training begin with."""
Say = Callable[[str], None]
StopCheck = Callable[[], bool]
SIGNALS = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))
"""SIGHUP is what a process gets when its terminal goes, as when an ssh connection drops."""
SAME_PRESS = 0.2
"""Seconds within which a Ctrl-C that comes twice was pressed once, and passed on by a program in between."""


class Progress(BaseModel):
    """Progress of a run. Rates and times are measured in this process; percent counts steps."""

    phase: str
    epoch: int
    """Current epoch, from 1."""
    epochs: int
    step: int
    steps: int
    percent: float
    eta_seconds: float | None = None
    loss: float | None = None
    lr: float | None = None
    temperature: float | None = None
    images_per_second: float | None = None
    top1: float | None = None
    """Top-1 accuracy of the last validation, 0 to 1."""

    @property
    def of_baseline(self) -> bool:
        """Whether it is the CNN beside the T-CNN that is trained."""
        return self.phase.startswith(BASELINE_PHASE)


Report = Callable[[Progress], None]


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls."""

    report: Report = lambda progress: None
    """With the progress after every step."""
    say: Say = lambda message: None
    """With notes for the user, one line each."""
    stop: StopCheck = lambda: False
    """After every step; if it returns true, the run saves its state and ends."""


class StepTimer:
    """Timer of steps and validations: seconds per step (moving average) and per validation, and the time remaining."""

    def __init__(self) -> None:
        self.step: float | None = None
        self.validation: float | None = None
        self._mark = time.monotonic()

    def start(self) -> None:
        """Start the timer."""
        self._mark = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call, counted as one step."""
        now = time.monotonic()
        seconds, self._mark = now - self._mark, now
        self.step = seconds if self.step is None else 0.95 * self.step + 0.05 * seconds
        return seconds

    def lap_validation(self) -> float:
        """Seconds since the last call, counted as one validation."""
        now = time.monotonic()
        self.validation, self._mark = now - self._mark, now
        return self.validation

    def remaining(self, steps: int, validations: int) -> float | None:
        """Estimated seconds for so many steps and validations, or None before the first step."""
        if self.step is None:
            return None
        return steps * self.step + validations * (self.validation or 0.0)


class StopRequest:
    """Whether a stop was requested, by a signal or by the `asked` function; true if so."""

    def __init__(self, asked: StopCheck) -> None:
        self.number: int | None = None
        self._asked = asked

    def __bool__(self) -> bool:
        return self.number is not None or bool(self._asked())

    def stopped(self, message: str) -> Stopped:
        """The `Stopped` error to raise once everything is saved."""
        error = Stopped(message)
        if self.number == signal.SIGINT:
            error.exit_code = 130
        return error


@contextmanager
def stop_on_signal(asked: StopCheck = lambda: False) -> Iterator[StopRequest]:
    """Context that catches `SIGNALS`; a second Ctrl-C ends the process at once. Only works in the main thread.

    Other signals come twice without anybody's impatience: `timeout` and schedulers send SIGTERM to a process and to its
    group, and a process that trains gets it from torchrun, too; who cannot wait sends SIGKILL. A SIGHUP that is ignored
    stays ignored: `nohup` asks for that.
    """
    request = StopRequest(asked)
    pressed = 0.0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        before, pressed = pressed, time.monotonic() if number == signal.SIGINT else pressed
        if before and pressed - before > SAME_PRESS:
            end_at_once(number)
        request.number = request.number or number

    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    caught = [number for number in SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in caught}
    request.number = signals.take_over()
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
