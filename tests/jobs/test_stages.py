"""Which of a job's attempts the next one resumes from, and which are kept, also when claim numbers are repeated."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.attempts.stages import Attempt, Stage, attempt_of, best, resumable, worth_keeping, worth_keeping_since

JOB = "job_0123456789"
CONFIG = "run/config.json"


def point(steps: int) -> str:
    return f"run/resume/step-{steps:09d}.safetensors"


def saved(name: str, steps: int) -> Attempt:
    return attempt_of(name, [CONFIG, point(steps)])


def died(name: str) -> Attempt:
    return attempt_of(name, ["log.txt"])


@pytest.mark.parametrize(
    ("files", "stage", "newest"),
    [
        (["log.txt"], Stage.NOTHING, ""),
        ([point(7)], Stage.NOTHING, ""),  # without the settings nothing can go on from it
        (["conversion.json"], Stage.STARTED, ""),
        ([CONFIG, "run/best.safetensors"], Stage.STARTED, ""),
        ([CONFIG, point(7), point(12), point(9)], Stage.SAVED, "step-000000012.safetensors"),
    ],
)
def test_how_far_an_attempt_got(files: list[str], stage: Stage, newest: str) -> None:
    assert attempt_of("3", files) == Attempt("3", stage, newest)


CONVERTED = attempt_of("2", ["conversion.json"])


@pytest.mark.parametrize(
    ("attempts", "claim", "name"),
    [
        ([], 1, None),
        ([died("1")], 2, None),
        ([saved("1", 5), died("2")], 3, "1"),
        ([saved("1", 5), CONVERTED], 3, "1"),
        # The newest took over what the one before had, and may have left out a damaged resume point of more steps.
        ([saved("9", 90), saved("10", 80)], 11, "10"),
        # Number 2 was there already when an older database gave it to an attempt again.
        ([saved("1", 100), saved("2.a", 90_000)], 2, "2.a"),
        ([saved("1", 100), saved("2.a", 50)], 2, "1"),
        ([saved("1", 100), saved("2.a", 90_000), saved("2", 90_100)], 3, "2"),
        ([saved("2.a", 90_000), saved("2", 90_000)], 3, "2"),
        ([saved("2.a", 90_000), died("2")], 3, "2.a"),
        # Numbers that this database has yet to give.
        ([saved("1", 100), saved("3", 90_000), died("2")], 2, "3"),
        ([saved("2", 5000), saved("3.a", 10)], 3, "2"),
        ([saved("2.a", 7), saved("3.a", 7), died("2")], 3, "3.a"),
    ],
)
def test_the_next_attempt_resumes_from_the_one_that_got_farthest(
    attempts: Sequence[Attempt], claim: int, name: str | None
) -> None:
    for given in (attempts, attempts[::-1]):
        found = best(given, claim)
        assert (found and found.name) == name


def test_of_two_copies_the_first_is_taken_unless_the_other_is_newer() -> None:
    here, there = (saved("2", 7)._replace(path=path) for path in (Path("2"), None))
    assert best([here, there], 3) is here
    newer = saved("2", 8)
    assert best([here, newer], 3) is newer


@pytest.mark.parametrize(
    ("attempts", "claim", "kept"),
    [
        ([], 1, set()),
        ([saved("1", 5), saved("2", 6)], 2, {"2"}),
        ([saved("1", 5), died("2"), died("3")], 3, {"1", "3"}),
        ([saved("2", 5000), saved("3", 10)], 2, {"2"}),
        ([saved("2", 5000), saved("3", 90_000)], 2, {"2", "3"}),
        ([died("2"), saved("2.a", 10), died("2.b"), died("3")], 2, {"2", "2.a"}),
        ([died("3")], 2, set()),
    ],
)
def test_kept_are_the_farthest_and_the_newest_that_the_database_knows(
    attempts: Sequence[Attempt], claim: int, kept: set[str]
) -> None:
    assert worth_keeping(attempts, claim) == worth_keeping(attempts[::-1], claim) == kept


@pytest.mark.parametrize(
    ("attempts", "claim", "kept"),
    [
        ([saved("1", 5), died("2"), died("3")], 3, {"1", "3"}),
        ([died("3")], 2, {"3"}),
        ([saved("1", 5), saved("2", 5000), died("3"), died("4")], 2, {"2", "3", "4"}),
        ([saved("1", 5), died("2"), saved("3", 6)], 2, {"1", "2", "3"}),
        ([died("2"), saved("2.a", 10), died("2.b"), died("3")], 2, {"2", "2.a", "3"}),
        ([died("2"), saved("3.a", 10), saved("3.b", 9)], 2, {"2", "3.a"}),
    ],
)
def test_attempts_that_may_have_begun_meanwhile_are_kept_and_what_they_resume_from(
    attempts: Sequence[Attempt], claim: int, kept: set[str]
) -> None:
    assert worth_keeping_since(attempts, claim) == worth_keeping_since(attempts[::-1], claim) == kept


def test_attempts_on_disk(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert resumable(home, JOB, 1) is None
    for name, files in {
        "1": [CONFIG, point(1)], "2": [], "3.0a": [CONFIG, point(9)], "report.html": [CONFIG, point(99)],
    }.items():  # fmt: skip
        for file in (*files, "log.txt"):
            (home.job(JOB) / name / file).parent.mkdir(parents=True, exist_ok=True)
            (home.job(JOB) / name / file).touch()
    (home.job(JOB) / "4").touch()
    found = resumable(home, JOB, 3)
    assert found == Attempt("3.0a", Stage.SAVED, "step-000000009.safetensors", home.job(JOB) / "3.0a")
