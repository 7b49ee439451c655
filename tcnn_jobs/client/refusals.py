"""Refusals and failures of a server, as a client raises them."""

from typing import Any

import httpx

from tcnn.errors import EnvironmentFailure, RequestError


class RefusedError(RequestError):
    """The server said no. `status` is HTTP's, `problem` the RFC 9457 body."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail") or problem.get("title") or f"the server answered with {status}")
        self.status, self.problem = status, problem


class ServerFailure(EnvironmentFailure):
    """The server cannot be reached, or fails."""


def refusal(answer: httpx.Response) -> RefusedError | ServerFailure:
    """The exception that an answer stands for which is no good one."""
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    if answer.status_code >= 500:
        detail = problem.get("detail") or f"status {answer.status_code}"
        return ServerFailure(f"the server failed: {detail}")
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        problem["detail"] = f"{problem.get('detail', 'a key is needed')}; give it with --key or TCNN_API_KEY"
    return RefusedError(answer.status_code, problem)
