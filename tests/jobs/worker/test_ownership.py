"""Files are swept by the database that made them and by no other, which neither a server nor a worker starts with."""

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from deeds import new
from houses import House
from sampled import quick_on

from tcnn.errors import EnvironmentFailure, StorageError
from tcnn_api import serve
from tcnn_api.settings import ApiSettings
from tcnn_jobs.artifacts.layout import MARK
from tcnn_jobs.artifacts.local import LocalArtifacts
from tcnn_jobs.artifacts.shared import SharedArtifacts, open_artifacts
from tcnn_jobs.database.upgrade import alembic_config
from tcnn_jobs.errors import OtherDatabase
from tcnn_jobs.housekeeping import janitor, objects
from tcnn_jobs.housekeeping.coordination import Election
from tcnn_jobs.housekeeping.janitor import Chores
from tcnn_jobs.housekeeping.ownership import bucket_of, check, place_of
from tcnn_jobs.settings import QueueSettings
from tcnn_jobs.store import Store
from tcnn_jobs.worker.service import work

EMPTY_ON_SQLITE = quick_on("sqlite", "empty_url")
STRAYS = {"ds_0123456789abcdef01234567": "datasets", "job_0123456789abcdef01234567": "jobs"}
HAND_OVER = r"to hand the files over, write (\w{32}) to (\S+): those that this database does not list are then deleted"


def stray(house: House) -> list[Path]:
    """Old files of no row of this house's database, in each of the folders that are swept."""
    upload, job = (house.home.root / folder / name for name, folder in STRAYS.items())
    places = [upload, job, house.home.checkpoints / "ckpt_0123456789abcdef01234567.safetensors"]
    places.append(house.home.incoming / "upload_0123")
    for path in places:
        path.mkdir()
        os.utime(path, (0, 0))
    return places


def owned(house: House) -> Path:
    """The folder of a job of this house's database."""
    folder = house.home.job(house.submit().id)
    folder.mkdir()
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Store:
    """An empty database."""
    store = Store(f"sqlite:///{tmp_path / 'other.db'}")
    store.migrate()
    return store


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Chores]:
    """All chores of a worker that was started long ago."""
    monkeypatch.setattr(janitor, "SWEEP", 0.0)

    def sweep(house: House, store: Store, chores: Chores | None = None) -> Chores:
        found = chores or Chores(store, house.home, house.settings, house.artifacts, Election(store, "w", 60))
        found.step()
        return found

    return sweep


def test_a_database_sweeps_its_own_home(house: House, sweep: Callable[..., Chores]) -> None:
    kept, gone = owned(house), stray(house)
    sweep(house, house.store)
    assert kept.exists() and not any(path.exists() for path in gone)
    assert (house.home.root / MARK).read_text().strip() == house.store.identity()


@pytest.mark.parametrize("marked", [True, False])
def test_another_one_sweeps_nothing_and_says_so_once(
    house: House, other: Store, sweep: Callable[..., Chores], marked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marked by the database before, or from before there were marks."""
    there = [owned(house), *stray(house)]
    if marked:
        check(place_of(house.home), house.store)
    chores = sweep(house, other)
    sweep(house, other, chores)
    assert all(path.exists() for path in there)
    out = capsys.readouterr()
    assert (out.out + out.err).count("nothing is removed: the files are another database's") == 1
    assert (house.home.root / MARK).exists() is marked


def test_neither_a_worker_nor_a_server_starts_with_another_one(house: House, other: Store) -> None:
    owned(house)
    check(place_of(house.home), house.store)
    url = f"sqlite:///{other.place}"
    said = rf"TCNN_HOME=.*: expected .* \(id {other.identity()}\), found .* \(id {house.store.identity()}\)"
    with pytest.raises(OtherDatabase, match=said) as caught:
        work(QueueSettings(home=house.home.root, database_url=url), until_empty=True)
    with pytest.raises(OtherDatabase, match=said):
        serve.serve(ApiSettings(home=house.home.root, database_url=url, port=0), worker=False)
    assert caught.value.exit_code == 2


def test_files_are_handed_over_by_the_line_of_the_message(house: House, other: Store) -> None:
    owned(house)
    check(place_of(house.home), house.store)
    with pytest.raises(OtherDatabase, match=HAND_OVER) as caught:
        check(place_of(house.home), other)
    own, path = str(caught.value).rpartition("write ")[2].split(":")[0].split(" to ")
    Path(path).write_text(f"{own}\n")
    check(place_of(house.home), other)
    with pytest.raises(OtherDatabase):
        check(place_of(house.home), house.store)


def test_an_empty_home_is_anybodys_until_there_are_files(house: House, other: Store) -> None:
    """A service that was tried without a job may go on with another database."""
    check(place_of(house.home), house.store)
    check(place_of(house.home), other)
    assert not (house.home.root / MARK).exists()
    owned(house)
    check(place_of(house.home), house.store)
    with pytest.raises(OtherDatabase):
        check(place_of(house.home), other)


def test_a_home_on_a_full_disk_is_used_without_a_mark(house: House) -> None:
    """A server starts, so that something can be deleted."""
    owned(house)

    def put(own: str) -> None:
        raise StorageError("no space left")

    check(place_of(house.home)._replace(put=put), house.store)
    assert not (house.home.root / MARK).exists()


def test_a_mark_that_cannot_be_read_is_one_line(house: House) -> None:
    owned(house)
    (house.home.root / MARK).mkdir()
    with pytest.raises(EnvironmentFailure, match=r"database\.id: cannot be read \(is a directory\)"):
        check(place_of(house.home), house.store)


def test_names_that_are_none_of_ours_stay(house: House, sweep: Callable[..., Chores]) -> None:
    """In a bucket that is used for other things as well, and in a home."""
    folder = house.settings.root / "store"
    settings = house.settings.model_copy(update={"artifacts": f"file://{folder}"})
    artifacts = open_artifacts(settings, house.home)
    theirs = [folder / "datasets/imagenet.tar", folder / "jobs/nightly/1/log.txt", house.home.jobs / "notes.txt"]
    swept = [folder / f"datasets/{next(iter(STRAYS))}.tar", folder / "checkpoints/.0123.tmp"]
    for path in (*theirs, *swept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    objects.sweep_store(house.store, artifacts)
    janitor.sweep_home(house.home, house.store, LocalArtifacts(house.home))
    assert [path.exists() for path in (*theirs, *swept)] == [True, True, True, False, False]


def test_a_bucket_belongs_to_a_database_too(house: House, other: Store, sweep: Callable[..., Chores]) -> None:
    """The prefix of production in the settings of a staging instance, whose home is its own."""
    folder = house.settings.root / "store"
    production = open_artifacts(house.settings.model_copy(update={"artifacts": f"file://{folder}"}), house.home)
    assert isinstance(production, SharedArtifacts)
    found = folder / f"jobs/{house.submit().id}/1/manifest.json"
    found.parent.mkdir(parents=True)
    found.write_text("{}")
    os.utime(found, (0, 0))
    house.artifacts = production
    sweep(house, house.store)
    assert (folder / MARK).read_text().strip() == house.store.identity()
    sweep(house, other)
    assert found.exists()
    with pytest.raises(OtherDatabase, match=rf"TCNN_ARTIFACTS=file://.*{HAND_OVER}"):
        check(bucket_of(production), other)


def test_copies_have_the_id_of_their_database_and_no_other_has(house: House, other: Store, tmp_path: Path) -> None:
    with sqlite3.connect(house.store.place, isolation_level=None) as database:
        database.execute("VACUUM INTO ?", [str(tmp_path / "copy.db")])
    copy = Store(f"sqlite:///{tmp_path / 'copy.db'}")
    assert copy.identity() == house.store.identity() != other.identity()
    copy.close()


@EMPTY_ON_SQLITE
def test_a_backup_of_an_earlier_release_gets_the_same_id_at_every_upgrade(empty_url: str) -> None:
    """Whatever has been deleted since: the files that were marked after the first upgrade are still its own."""
    store = Store(empty_url)
    store.migrate()
    job = store.enqueue(new(owner="the first"))
    time.sleep(0.01)
    store.enqueue(new(owner="a later one"))

    def upgraded() -> str:
        with store.writing() as connection:
            command.downgrade(alembic_config(connection), "0018")
        store.migrate()
        return store.identity()

    before = upgraded()
    store.cancel(job.id)
    store.delete(job.id)
    assert upgraded() == before
    store.close()
