"""A job's attempts on disk: how far each one got, which the next resumes from, and which are worth keeping."""

from collections.abc import Collection, Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tcnn_jobs.artifacts.layout import Home

STARTED = ("run/config.json", "conversion.json")
POINT = "step-"
"""How the name of a resume point begins."""
_POINTS = f"run/resume/{POINT}"


class Stage(IntEnum):
    """How far an attempt got; another goes on from one that got farther, however old."""

    NOTHING = 0
    STARTED = 1
    """It has converted, or begun to train."""
    SAVED = 2
    """It has a resume point: progress in training, which nothing else may replace but a newer resume point."""


class AttemptFiles(NamedTuple):
    """The files of an attempt. Claim numbers repeat when an older database was restored."""

    stage: Stage
    claim: int
    path: Path


def stage_of(names: Collection[str]) -> Stage:
    """How far an attempt got that left files of these names, relative to its directory. Pure."""
    if STARTED[0] in names and any(name.startswith(_POINTS) for name in names):
        return Stage.SAVED
    return Stage.STARTED if any(name in names for name in STARTED) else Stage.NOTHING


def worth_keeping(stages: Iterable[tuple[Stage, int]]) -> set[int]:
    """The claims that a job which may be resumed needs: the one that got farthest, and the newest, for its log. Pure.

    A newer attempt takes over the resume points of the one before it when it starts to train. So among those that have
    some the newest has the newest ones, and one that died before that supersedes nothing.
    """
    found = list(stages)
    return {max(found)[1], max(claim for _, claim in found)} if found else set()


def attempts_of(home: Home, job: str) -> list[AttemptFiles]:
    """What is left of a job's attempts on this host, those that got farthest last."""
    try:
        folders = [path for path in home.job(job).iterdir() if _claim(path).isdecimal() and path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(AttemptFiles(_stage(path), int(_claim(path)), path) for path in folders)


def resumable(home: Home, job: str, before: int | None = None) -> AttemptFiles | None:
    """The attempt that the next one resumes from: of those (before a claim) that got somewhere, the best.

    One that was set aside for having the next one's number is among them.
    """

    def earlier(one: AttemptFiles) -> bool:
        return before is None or one.claim < before or (one.claim == before and not one.path.name.isdecimal())

    return max((one for one in attempts_of(home, job) if one.stage and earlier(one)), default=None)


def _claim(path: Path) -> str:
    """`3`, or `3.RANDOM` for a directory that another attempt of this number found there."""
    return path.name.partition(".")[0]


def _stage(path: Path) -> Stage:
    names = [name for name in STARTED if (path / name).is_file()]
    points = (path / _POINTS).parent.glob(f"{POINT}*.safetensors")
    return stage_of([*names, *(f"run/resume/{point.name}" for point in points)])
