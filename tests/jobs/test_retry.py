"""What becomes of a job whose process has ended."""

import signal
from typing import Any

import pytest

from tcnn.errors import DivergedError, EnvironmentFailure, StorageError, TcnnError, UnknownModelError, one_line
from tcnn_jobs.attempt import Outcome
from tcnn_jobs.model.jobs import Failure, Result
from tcnn_jobs.retry import (
    LESS_MEMORY,
    MOST_INTERNAL,
    Breach,
    Cancel,
    Decision,
    Fail,
    Finish,
    HandBack,
    backoff,
    decide,
    error_code,
    internal,
)

RESULT = Result(metrics={"top1": 0.5})
WRONG = Failure(code="request", message="no")


def of(exit_code: int, outcome: Outcome | None = None, attempt: int = 1, **why: Any) -> Decision:
    return decide(exit_code, outcome, attempt=attempt, max_attempts=3, delay=10, last_words="Bus error", **why)


def test_a_result_is_published_also_when_a_stop_came_too_late() -> None:
    for why in ({}, {"cancelling": True}, {"draining": True}):
        assert of(0, Outcome(result=RESULT), **why) == Finish(RESULT)


def test_exit_code_0_without_a_result_is_a_crash() -> None:
    decision = of(0)
    assert isinstance(decision, Fail)
    assert decision.failure.code == "crashed"


def test_a_result_of_a_process_that_then_crashed_is_not_trusted() -> None:
    assert isinstance(of(-signal.SIGSEGV, Outcome(result=RESULT)), Fail)


@pytest.mark.parametrize("exit_code", [75, -signal.SIGTERM, -signal.SIGKILL, 1])
def test_a_cancelled_job_is_cancelled_however_it_left(exit_code: int) -> None:
    assert of(exit_code, cancelling=True) == Cancel()
    assert of(exit_code, Outcome(error=WRONG, retry=True), cancelling=True) == Cancel()


@pytest.mark.parametrize("exit_code", [75, -signal.SIGTERM, -signal.SIGKILL])
def test_a_drained_job_is_handed_back(exit_code: int) -> None:
    assert of(exit_code, draining=True) == HandBack()


def test_a_drain_does_not_hide_that_the_request_is_wrong() -> None:
    assert of(2, Outcome(error=WRONG), draining=True) == Fail(WRONG)
    assert of(4, Outcome(error=WRONG, retry=True), draining=True) == HandBack()


def test_a_stop_that_nobody_here_asked_for_is_an_attempt_with_a_delay() -> None:
    decision = of(75)
    assert isinstance(decision, Fail)
    assert decision.retry_after == 10
    assert decision.failure.code == "crashed" and "other than its worker" in decision.failure.message
    assert of(75, attempt=3) == Fail(decision.failure)


def test_only_what_a_second_try_may_cure_is_tried_again() -> None:
    assert of(2, Outcome(error=WRONG)) == Fail(WRONG)
    assert of(4, Outcome(error=WRONG, retry=True)) == Fail(WRONG, 10.0)
    assert of(4, Outcome(error=WRONG, retry=True), attempt=2) == Fail(WRONG, 20.0)
    assert of(4, Outcome(error=WRONG, retry=True), attempt=3) == Fail(WRONG)


def test_what_was_ended_for_a_limit_is_told_that_and_nothing_else() -> None:
    late, stuck = Failure(code="timed_out", message="late"), Failure(code="no_progress", message="stuck")
    for exit_code, outcome in (
        (75, None),
        (-9, None),
        (4, Outcome(error=WRONG, retry=True)),
        (2, Outcome(error=WRONG)),
    ):
        assert of(exit_code, outcome, breach=Breach(late)) == Fail(late)
        assert of(exit_code, outcome, breach=Breach(stuck, again=True)) == Fail(stuck, 10.0)
        assert of(exit_code, outcome, attempt=3, breach=Breach(stuck, again=True)) == Fail(stuck)
        assert of(exit_code, outcome, breach=Breach(late), cancelling=True) == Cancel()
    assert of(0, Outcome(result=RESULT), breach=Breach(late)) == Finish(RESULT)


def test_a_crash_is_tried_again_and_says_what_ended_it() -> None:
    decision = of(-signal.SIGKILL)
    assert isinstance(decision, Fail)
    assert decision.retry_after == 10
    assert "SIGKILL" in decision.failure.message
    assert "memory" in decision.failure.message
    assert "Bus error" in decision.failure.message
    assert "\n" not in decision.failure.message
    assert of(-signal.SIGSEGV, attempt=3) == Fail(of(-signal.SIGSEGV).failure)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("exit_code", "last_words", "said"),
    [
        (0, "", "ended with exit code 0"),
        (3, "no GPU", "ended with exit code 3; its last words: no GPU"),
        (-signal.SIGHUP, "", "was ended by SIGHUP"),
        (-signal.SIGKILL, "", "was ended by SIGKILL, as the system does when memory runs out"),
        (-100, "", "was ended by signal 100"),
    ],
)
def test_a_crash_is_told_in_one_sentence(exit_code: int, last_words: str, said: str) -> None:
    decision = decide(exit_code, None, attempt=1, max_attempts=3, delay=10, last_words=last_words)
    assert decision == Fail(Failure(code="crashed", message=f"the job's process {said}; its log says more"), 10)
    assert last_words or decision == decide(exit_code, None, attempt=1, max_attempts=3, delay=10)


def test_a_process_that_the_system_ended_for_memory_is_told_so() -> None:
    """Only where the system has ended some for that, and where it was killed."""
    decision = of(-signal.SIGKILL, starved=True)
    assert isinstance(decision, Fail) and decision.retry_after == 10 and decision.failure.code == "out_of_memory"
    said = "killed for memory: this host had none left, and the system ended the job's process; "
    assert decision.failure.message == said + LESS_MEMORY
    for exit_code in (-signal.SIGTERM, signal.SIGKILL, 1):
        assert of(exit_code, starved=True) == of(exit_code)


def test_what_its_worker_failed_with_is_tried_a_few_times_only() -> None:
    """In one line; however many attempts were asked for, and no more than those."""
    error = KeyError("x\ny")
    message = f"the worker could not go on with it: unexpected KeyError: {one_line(error)}"
    assert "\n" not in message
    told = Failure(code="internal", message=message)
    assert MOST_INTERNAL > 2
    for asked, last in ((2, 2), (MOST_INTERNAL, MOST_INTERNAL), (100, MOST_INTERNAL)):
        for attempt in range(1, last):
            assert internal(error, attempt, asked, 2.0) == Fail(told, backoff(attempt, 2.0))
        assert internal(error, last, asked, 2.0) == Fail(told)


def test_delays_double_up_to_ten_minutes() -> None:
    assert [backoff(attempt, 10) for attempt in range(1, 9)] == [10, 20, 40, 80, 160, 320, 600, 600]
    assert backoff(10_000, 1) == 600
    assert backoff(5, 0) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownModelError, "unknown_model"), (StorageError, "storage"), (EnvironmentFailure, "environment"),
        (DivergedError, "diverged"), (TcnnError, "tcnn"), (ValueError, "value"),
        (type("Error", (Exception,), {}), "error"),
    ],
)  # fmt: skip
def test_codes_are_class_names_that_a_client_can_compare(error: type[Exception], code: str) -> None:
    assert error_code(error("x")) == code
