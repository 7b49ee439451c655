"""How far a run is, for a bar on a terminal, a job's status, or a log."""

import time
from collections.abc import Callable

from pydantic import BaseModel


class Progress(BaseModel):
    """Where a run stands. Rates and times are of this process's clock; percent counts steps."""

    phase: str
    epoch: int
    """The running epoch, from 1."""
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
    """Of the last validation, 0 to 1."""


Report = Callable[[Progress], None]


class Pace:
    """Seconds a step and seconds a validation, averaged so that the last minutes count most."""

    def __init__(self) -> None:
        self.step: float | None = None
        self.validation: float | None = None
        self._mark = time.monotonic()

    def start(self) -> None:
        """Begin to time."""
        self._mark = time.monotonic()

    def lap(self) -> float:
        """Seconds since the last call, counted as one step."""
        now = time.monotonic()
        seconds, self._mark = now - self._mark, now
        self.step = seconds if self.step is None else 0.95 * self.step + 0.05 * seconds
        return seconds

    def validated(self) -> float:
        """Seconds since the last call, counted as one validation."""
        now = time.monotonic()
        self.validation, self._mark = now - self._mark, now
        return self.validation

    def remaining(self, steps: int, validations: int) -> float | None:
        """Seconds that so many steps and validations will take, or None before the first."""
        if self.step is None:
            return None
        return steps * self.step + validations * (self.validation or 0.0)
