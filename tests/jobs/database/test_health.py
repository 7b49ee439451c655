"""A check of a database says whether a submission would be accepted: by a file that is locked, full, somebody else's or
not there any more, and by a server that was set to read-only.
"""

import os
import secrets
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from deeds import Child, hold, new, unavailable
from houses import migrated
from postgres import Server

from tcnn_jobs.database import health
from tcnn_jobs.store import Store


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that any user may look into, with a migrated file."""
    folder = Path(tempfile.mkdtemp(prefix="tcnn-health-"))
    folder.chmod(0o755)
    (folder / "home").mkdir()
    (folder / "home/tcnn.db").write_bytes(migrated())
    yield folder / "home"
    shutil.rmtree(folder)


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """Its queue, in use."""
    store = Store(f"sqlite:///{home / 'tcnn.db'}", wait=0.2)
    store.enqueue(new())
    store.check()
    yield store
    store.close()


@pytest.fixture
def small_disk(postgres_server: Server) -> Iterator[Path]:
    """An empty file system in memory, of 40 MB, on which the server can keep tables."""
    folder = Path(tempfile.mkdtemp(prefix="tcnn-disk-"))
    folder.chmod(0o755)
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m,mode=777", "tcnn-disk", folder], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        folder.rmdir()
        pytest.skip("a small disk cannot be mounted here")
    tables = folder / "tables"
    tables.mkdir()
    shutil.chown(tables, postgres_server.folder.stat().st_uid)
    yield tables
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


def test_a_locked_file(store: Store) -> None:
    other = Child("lock", str(store.url.render_as_string()).replace("+pysqlite", ""))
    assert other.hear() == "locked"
    with unavailable(r"tcnn\.db: the database is locked or busy for more than 0\.2 s", 30):
        store.check()
    other.kill()
    store.check()


def test_a_full_disk(store: Store) -> None:
    child = Child("check_without_room", f"sqlite:///{store.url.database}")
    refused, accepted = child.rest()
    assert refused.startswith("refused: ") and "the database cannot be used" in refused
    assert accepted == "accepted"


def test_a_file_of_another_user(store: Store, home: Path) -> None:
    if os.geteuid():
        (home / "tcnn.db").chmod(0o444)
        store.close()
        with unavailable("readonly", 30):
            store.check()
        return
    child = Child("check_as_another", f"sqlite:///{store.url.database}")
    (said,) = child.rest()
    assert said.startswith("refused: ") and "the database cannot be used" in said


def deleted(home: Path) -> None:
    for file in home.iterdir():
        file.unlink()


def moved(home: Path) -> None:
    home.rename(home.with_name("moved"))


def replaced(home: Path) -> None:
    deleted(home)
    (home / "tcnn.db").write_bytes(migrated())


@pytest.mark.parametrize("happens", [deleted, moved, replaced])
def test_a_file_that_is_not_there_any_more(store: Store, home: Path, happens: Callable[[Path], None]) -> None:
    """What would be committed to it is lost, and a new empty one would hide that."""
    happens(home)
    before = sorted(home.parent.rglob("*"))
    for call in (store.check, lambda: store.enqueue(new()), lambda: store.claim("w1"), store.statistics):
        with unavailable(r"home/tcnn\.db: this file was deleted, moved or replaced", 30):
            call()
    assert sorted(home.parent.rglob("*")) == before
    if happens is replaced:  # as after a restart
        store.close()
        store.check()
        assert store.list()[0] == []


def test_a_file_that_is_put_back(store: Store, home: Path) -> None:
    moved(home)
    with unavailable("deleted, moved or replaced", 30):
        store.enqueue(new())
    home.with_name("moved").rename(home)
    store.check()
    assert store.enqueue(new()).number == 2
    assert hold(store.claim("w1"))


def test_a_server_that_is_read_only(own_postgres_url: str, postgres_server: Server) -> None:
    """It answers, and refuses every change."""
    store = Store(own_postgres_url)
    store.enqueue(new())
    name = store.url.database
    with psycopg.connect(postgres_server.address("postgres"), autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # type: ignore[call-overload]
    store.close()
    assert len(store.list()[0]) == 1
    for call in (store.check, lambda: store.enqueue(new())):
        with unavailable("read-only transaction", 30):
            call()
    store.close()


def test_a_server_whose_disk_is_full(own_postgres_url: str, postgres_server: Server, small_disk: Path) -> None:
    """Rows that change in place are accepted for as long as a page has room; submissions are not."""
    store = Store(own_postgres_url)
    store.enqueue(new())
    store.close()
    with psycopg.connect(postgres_server.address("postgres"), autocommit=True) as admin:
        for change in (
            f"CREATE TABLESPACE small LOCATION '{small_disk}'",
            f'ALTER DATABASE "{store.url.database}" SET TABLESPACE small',
        ):
            admin.execute(change)  # type: ignore[call-overload]
        store.check()
        filling = small_disk.parent / "filling"
        with suppress(OSError), filling.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            with unavailable("No space left on device", 30):
                for _ in range(1000):
                    store.enqueue(new(note=secrets.token_hex(1000)))
            with unavailable("No space left on device", 30):
                store.check()
        finally:
            filling.unlink()
        store.check()
        store.enqueue(new())
        store.close()
        for change in (f'DROP DATABASE "{store.url.database}"', "DROP TABLESPACE small"):
            admin.execute(change)  # type: ignore[call-overload]


def test_a_server_that_forbids_temporary_files(own_postgres_url: str, postgres_server: Server) -> None:
    """It accepts submissions all the same."""
    name = Store(own_postgres_url).url.database
    with psycopg.connect(postgres_server.address("postgres"), autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" SET temp_file_limit = 0')  # type: ignore[call-overload]
    store = Store(own_postgres_url)
    store.check()
    store.close()


def test_an_answer_is_kept_for_a_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who probe neither wait for a lock each, nor hold one each."""
    monkeypatch.setattr(health, "FRESH", 3600.0)
    store.check_lately()
    other = sqlite3.connect(store.url.database or "", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store.check_lately()
    monkeypatch.setattr(store, "_fresh_until", float("-inf"))
    for _ in range(2):
        with unavailable("locked or busy", 30):
            store.check_lately()
    other.close()
    with unavailable("locked or busy", 30):
        store.check_lately()
    monkeypatch.setattr(store, "_fresh_until", float("-inf"))
    store.check_lately()
