"""Chores of the housekeeper, in a thread beside the jobs: the database's log, retention, orphaned files.

Retention removes losing attempts, resume points of finished jobs, and jobs past their time.
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import structlog

from tcnn.errors import RequestError
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.bucket import BucketError, Object
from tcnn_jobs.artifacts.layout import MANIFEST, Home, Manifest, Named, claim_of, file_key, id_in, manifest_key, parse
from tcnn_jobs.artifacts.local import remove
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.attempts.stages import POINT, attempt_of, attempts_of, worth_keeping
from tcnn_jobs.errors import OtherDatabase, StoreUnavailable
from tcnn_jobs.housekeeping import coordination
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.housekeeping.ownership import check, places
from tcnn_jobs.model.jobs import Job, Status
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.janitor")
chores_log = structlog.stdlib.get_logger("tcnn.chores")

YOUNG = 3600.0
"""Grace period in seconds: a file without a row may belong to a transaction that is not committed yet."""
SWEEP = 600.0
"""Seconds between two sweeps."""
CHECKPOINT = 60.0
"""Seconds between two times that the length of SQLite's log is looked at."""
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
            self._tidy("store", SWEEP, False, lambda: sweep_store(store, artifacts))
            self._tidy("unfinished", 24 * YOUNG, False, lambda: drop_unfinished(artifacts))
        except StoreUnavailable:
            return  # the worker says so
        except Exception:
            chores_log.exception("a chore failed; it will be tried again")

    def _tidy(self, what: str, every: float, everybody: bool, chore: Callable[[], None]) -> None:
        """Do a chore that removes files, if it is due, is this worker's to do, and the files are this database's."""
        if time.monotonic() < self._due[what] or not (everybody or self._election.won()):
            return
        self._due[what] = time.monotonic() + every
        if self._is_ours():
            chore()

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
    published to a store; of another the attempt that it is resumed from, and the newest one, whose log says why it
    ended.
    """
    if not job.terminal:
        return
    if home.shared and job.status is Status.SUCCEEDED:
        remove_job(home, job.id)
        return
    attempts = attempts_of(home, job.id)
    succeeded = job.status is Status.SUCCEEDED
    kept = {str(winner(job))} if succeeded else worth_keeping(attempts, job.claim)
    for attempt in attempts:
        path = home.job(job.id) / attempt.name
        if attempt.name not in kept:
            shutil.rmtree(path, ignore_errors=True)
        elif succeeded:
            for resume in (path / "run").glob("**/resume"):
                shutil.rmtree(resume, ignore_errors=True)


def winner(job: Job) -> int:
    """The claim (attempt) whose files were published as the job's result."""
    return int(job.files[0].path.split("/")[1]) if job.files else job.claim


def expire(store: Store, settings: QueueSettings, artifacts: Artifacts) -> None:
    """Retention: jobs past their time or beyond the room for them, and rows of what is long over."""
    if settings.retention_days is not None:
        for job in store.expired(settings.retention_days):
            forget(artifacts, store, job, "too old")
    if settings.retention_gb is not None:
        _make_room(store, settings.retention_gb * 1e9, artifacts)
    store.forget_use()
    store.forget_dead_workers()
    store.forget_audit(settings.audit_days)


def _make_room(store: Store, most: float, artifacts: Artifacts) -> None:
    oldest_first = store.expired(None, 1000)
    sizes = artifacts.sizes()
    total = sum(sizes.values())
    for job in oldest_first:
        if total <= most:
            break
        forget(artifacts, store, job, "no room")
        total -= sizes.get(job.id, 0)


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


def sweep_store(store: Store, artifacts: Artifacts) -> None:
    """Remove objects of ids without a row, of attempts that lost, and resume points of finished jobs; the object store
    is listed as a whole."""
    if not isinstance(artifacts, SharedArtifacts):
        return
    now, objects = time.time(), artifacts.objects()
    known = store.known(list(objects))
    for identifier, found in objects.items():
        try:
            if identifier not in known:
                _sweep_strays(artifacts, identifier, found, now)
            elif next(iter(found)).startswith("jobs/"):
                _sweep_job(artifacts, store, identifier, found, now)
        except RequestError:  # deleted meanwhile
            continue
        except BucketError as error:
            if error.again:  # what it refuses holds up no other
                raise
            log.warning("could not sweep", id=identifier, problem=str(error))


def drop_unfinished(artifacts: Artifacts) -> None:
    """Remove what hosts that were switched off had sent of a file; a store may not know how, or not allow it."""
    if not isinstance(artifacts, SharedArtifacts):
        return
    try:
        if dropped := artifacts.bucket.drop_unfinished(24 * YOUNG):
            log.info("unfinished uploads dropped", uploads=dropped)
    except BucketError as error:
        log.info("unfinished uploads stay; let the bucket drop them by a rule", reason=str(error))


def _sweep_strays(artifacts: SharedArtifacts, identifier: str, found: Mapping[str, Object], now: float) -> None:
    """Objects of an id that no row has."""
    ours = id_in(identifier) or not identifier  # half a file has none
    if ours and all(now - item.modified > YOUNG for item in found.values()):
        log.info("swept", objects=len(found), id=identifier)
        artifacts.bucket.remove(*found)


def _sweep_job(
    artifacts: SharedArtifacts, store: Store, identifier: str, found: Mapping[str, Object], now: float
) -> None:
    """`clean` for a job's objects in the store: what `clean` keeps at home, and nothing that no manifest names."""
    named = {key: one for key in found if (one := parse(key)) is not None}
    if _is_tidy(named.values()):
        return  # as most are; the database need not be asked
    job = store.get(identifier)
    if not job.terminal:
        return
    attempts = {one.attempt for one in named.values() if one.name == MANIFEST}
    if job.status is Status.SUCCEEDED:
        keep = str(winner(job))
        manifest = artifacts.manifest(job.id, keep) or Manifest()
        files = tuple(file for file in manifest.files if not file.name.startswith(POINT))
        if files != manifest.files:
            artifacts.bucket.put_text(manifest_key(job.id, keep), Manifest(files=files).model_dump_json())
        manifests = {keep: Manifest(files=files)}
    else:
        there = {name: artifacts.manifest(job.id, name) or Manifest() for name in attempts}
        keep_all = worth_keeping((attempt_of(name, one.names) for name, one in there.items()), job.claim)
        manifests = {name: there[name] for name in keep_all}
    kept = {manifest_key(job.id, name) for name in manifests}
    kept |= {file_key(file) for manifest in manifests.values() for file in manifest.files}
    kept |= {file_key(file) for file in job.files}
    claims = {claim_of(name) for name in manifests}
    gone = [key for key in named if key not in kept and (named[key].claim not in claims or _old(key, found, now))]
    artifacts.bucket.remove(*gone)


def _is_tidy(named: Collection[Named]) -> bool:
    """Whether these objects are those of one attempt that has ended well, each of them once. Of a run and its baseline
    each has files of the same names."""
    times = Counter(one.name for one in named)
    alone = times[MANIFEST] == 1 and len({one.attempt for one in named}) == 1
    most = max(1, times["config.json"])
    return alone and all(number <= most and not name.startswith(POINT) for name, number in times.items())


def _old(key: str, found: Mapping[str, Object], now: float) -> bool:
    """Whether no manifest under way can still come to name an object: a resume point, or older than `YOUNG`."""
    return key.rpartition("/")[2].startswith(POINT) or now - found[key].modified > YOUNG


def forget(artifacts: Artifacts, store: Store, job: Job, why: str) -> None:
    """Delete a terminal job, row first: orphaned files are swept later, a row without files would promise them."""
    try:
        store.delete(job.id)
    except RequestError:  # resumed or deleted by somebody else meanwhile
        return
    artifacts.remove_job(job.id)
    log.info("deleted", job=job.id, why=why)


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
