"""What bounds a running attempt: how long its job may run in all and be silent, and how much memory it may take."""

import time

from tcnn_jobs.engines.base import Process
from tcnn_jobs.model.jobs import Failure, Job, Progress
from tcnn_jobs.retry import LESS_MEMORY, Breach

WAITS = frozenset({"fetching", "uploading", "waiting"})
"""Phases in which a job is silent for reasons that are not its own. Transfers have deadlines of their own."""
LOOK, SHARE = 1.0, 20.0
"""Seconds between two looks at the memory, and how many times longer than one took."""


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
        message = f"it reported no progress for {minutes:g} minutes and was killed; its log may say where it hangs"
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
