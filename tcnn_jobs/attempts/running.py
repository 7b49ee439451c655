"""A running attempt, as its worker holds it, and its limits: run time, silence, memory, time to save and leave."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from tcnn.formatting import plural
from tcnn_jobs.attempt import AttemptDirectory, Listener
from tcnn_jobs.engines import memory
from tcnn_jobs.engines.base import Process
from tcnn_jobs.model.jobs import Beat, Claim, Failure, Job, NewEvent, Progress
from tcnn_jobs.retry import LESS_MEMORY, Breach, Decision

WAITS = frozenset({"fetching", "uploading", "waiting"})
"""Phases in which a job is silent for reasons that are not its own. Transfers have deadlines of their own."""
LOOK, SHARE = 1.0, 20.0
"""Seconds between two looks at the memory, and how many times longer than one took."""
LONGEST = 120.0
"""Seconds beyond its settings that a worker waits at most for a step to end."""


class Limits:
    """Limits of one attempt: run time, silence, memory. Times are seconds of a monotonic clock.

    Args:
        memory: bytes that its processes may take for each slot of the job; None is any number.
    """

    def __init__(self, job: Job, now: float, memory: float | None = None) -> None:
        self._job = job
        self._end = None if job.max_runtime is None else now + job.max_runtime - job.ran
        self._most = None if memory is None else int(memory * job.slots)
        self._heard, self._waits, self._look = now, False, now

    def heard(self, now: float, progress: Progress | None = None) -> None:
        """Note a sign of life of the job."""
        self._heard = now
        if progress is not None:
            self._waits = progress.phase in WAITS

    def breach(self, now: float, process: Process) -> Breach | None:
        """The limit that the attempt exceeds, or None."""
        return self.overrun(now) or self.stuck(now) or self.greedy(now, process)

    def overrun(self, now: float) -> Breach | None:
        """Whether it has run for as long as it may: it is stopped, and not tried again."""
        if self._end is None or now < self._end:
            return None
        most = f"{self._job.max_runtime:g} s"
        message = f"it has run for {most}, its max_runtime, and was stopped; submit it with more, or resume it"
        return Breach(Failure(code="timed_out", message=message))

    def stuck(self, now: float) -> Breach | None:
        """Whether nothing was heard of it for too long: it is killed, and may be tried again."""
        minutes = self._job.stall_minutes
        if minutes is None or self._waits or now - self._heard < 60 * minutes:
            return None
        silent = f"{minutes:g} {plural(minutes, 'minute')}"
        message = f"it reported no progress for {silent} and was killed; its log may say where it hangs"
        return Breach(Failure(code="no_progress", message=message), again=True, kill=True)

    def greedy(self, now: float, process: Process) -> Breach | None:
        """Whether it takes more memory than it may: it is killed before the system has to choose whom to kill."""
        if self._most is None or now < self._look:
            return None
        began = time.monotonic()
        taken = process.memory(self._most)
        self._look = now + max(LOOK, SHARE * (time.monotonic() - began))
        if taken <= self._most:
            return None
        message = (
            f"killed for memory: it took {taken / 1e9:.2f} GB of this host's, and may take {self._most / 1e9:g} "
            f"(TCNN_JOB_MEMORY_GB); {LESS_MEMORY}"
        )
        return Breach(Failure(code="out_of_memory", message=message), again=True, kill=True)


class StepTime:
    """How long a training step of one attempt takes, by what is heard of it: it can save only between two steps.

    Times are seconds of any clock.
    """

    def __init__(self) -> None:
        self._at: tuple[int, int] | None = None
        self._since = 0.0
        self._seconds = 0.0

    def heard(self, progress: Progress, now: float) -> None:
        """Note newer progress."""
        if progress.phase != "training" or progress.epoch is None or progress.step is None:
            self._at, self._since = None, 0.0
            return
        at = progress.epoch, progress.step
        if self._at == at:
            return
        if self._at is not None and self._at[0] == at[0] and at[1] > self._at[1]:
            self._seconds = (now - self._since) / (at[1] - self._at[1])
        self._at, self._since = at, now

    def longest(self, now: float) -> float:
        """Seconds that a step may take: as long as the last one, or as the one that has not ended yet already does."""
        running = now - self._since if self._at is not None else 0.0
        return max(self._seconds, running)


def grace(least: float, step: float) -> float:
    """Seconds that a process gets to save and leave, if it may be at the beginning of a step of so many seconds.

    Two of them, as no two are alike; `LONGEST` at most beyond the `least`, which is for saving alone. Pure.
    """
    return least + min(LONGEST, 2 * step)


class Why(StrEnum):
    """Reason for which a process was asked to end."""

    CANCELLED = "cancelled"
    DRAINING = "draining"
    LOST = "lost"
    BREACH = "breach"


@dataclass
class Attempt:
    """A job that a worker runs, or whose process has ended and the store has not accepted that yet.

    With progress and events that the store has not received yet.
    """

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
    broken: Decision | None = None
    """Why its worker could not go on with it."""
    since: float = field(default_factory=time.monotonic)
    """When its process started, by the monotonic clock."""
    told: bool = False
    """Whether the store has heard that it did."""

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
        ran = time.monotonic() - self.since
        return Beat(claim=self.claim, ran=ran, progress=self.progress, events=tuple(self.events))
