"""What bounds a running attempt: how long its job may run in all, and for how long it may say nothing new."""

from tcnn_jobs.model import Failure, Job, Progress
from tcnn_jobs.retry import Breach

WAITS = frozenset({"fetching", "uploading", "waiting"})
"""Phases in which a job is silent for reasons that are not its own. Transfers have deadlines of their own."""


class Limits:
    """Of one attempt. Times are any clock's seconds, as long as it is one that nobody can set."""

    def __init__(self, job: Job, now: float) -> None:
        self._job = job
        self._end = None if job.max_runtime is None else now + job.max_runtime - job.ran
        self._heard, self._waits = now, False

    def heard(self, now: float, progress: Progress | None = None) -> None:
        """The job has said something."""
        self._heard = now
        if progress is not None:
            self._waits = progress.phase in WAITS

    def overrun(self, now: float) -> Breach | None:
        """That it has run for as long as it may, if it has: it is to be stopped, and not tried again."""
        if self._end is None or now < self._end:
            return None
        most = f"{self._job.max_runtime:g} s"
        message = f"it has run for {most}, its max_runtime, and was stopped; submit it with more, or resume it"
        return Breach(Failure(code="timed_out", message=message))

    def stuck(self, now: float) -> Breach | None:
        """That nothing was heard of it for too long, if so: it is to be killed, and may be tried again."""
        minutes = self._job.stall_minutes
        if minutes is None or self._waits or now - self._heard < 60 * minutes:
            return None
        message = f"it reported no progress for {minutes:g} minutes and was killed; its log may say where it hangs"
        return Breach(Failure(code="no_progress", message=message), again=True)
