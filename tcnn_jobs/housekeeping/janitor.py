"""Chores of the housekeeper, in a thread beside the jobs: the database's log, retention, orphaned files.

Retention removes losing attempts, resume points of finished jobs, and jobs past their time.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from tcnn.errors import RequestError
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.layout import Home, id_in
from tcnn_jobs.artifacts.local import LocalArtifacts, remove
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.attempts.stages import attempts_of, winner, worth_keeping_since
from tcnn_jobs.errors import OtherDatabase, StoreUnavailable
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.housekeeping.objects import YOUNG, drop_unfinished, sweep_store
from tcnn_jobs.housekeeping.ownership import check, places
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.janitor")
chores_log = structlog.stdlib.get_logger("tcnn.chores")

SWEEP = 600.0
"""Seconds between two sweeps."""
CHECKPOINT = 60.0
"""Seconds between two times that the length of SQLite's log is looked at."""
PASS, ROOM_PASS = 100, 1000
"""Jobs that one pass of retention deletes at most, by time and for room, before other chores have their turn."""
LOG = 2**26
"""Bytes after which the log is emptied: some thousand jobs."""


class Chores(threading.Thread):
    """Slow things that must not hold up a heartbeat. Ends with the process, or when told to."""

    def __init__(
        self, store: Store, home: Home, settings: QueueSettings, artifacts: Artifacts, election: Election
    ) -> None:
        super().__init__(name="chores", daemon=True)
        self._store, self._home, self._settings = store, home, settings
        self._artifacts, self._election = artifacts, election
        self._told = threading.Event()
        now = time.monotonic()
        # No file goes at the start, when somebody may yet notice that a setting is wrong.
        self._due = {"log": now, "retention": now} | dict.fromkeys(("home", "store", "unfinished"), now + SWEEP)
        self._refused = ""

    def run(self) -> None:
        """Run chores until `stop`."""
        while not self._told.wait(coordination.spread(max(1.0, self._settings.poll))):
            self.step()

    def step(self) -> None:
        """Run the chores that are due; no error here may end the thread."""
        try:
            if time.monotonic() >= self._due["log"]:
                self._due["log"] = time.monotonic() + CHECKPOINT
                self._store.checkpoint(longer_than=LOG)
            store, home, artifacts = self._store, self._home, self._artifacts
            self._tidy("retention", SWEEP, False, lambda: expire(store, self._settings, artifacts))
            # A home that all hosts share is one house; one of several has its own sweeper.
            self._tidy("home", SWEEP, home.shared, lambda: sweep_home(home, store, artifacts))
            self._tidy("store", SWEEP, False, lambda: keep_room(store, self._settings, artifacts))
            self._tidy("unfinished", 24 * YOUNG, False, lambda: drop_unfinished(artifacts))
        except StoreUnavailable:
            return  # the worker says so
        except Exception:
            chores_log.exception("a chore failed; it will be tried again")

    def _tidy(self, what: str, every: float, everybody: bool, chore: Callable[[], bool | None]) -> None:
        """Do a chore that removes files, if it is due, is this worker's to do, and the files are this database's.

        One that has more to do is due again at once, after the others.
        """
        if time.monotonic() < self._due[what] or not (everybody or self._election.won()):
            return
        self._due[what] = time.monotonic() + every
        try:
            if self._is_ours() and chore():
                self._due[what] = time.monotonic()
        except StoreUnavailable as error:
            chores_log.warning("the database did not do a chore; it will be tried again", chore=what, why=str(error))
            raise

    def _is_ours(self) -> bool:
        refused = ""
        try:
            for place in places(self._home, self._artifacts):
                check(place, self._store)
        except OtherDatabase as error:
            refused = str(error)
            if refused != self._refused:
                log.error("nothing is removed: the files are another database's", problem=refused)
        self._refused = refused
        return not refused

    def stop(self) -> None:
        """End after the current chore."""
        self._told.set()


def clean(home: Home, job: Job) -> None:
    """Remove the files of a terminal job that its owner can no longer ask for.

    Of a succeeded job that is the attempt that was published, without its resume points, or nothing where it was
    published to a store; of another the attempt that it is resumed from, the newest one, whose log says why it ended,
    and attempts that may have begun since the job was read.
    """
    if not job.terminal:
        return
    if home.shared and job.status is Status.SUCCEEDED:
        remove_job(home, job.id)
        return
    attempts = attempts_of(home, job.id)
    succeeded = job.status is Status.SUCCEEDED
    kept = {str(winner(job))} if succeeded else worth_keeping_since(attempts, job.claim)
    for attempt in attempts:
        path = home.job(job.id) / attempt.name
        if attempt.name not in kept:
            shutil.rmtree(path, ignore_errors=True)
        elif succeeded:
            for resume in (path / "run").glob("**/resume"):
                shutil.rmtree(resume, ignore_errors=True)


def expire(store: Store, settings: QueueSettings, artifacts: Artifacts) -> bool:
    """Retention: jobs past their time, and rows of what is long over; returns whether another pass would find more of
    them."""
    more = False
    if settings.retention_days is not None:
        jobs = store.expired(settings.retention_days, PASS)
        deleted = [forget(artifacts, store, job, "too old") for job in jobs]
        more = any(deleted) and len(jobs) == PASS
    store.forget_use()
    store.forget_dead_workers()
    return store.forget_audit(settings.audit_days) or more


def keep_room(store: Store, settings: QueueSettings, artifacts: Artifacts) -> bool:
    """Sweep the object store; then retention of the jobs beyond the room for all. Returns whether another pass would
    find more of them.

    Only what is kept takes room, so that no job goes for what a sweep removes: a home is swept before.
    """
    sizes = sweep_store(store, artifacts)
    if settings.retention_gb is None:
        return False
    if isinstance(artifacts, LocalArtifacts):
        found = artifacts.sizes()
        sizes = {job: found[job] for job in store.known(list(found))}
    return _make_room(store, settings.retention_gb * 1e9, artifacts, sizes)


def _make_room(store: Store, most: float, artifacts: Artifacts, sizes: Mapping[str, int]) -> bool:
    oldest_first = store.expired(None, ROOM_PASS)
    total, deleted = sum(sizes.values()), False
    for job in oldest_first:
        if total <= most:
            return False
        if forget(artifacts, store, job, "no room"):
            total, deleted = total - sizes.get(job.id, 0), True
    return deleted and total > most and len(oldest_first) == ROOM_PASS


def sweep_home(home: Home, store: Store, artifacts: Artifacts) -> None:
    """Orphaned and obsolete files of this host's home directory."""
    now = time.time()
    for folder in (home.jobs, home.datasets, home.checkpoints):
        paths = {id_in(path.name): path for path in folder.iterdir()}
        known = store.known(list(paths))
        for name, path in paths.items():
            if name and name not in known and now - _modified(path) > YOUNG:
                _remove(path)
    for path in home.incoming.iterdir():
        if now - _modified(path) > 24 * YOUNG:
            _remove(path)
    for path in home.jobs.iterdir():
        if path.is_dir() and (home.shared or sum(1 for _ in path.iterdir()) > 1):
            try:
                job = store.get(path.name)
            except RequestError:
                continue
            if not home.shared or job.status is not Status.SUCCEEDED or winner(job) in artifacts.published(job.id):
                clean(home, job)
    if isinstance(artifacts, SharedArtifacts):
        artifacts.cache.sweep(24 * YOUNG)


def forget(artifacts: Artifacts, store: Store, job: Job, why: str) -> bool:
    """Delete a terminal job, row first: orphaned files are swept later, a row without files would promise them.

    Returns whether it was there to delete.
    """
    try:
        store.delete(job.id)
    except RequestError:  # resumed or deleted by somebody else meanwhile
        return False
    artifacts.remove_job(job.id)
    log.info("deleted", job=job.id, why=why)
    return True


def remove_job(home: Home, job: str) -> None:
    """Remove all files of a job at home, after its row is gone."""
    shutil.rmtree(home.job(job), ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def _remove(path: Path) -> None:
    log.info("swept", path=path.name)
    remove(path)
