"""To which database a home directory or a bucket belongs.

A sweep removes what the database does not list, so only the database that made the files may decide. Each has an id
of its own (`Store.identity`), and every place with files is marked with it, in `database.id`: by the first process
that finds files of its database there and no mark. In a place of another database nothing is swept, and neither a
server nor a worker starts with one.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

import structlog

from tcnn.errors import EnvironmentFailure
from tcnn.files import write_atomically
from tcnn_jobs.artifacts.base import Artifacts
from tcnn_jobs.artifacts.bucket import BucketError, ObjectGone
from tcnn_jobs.artifacts.layout import MARK, Home, id_in
from tcnn_jobs.artifacts.shared import SharedArtifacts
from tcnn_jobs.errors import OtherDatabase
from tcnn_jobs.store import Store

log = structlog.stdlib.get_logger("tcnn.janitor")


class Place(NamedTuple):
    """Where files of a database lie: the setting that names it and its value, how to read and write its mark, and the
    ids of the jobs and uploads of which there are files."""

    setting: str
    value: str
    mark: Callable[[], str | None]
    put: Callable[[str], None]
    ids: Callable[[], set[str]]


def place_of(home: Home) -> Place:
    """The home directory as a place."""
    path = home.root / MARK

    def mark() -> str | None:
        try:
            return path.read_text(encoding="utf-8", errors="replace").strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            said = (error.strerror or str(error)).lower()
            raise EnvironmentFailure(f"{path}: cannot be read ({said}); let this user read it") from error

    def ids() -> set[str]:
        folders = (home.jobs, home.datasets, home.checkpoints)
        return {id_in(path.name) for folder in folders for path in folder.iterdir()} - {""}

    return Place("TCNN_HOME", str(home.root), mark, lambda own: write_atomically(path, f"{own}\n", force=True), ids)


def bucket_of(artifacts: SharedArtifacts) -> Place:
    """The bucket, or whatever `TCNN_ARTIFACTS` names, as a place; raises `BucketError`, without trying again."""
    bucket = artifacts.bucket

    def mark() -> str | None:
        with suppress(ObjectGone):
            return bucket.text(MARK, tries=1).strip() or None
        return None

    def put(own: str) -> None:
        bucket.put_text(MARK, f"{own}\n")

    return Place("TCNN_ARTIFACTS", bucket.url, mark, put, lambda: {id_in(key) for key in artifacts.objects()} - {""})


def places(home: Home, artifacts: Artifacts) -> tuple[Place, ...]:
    """All places of this process."""
    return (place_of(home), bucket_of(artifacts)) if isinstance(artifacts, SharedArtifacts) else (place_of(home),)


def _verdict(place: Place, own: str, found: str | None) -> str:
    """What to say of a place with the mark of another database, or with none and no file that `own` lists."""
    theirs = "another one" if found is None else f"another one (id {found})"
    return (
        f"{place.setting}={place.value}: expected files of this database (id {own}), found those of {theirs}; nothing "
        "was removed. Use their database (TCNN_DATABASE_URL, or tcnn.db from a backup), or an empty place; to hand the "
        f"files over, write {own} to {place.value}/{MARK}: those that this database does not list are then deleted"
    )


def check(place: Place, store: Store) -> None:
    """Raise `OtherDatabase` if the files of a place are those of another database; mark it where they are ours.

    An empty place has nothing that could be swept, and whoever puts files there first has it. Two that do so at once
    find out before their next sweep.
    """
    own, found = store.identity(), place.mark()
    if found is None:
        if not (ids := place.ids()):
            return
        if not store.known(sorted(ids)):
            raise OtherDatabase(_verdict(place, own, None))
        with suppress(EnvironmentFailure):  # no room, or no permission: known they are all the same
            place.put(own)
        found = place.mark()
    if found not in (None, own):
        raise OtherDatabase(_verdict(place, own, found))


def check_all(places: Iterable[Place], store: Store) -> None:
    """`check` each, at the start; a store of results that is away is looked at again before anything is swept."""
    for place in places:
        try:
            check(place, store)
        except BucketError as error:
            log.warning("cannot see to which database the store of results belongs", problem=str(error))


def belongs(place: Place, own: str) -> bool:
    """Whether a place has this database's mark, or none: a look for probes, which changes nothing."""
    return place.mark() in (None, own)
