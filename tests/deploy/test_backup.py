"""Backup and restore by the very lines of docs/operations.md, while the database is in use, and over an upgrade."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from deployed import ROOT
from postgres import NoPostgres, postgres

from tcnn_api.settings import ApiSettings
from tcnn_jobs.database.upgrade import alembic_config
from tcnn_jobs.errors import JobNotFound, StoreUnavailable
from tcnn_jobs.model.jobs import Job, Kind, NewJob
from tcnn_jobs.store import Store

PAGE = (ROOT / "docs/operations.md").read_text()


def block(program: str) -> str:
    """The one block of commands of the page in which a line begins so."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if re.search(rf"^{program} ", block, re.MULTILINE)]
    return str(found)


def shell(commands: str, folder: Path, succeeds: bool = True, **variables: str) -> None:
    """Run it; `folder` gets a file `copied` if it comes to copying the files, of which there are none."""
    rsync = folder / "bin/rsync"
    rsync.parent.mkdir(exist_ok=True)
    rsync.write_text(f"#!/bin/sh\ntouch '{folder}/copied'\n")
    rsync.chmod(0o755)
    given = {"TCNN_HOME": "", **variables, "PATH": f"{rsync.parent}:{variables.get('PATH', os.environ['PATH'])}"}
    assert (subprocess.run(["bash", "-uc", commands], env=given, check=False).returncode == 0) is succeeds


def submit(store: Store) -> Job:
    return store.enqueue(NewJob(owner="local", kind=Kind.EVALUATE, request={"model": "resnet18"}))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
def test_sqlite(tmp_path: Path) -> None:
    """Twice, as backups are; the newest job is in the write-ahead log only. A copy that fails is noticed."""
    home, backup = tmp_path / "home", tmp_path / "backup"
    home.mkdir()
    backup.mkdir()
    store = Store(ApiSettings(home=home).database)
    store.migrate()
    for _ in range(2):
        job = submit(store)
        assert (home / "tcnn.db-wal").stat().st_size > 0
        shell(block("sqlite3"), tmp_path, TCNN_HOME=str(home), BACKUP=str(backup))
        (tmp_path / "copied").unlink()
        copy = Store(f"sqlite:///{backup / 'tcnn.db'}")
        copy.check()
        assert copy.get(job.id) == store.get(job.id)
        assert copy.identity() == store.identity(), "whose files they are"
        copy.close()
    store.close()
    (home / "tcnn.db").write_bytes(b"something else" * 1000)
    shell(block("sqlite3"), tmp_path, succeeds=False, TCNN_HOME=str(home), BACKUP=str(backup))
    assert not (tmp_path / "copied").exists()
    last = Store(f"sqlite:///{backup / 'tcnn.db'}")
    assert last.get(job.id).id == job.id, "the copy before is still there"
    last.close()


@pytest.fixture
def database() -> Iterator[tuple[str, Path]]:
    """An empty database, and the folder of the server's programs."""
    try:
        with postgres() as server:
            yield server.create("tcnn"), server._programs
    except NoPostgres as error:
        pytest.skip(str(error))


def to_revision(store: Store, revision: str) -> None:
    """The tables as an earlier release had them."""
    with store.writing() as connection:
        command.downgrade(alembic_config(connection), revision)


def test_postgresql(database: tuple[str, Path], tmp_path: Path) -> None:
    url, programs = database
    given = {"PATH": f"{programs}:/usr/bin:/bin", "TCNN_DATABASE_URL": url, "BACKUP": str(tmp_path)}
    store = Store(url)
    store.migrate()
    before, own = submit(store), store.identity()
    shell(block("pg_dump"), tmp_path, **given)
    assert (tmp_path / "copied").exists()
    after = submit(store)
    store.close()
    shell(block("pg_restore"), tmp_path, **given)
    restored = Store(url)
    restored.check()
    assert (restored.get(before.id).id, restored.identity()) == (before.id, own)
    with pytest.raises(JobNotFound):
        restored.get(after.id)
    assert submit(restored).number > before.number  # counters came back too
    restored.close()


def test_postgresql_of_an_earlier_release(database: tuple[str, Path], tmp_path: Path) -> None:
    """Backed up before an upgrade, restored after it, and upgraded again."""
    url, programs = database
    given = {"PATH": f"{programs}:/usr/bin:/bin", "TCNN_DATABASE_URL": url, "BACKUP": str(tmp_path)}
    store = Store(url)
    store.migrate()
    job = submit(store)
    to_revision(store, "0016")
    shell(block("pg_dump"), tmp_path, **given)
    store.migrate()
    own = store.identity()
    store.close()
    over = f'pg_restore --clean --if-exists --dbname="{url}" "$BACKUP/tcnn.dump"'  # leaves what the dump has not
    shell(over, tmp_path, **given)
    said = r"shares.*already exists.*revision 0016, but tables of a newer release are there.*into an empty database"
    with pytest.raises(StoreUnavailable, match=said):
        store.migrate()
    store.close()
    shell(block("pg_restore"), tmp_path, **given)
    store.migrate()
    store.check()
    assert (store.get(job.id).id, store.identity()) == (job.id, own)
    store.close()
