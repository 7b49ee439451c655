"""Refusals and failures of a server, as a client raises them, and for how long it tries again before it does."""

import time
from collections.abc import Callable
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from tcnn.errors import EnvironmentFailure, RequestError

BUSY = (429, 502, 503, 504)
"""What the same request may be answered otherwise in a moment."""

PROBLEM = "application/problem+json"
"""The media type of all of a tcnn server's refusals (RFC 9457)."""


class RefusedError(RequestError):
    """The server said no. `status` is HTTP's, `problem` the RFC 9457 body."""

    def __init__(self, status: int, problem: dict[str, Any], retry_after: float | None = None) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or f"the server answered with {status}")
        self.status: int = status
        self.problem: dict[str, Any] = problem
        self.retry_after: float | None = retry_after
        self.again: bool = status in BUSY


class ServerFailure(EnvironmentFailure):
    """The server cannot be reached, or fails; `again` says whether that may be over in a moment."""

    def __init__(self, message: str, *, again: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.again: bool = again
        self.retry_after: float | None = retry_after


def patiently(patience: Callable[[], float]) -> Retrying:
    """Calls a function again for so many seconds after a failure that may be over in a moment: after pauses that double
    from a quarter of a second to eight, or as long as the server says. Then the last failure is raised as it is.
    """

    def out_of_patience(tried: RetryCallState) -> bool:
        return stop_before_delay(patience())(tried)

    return Retrying(
        retry=retry_if_exception(lambda error: getattr(error, "again", False)),
        wait=_pause,
        stop=out_of_patience,
        sleep=time.sleep,
        reraise=True,
    )


_growing = wait_exponential(multiplier=0.25, max=8.0)


def _pause(tried: RetryCallState) -> float:
    failure = tried.outcome.exception() if tried.outcome is not None else None
    given: float | None = getattr(failure, "retry_after", None)
    return _growing(tried) if given is None else given


def refusal(answer: httpx.Response) -> RefusedError | ServerFailure:
    """The exception that an answer stands for which is no good one."""
    given = answer.headers.get("retry-after", "")
    retry_after = float(given) if given.isdigit() else None
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    if answer.status_code >= 500:
        detail = problem.get("detail") or f"status {answer.status_code}"
        again = answer.status_code in BUSY
        return ServerFailure(f"the server failed: {detail}", again=again, retry_after=retry_after)
    place = answer.url.copy_with(query=None)
    if answer.has_redirect_location:
        problem["detail"] = f"{place}: leads to {answer.headers['location']}; give the URL of the server there"
    elif answer.headers.get("content-type", "").partition(";")[0] != PROBLEM:
        problem["detail"] = f"{place}: answers with {answer.status_code}, not as a tcnn server does; is the URL right?"
    elif answer.status_code == httpx.codes.UNAUTHORIZED:
        problem["detail"] = f"{problem.get('detail', 'a key is needed')}; give it with --key or TCNN_API_KEY"
    return RefusedError(answer.status_code, problem, retry_after)
