"""Whether this host can do jobs: its home, and the store of results, take what a job needs.

An attempt that fails before its process has begun may have failed for the job's sake, or for this host's: its disk is
gone or full, its clock is wrong, or its key too weak, so that the store refuses all that it asks. So both are looked at
then. If it is the host, the job goes back to the queue at no charge, and this host takes no other until a look finds
nothing wrong: it would have gone through the whole queue before another host had ended one job. If it is not, the
attempt counts as any other, so that no job comes back for ever.

While all goes well nothing is looked at: a look writes to the store, and every worker would.
"""

import threading
from collections.abc import Callable

import structlog

from tcnn.errors import one_line
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home

log = structlog.stdlib.get_logger("tcnn.worker")

LONGEST = 30.0
"""Seconds between two looks at most; the first is soon, and the pause doubles."""


class Unfit(Exception):
    """An attempt did not begin, because this host can do no jobs; the message says why not."""


def trouble(home: Home, artifacts: Artifacts | None = None) -> str:
    """What is wrong with this host's home, and with the store if it is asked for; empty if nothing is.

    A store that does not answer is waited for, a minute at most.
    """
    try:
        home.check()
        if artifacts is not None:
            artifacts.check()
    except Exception as error:  # whatever it is, it is no job's fault
        return one_line(error)
    return ""


class Fitness:
    """What a worker knows of its host. `unfit` is called when an attempt has shown that the host can do no jobs; then
    it is looked at in a thread, since a look may wait, until it can.

    Args:
        look: as `trouble`.
        pause: seconds before the first look.
        back: called in that thread when the host can do jobs again.
    """

    def __init__(self, look: Callable[[], str], pause: float, back: Callable[[], None]) -> None:
        self._look, self._pause, self._back = look, pause, back
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why this host can do no jobs; empty if it can."""
        return self._problem

    def unfit(self, problem: str) -> None:
        """This host can do no jobs, for this reason."""
        if self._problem:
            return  # it is being looked at
        self._problem = problem
        log.error("this host can do no jobs, and takes none until it can", problem=problem)
        threading.Thread(target=self._recover, name="fitness", daemon=True).start()

    def _recover(self) -> None:
        pause, waiting = self._pause, threading.Event()
        while True:
            waiting.wait(pause)
            if not (problem := self._look()):
                break
            self._problem, pause = problem, min(2 * pause, LONGEST)
        self._problem = ""
        log.info("this host can do jobs again")
        self._back()
