"""An attempt that a worker holds: its process runs, or has ended and the store has not accepted that yet."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from tcnn_jobs.attempt import AttemptDirectory, Listener
from tcnn_jobs.attempts.limits import Limits, StepTime
from tcnn_jobs.engines import memory
from tcnn_jobs.engines.base import Process
from tcnn_jobs.model.jobs import Beat, Claim, Job, NewEvent, Progress
from tcnn_jobs.retry import Breach, Fail


class Why(StrEnum):
    """Reason for which a process was asked to end."""

    CANCELLED = "cancelled"
    DRAINING = "draining"
    LOST = "lost"
    BREACH = "breach"


@dataclass
class Attempt:
    """A job that a worker runs, with progress and events that the store has not received yet."""

    job: Job
    claim: Claim
    slots: list[str | None]
    process: Process
    directory: AttemptDirectory
    listener: Listener
    limits: Limits
    progress: Progress | None = None
    steps: StepTime = field(default_factory=StepTime)
    events: list[NewEvent] = field(default_factory=list)
    why: Why | None = None
    kill_at: float | None = None
    exit_code: int | None = None
    breach: Breach | None = None
    """The limit that it was ended for."""
    kills: int = field(default_factory=memory.kills)
    """Processes that the system had ended for memory before it began."""
    broken: Fail | None = None
    """Why its worker could not go on with it."""

    def listen(self) -> None:
        """Read the progress and events that the process has written since the last call."""
        heard, happened, now = self.listener.progress(), self.listener.events(), time.monotonic()
        if heard is not None:
            self.progress = heard
            self.steps.heard(heard, now)
        if heard is not None or happened:
            self.limits.heard(now, heard)
        self.events += happened

    @property
    def starved(self) -> bool:
        """Whether the system has ended processes for memory since it began; it may have been one of them."""
        return memory.kills() > self.kills

    @property
    def beat(self) -> Beat:
        """The heartbeat of this job: progress and events that the store has not received yet."""
        return Beat(claim=self.claim, progress=self.progress, events=tuple(self.events))
