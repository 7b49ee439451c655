"""Removing what no job needs any more: losing attempts, resume points of finished jobs, jobs past their time."""

import shutil
import time
from pathlib import Path

import structlog

from jobs.home import Home
from jobs.model import Job, Status
from jobs.settings import QueueSettings
from jobs.store import Store
from tcnn.errors import RequestError

log = structlog.stdlib.get_logger("tcnn.janitor")

YOUNG = 3600.0
"""Seconds for which a file that no row speaks of may still be getting one."""


def clean(home: Home, job: Job) -> None:
    """Leave of a job that has ended only what its owner can still ask for.

    Of a succeeded job that is the attempt that was published, without its resume points; of another the newest
    attempt, which it may be resumed from.
    """
    if not job.terminal:
        return
    attempts = _attempts(home, job.id)
    keep = winner(job) if job.status is Status.SUCCEEDED else max(attempts, default=None)
    for claim, path in attempts.items():
        if claim != keep:
            shutil.rmtree(path, ignore_errors=True)
    if keep is not None and job.status is Status.SUCCEEDED:
        shutil.rmtree(home.attempt(job.id, keep) / "run" / "resume", ignore_errors=True)


def winner(job: Job) -> int:
    """The claim whose files were published."""
    files = job.result.files if job.result else ()
    return int(files[0].path.split("/")[1]) if files else job.claim


def newest_attempt(home: Home, job: str, before: int | None = None) -> Path | None:
    """The directory of the newest attempt (before a claim) in which training or conversion got somewhere."""
    attempts = _attempts(home, job)
    for claim in sorted(attempts, reverse=True):
        if before is not None and claim >= before:
            continue
        if any((attempts[claim] / name).is_file() for name in ("run/config.json", "conversion.json")):
            return attempts[claim]
    return None


def _attempts(home: Home, job: str) -> dict[int, Path]:
    try:
        return {int(path.name): path for path in home.job(job).iterdir() if path.name.isdigit()}
    except FileNotFoundError:
        return {}


def sweep(home: Home, store: Store, settings: QueueSettings) -> None:
    """The whole house: what crashes left behind, and what is past its time. Safe with many workers at once."""
    _expire(home, store, settings)
    now = time.time()
    for folder in (home.jobs, home.datasets, home.checkpoints):
        paths = {path.name.partition(".")[0]: path for path in folder.iterdir()}
        known = store.known(list(paths))
        for name, path in paths.items():
            if name not in known and now - _modified(path) > YOUNG:
                _remove(path)
    for path in home.incoming.iterdir():
        if now - _modified(path) > 24 * YOUNG:
            _remove(path)
    for path in home.jobs.iterdir():
        if sum(1 for _ in path.iterdir()) > 1:
            try:
                clean(home, store.get(path.name))
            except RequestError:
                continue


def _expire(home: Home, store: Store, settings: QueueSettings) -> None:
    if settings.retention_days is not None:
        for job in store.expired(settings.retention_days):
            forget(home, store, job, "too old")
    if settings.retention_gb is not None:
        oldest_first = store.expired(None, 1000)
        sizes = {job.id: _size(home.job(job.id)) for job in oldest_first}
        total = _size(home.jobs)
        for job in oldest_first:
            if total <= settings.retention_gb * 1e9:
                break
            forget(home, store, job, "no room")
            total -= sizes[job.id]


def forget(home: Home, store: Store, job: Job, why: str) -> None:
    """Delete a job that has ended, its row first: files without a row are swept, a row without files would lie."""
    try:
        store.delete(job.id)
    except RequestError:  # resumed or deleted by somebody else meanwhile
        return
    remove_job(home, job.id)
    log.info("deleted", job=job.id, why=why)


def remove_job(home: Home, job: str) -> None:
    """All files of a job that has no row any more."""
    shutil.rmtree(home.job(job), ignore_errors=True)


def _size(folder: Path) -> int:
    """Bytes on disk; a file with several links counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        try:
            stat = path.lstat()
        except OSError:
            continue
        seen[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(seen.values())


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _remove(path: Path) -> None:
    log.info("swept", path=path.name)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
