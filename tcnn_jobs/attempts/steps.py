"""How long a training step of a job takes, by what is heard of it: a process can save only between two steps."""

from tcnn_jobs.model.jobs import Progress

LONGEST = 120.0
"""Seconds beyond its settings that a worker waits at most for a step to end."""


class StepTime:
    """Duration of the training steps of one attempt. Times are seconds of any clock."""

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
