"""The sweep of the object store: objects without a row, attempts that lost, resume points of finished jobs."""

import time
from collections import Counter
from collections.abc import Collection, Mapping

import structlog

from tcnn.errors import RequestError
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.bucket import BucketError, Object
from tcnn_jobs.artifacts.layout import MANIFEST, Manifest, Named, claim_of, file_key, id_in, manifest_key, parse
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.attempts.stages import POINT, attempt_of, winner, worth_keeping
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.janitor")

YOUNG = 3600.0
"""Grace period in seconds: a file without a row may belong to a transaction that is not committed yet."""


def sweep_store(store: Store, artifacts: Artifacts) -> dict[str, int]:
    """Remove objects of ids without a row, of attempts that lost, and resume points of finished jobs; the object store
    is listed as a whole.

    Returns the bytes that are kept of every job, without those that only a later sweep may remove.
    """
    kept: dict[str, int] = {}
    if not isinstance(artifacts, SharedArtifacts):
        return kept
    now, objects = time.time(), artifacts.objects()
    known = store.known(list(objects))
    for identifier, found in objects.items():
        try:
            if identifier not in known:
                _sweep_strays(artifacts, identifier, found, now)
            elif next(iter(found)).startswith("jobs/"):
                kept[identifier] = _sweep_job(artifacts, store, identifier, found, now)
        except RequestError:  # deleted meanwhile
            continue
        except BucketError as error:
            if error.again:  # what it refuses holds up no other
                raise
            log.warning("could not sweep", id=identifier, problem=str(error))
    return kept


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
) -> int:
    """`clean` for a job's objects in the store: what `clean` keeps at home, and nothing that no manifest names.

    Returns the bytes of what is kept.
    """
    whole = sum(item.size for item in found.values())
    named = {key: one for key in found if (one := parse(key)) is not None}
    if _is_tidy(named.values()):
        return whole  # as most are; the database need not be asked
    job = store.get(identifier)
    if not job.terminal:
        return whole
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
    return sum(item.size for key, item in found.items() if key in kept)


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
