"""Progress of a run (steps, loss, estimated time) and the callbacks that receive it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import BaseModel

BASELINE_PHASE = "baseline "
"""What the phases of a baseline's training begin with."""


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
Say = Callable[[str], None]


@dataclass(frozen=True)
class Callbacks:
    """Functions that a run calls."""

    report: Report = lambda progress: None
    """With the progress after every step."""
    say: Say = lambda message: None
    """With notes for the user, one line each."""
    stop: Callable[[], bool] = lambda: False
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
