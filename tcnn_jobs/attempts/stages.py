"""A job's attempts by their files: how far each one got, which the next resumes from, and which are worth keeping.

Claim numbers repeat after an older database was restored, or after a failover to one. What it does not know of is then
no part of the job's history any more: an attempt that was set aside for having a new one's number, and one whose number
is still to come. The job goes on from its resume points if they are farther, but none of these is its newest attempt.
"""

from collections.abc import Collection, Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tcnn_jobs.artifacts.layout import Home, claim_of
from tcnn_jobs.model.jobs import Job

STARTED = ("run/config.json", "conversion.json")
POINT = "step-"
"""How the name of a resume point begins."""
_FOLDER = "run/resume/"


class Stage(IntEnum):
    """How far an attempt got; another goes on from one that got farther, however old."""

    NOTHING = 0
    STARTED = 1
    """It has converted, or begun to train."""
    SAVED = 2
    """It has a resume point: progress in training, which nothing else may replace but a newer resume point."""


class Attempt(NamedTuple):
    """What is left of an attempt, here or in a store."""

    name: str
    """`3`, or `3.RANDOM` if it was set aside."""
    stage: Stage
    point: str = ""
    """The newest resume point, whose name begins with its number of steps."""
    path: Path | None = None
    """Where it lies on this host."""

    @property
    def claim(self) -> int:
        """Its number."""
        return claim_of(self.name) or 0

    def is_before(self, claim: int) -> bool:
        """Whether it is in the history that leads to this claim."""
        return self.name.isdecimal() and self.claim < claim

    def is_after(self, claim: int) -> bool:
        """Whether its number was still to come when this was the job's claim."""
        return self.name.isdecimal() and self.claim > claim


def attempt_of(name: str, files: Collection[str], path: Path | None = None) -> Attempt:
    """The attempt that left files of these names, relative to its directory. Pure."""
    points = [file.removeprefix(_FOLDER) for file in files if file.startswith(f"{_FOLDER}{POINT}")]
    if STARTED[0] in files and points:
        return Attempt(name, Stage.SAVED, max(points), path)
    return Attempt(name, Stage.STARTED if any(one in files for one in STARTED) else Stage.NOTHING, path=path)


def best(attempts: Iterable[Attempt], claim: int) -> Attempt | None:
    """The attempt that this claim resumes from; of two that are the same the first. Pure.

    An attempt takes over the resume points of the one before it when it starts to train. So in the job's history the
    newest that has some has the newest ones. Attempts beside that history must have got farther.
    """
    started = [one for one in attempts if one.stage]
    before = [one for one in started if one.is_before(claim)]
    newest = [max(before, key=lambda one: (one.stage, one.claim, one.point))] if before else []
    beside = [one for one in started if not one.is_before(claim)]
    return max(
        [*newest, *beside], key=lambda one: (one.stage, one.point, one.is_before(claim), one.claim), default=None
    )


def worth_keeping(attempts: Iterable[Attempt], claim: int) -> set[str]:
    """The attempts that a job which may be resumed needs: the one that it resumes from, and the newest, for its log.

    `claim`: that of the job, which has ended, as it was after the attempts were listed. Pure.
    """
    found = list(attempts)
    newest = max((one for one in found if one.is_before(claim + 1)), key=lambda one: one.claim, default=None)
    return {one.name for one in (best(found, claim + 1), newest) if one is not None}


def worth_keeping_since(attempts: Iterable[Attempt], claim: int) -> set[str]:
    """The same if the attempts were listed after the job was read: it may have been resumed since. Then those numbers
    that were still to come are attempts under way, on whatever host, and go on from one of the others. Pure."""
    found = list(attempts)
    since = {one for one in found if one.is_after(claim)}
    return {one.name for one in since} | worth_keeping([one for one in found if one not in since], claim)


def winner(job: Job) -> int:
    """The claim (attempt) whose files were published as the job's result."""
    return int(job.files[0].path.split("/")[1]) if job.files else job.claim


def attempts_of(home: Home, job: str) -> list[Attempt]:
    """What is left of a job's attempts on this host."""
    try:
        folders = [path for path in home.job(job).iterdir() if claim_of(path.name) is not None and path.is_dir()]
    except FileNotFoundError:
        return []
    return [attempt_of(path.name, _files(path), path) for path in folders]


def resumable(home: Home, job: str, claim: int) -> Attempt | None:
    """The attempt on this host that this claim, whose own has nothing yet, resumes from."""
    return best(attempts_of(home, job), claim)


def _files(path: Path) -> list[str]:
    """Those that tell how far an attempt got."""
    names = [name for name in STARTED if (path / name).is_file()]
    return [*names, *(f"{_FOLDER}{point.name}" for point in (path / _FOLDER).glob(f"{POINT}*.safetensors"))]
