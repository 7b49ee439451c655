"""Retry policy: what becomes of a job whose process has ended. Pure."""

import re
import signal
from typing import NamedTuple

from tcnn.errors import one_line
from tcnn_jobs.attempt import Outcome
from tcnn_jobs.model.jobs import Failure, Result

LONGEST_DELAY = 600.0
MOST_INTERNAL = 3
"""Attempts of a job that its workers cannot handle."""
STOPPED = 75
"""The exit code of a process that was asked to stop and has saved what it had."""


LESS_MEMORY = "ask for smaller batches or images, or fewer loader processes (`workers`), and resume or submit it again"
"""What the owner of a job that needs too much can do."""


class Finish(NamedTuple):
    """Publish the result."""

    result: Result


class Fail(NamedTuple):
    """The attempt failed; with a number of seconds, after which it is tried again."""

    failure: Failure
    retry_after: float | None = None


class Breach(NamedTuple):
    """Why its worker ended an attempt that would have gone on, whether a second try may help, and whether it was given
    no time to save what it had.
    """

    failure: Failure
    again: bool = False
    kill: bool = False


class HandBack(NamedTuple):
    """Return the job to the queue, without counting the attempt."""

    to: str | None = None
    """The worker that has room for it; None if this one leaves."""


class Cancel(NamedTuple):
    """Cancel the job, as its owner asked."""


Decision = Finish | Fail | HandBack | Cancel


def decide(
    exit_code: int,
    outcome: Outcome | None,
    *,
    cancelling: bool = False,
    draining: bool = False,
    breach: Breach | None = None,
    starved: bool = False,
    attempt: int,
    max_attempts: int,
    delay: float,
    last_words: str = "",
) -> Decision:
    """Decide what becomes of a job whose process has ended.

    Args:
        exit_code: of the process, −N if signal N ended it. outcome: what it wrote last.
        cancelling, draining: why it was asked to stop, if it was. breach: the limit that it was ended for.
        starved: whether the system has ended processes for memory while it ran.
        attempt: which one this was, from 1. delay: seconds before the second attempt.
        last_words: of its log, for a process that could say nothing else.
    """
    if exit_code == 0 and outcome is not None and outcome.result is not None:
        return Finish(outcome.result)
    if cancelling:
        return Cancel()
    if breach is not None:
        failure, again = breach.failure, breach.again
    elif outcome is not None and outcome.error is not None:
        failure, again = outcome.error, outcome.retry
    elif draining:
        return HandBack()
    else:
        # A stop is free of charge only when this worker asked for it: whoever else can signal the process could have
        # the job begin for ever.
        failure, again = _crash(exit_code, last_words, starved), True
    if again and draining:
        return HandBack()
    if again and attempt < max_attempts:
        return Fail(failure, backoff(attempt, delay))
    return Fail(failure)


def internal(error: BaseException, attempt: int, max_attempts: int, delay: float) -> Fail:
    """What to tell the store of an attempt that its worker, not its process, failed with; as in `decide`.

    Only a few tries, whatever was asked for: the next worker will most likely fail alike.
    """
    message = f"the worker could not go on with it: unexpected {type(error).__name__}: {one_line(error)}"
    again = attempt < min(max_attempts, MOST_INTERNAL)
    return Fail(Failure(code="internal", message=message), backoff(attempt, delay) if again else None)


def backoff(attempt: int, delay: float) -> float:
    """Seconds after the given attempt, from 1: doubled every time, ten minutes at most."""
    return min(LONGEST_DELAY, delay * 2.0 ** min(attempt - 1, 30))


def error_code(error: BaseException) -> str:
    """Error code for clients: `UnknownModelError` → `unknown_model`."""
    name = type(error).__name__.removesuffix("Error").removesuffix("Failure")
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() or "error"


def _crash(exit_code: int, last_words: str, starved: bool) -> Failure:
    if starved and exit_code == -signal.SIGKILL:
        message = f"killed for memory: this host had none left, and the system ended the job's process; {LESS_MEMORY}"
        return Failure(code="out_of_memory", message=message)
    if exit_code == STOPPED:
        ended = f"left with exit code {STOPPED}, asked to stop by somebody other than its worker"
    elif exit_code < 0:
        try:
            ended = f"was ended by {signal.Signals(-exit_code).name}"
        except ValueError:
            ended = f"was ended by signal {-exit_code}"
        if exit_code == -signal.SIGKILL:
            ended += ", as the system does when memory runs out"
    else:
        ended = f"ended with exit code {exit_code}"
    words = f"; its last words: {last_words}" if last_words else ""
    return Failure(code="crashed", message=f"the job's process {ended}{words}; its log says more")
