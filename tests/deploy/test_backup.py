"""Backup and restore by the very lines of docs/operations.md, while the database is in use."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import ROOT
from postgres import NoPostgres, postgres

from tcnn_api.settings import ApiSettings
from tcnn_jobs.errors import JobNotFound
from tcnn_jobs.model.jobs import Job, Kind, NewJob
from tcnn_jobs.store import Store

PAGE = (ROOT / "docs/operations.md").read_text()


def line(program: str) -> str:
    """The one line of the page that begins so, without its comment."""
    (found,) = re.findall(rf"^({program} .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
    return found


def shell(command: str, **variables: str) -> None:
    subprocess.run(["bash", "-euc", command], env={"PATH": os.environ["PATH"], **variables}, check=True)


def submit(store: Store) -> Job:
    return store.enqueue(NewJob(owner="local", kind=Kind.EVALUATE, request={"model": "resnet18"}))


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the sqlite3 program is not installed")
def test_sqlite(tmp_path: Path) -> None:
    """The newest job is in the write-ahead log only."""
    home, backup = tmp_path / "home", tmp_path / "backup"
    home.mkdir()
    backup.mkdir()
    store = Store(ApiSettings(home=home).database)
    store.migrate()
    job = submit(store)
    assert (home / "tcnn.db-wal").stat().st_size > 0
    shell(line("sqlite3"), TCNN_HOME=str(home), BACKUP=str(backup))
    copy = Store(f"sqlite:///{backup / 'tcnn.db'}")
    copy.check()
    assert copy.get(job.id) == store.get(job.id)
    copy.close()
    store.close()


@pytest.fixture
def database() -> Iterator[tuple[str, Path]]:
    """An empty database, and the folder of the server's programs."""
    try:
        with postgres() as server:
            yield server.create("tcnn"), server._programs
    except NoPostgres as error:
        pytest.skip(str(error))


def test_postgresql(database: tuple[str, Path], tmp_path: Path) -> None:
    url, programs = database
    given = {"PATH": f"{programs}:/usr/bin:/bin", "TCNN_DATABASE_URL": url, "BACKUP": str(tmp_path)}
    store = Store(url)
    store.migrate()
    before = submit(store)
    shell(line("pg_dump"), **given)
    after = submit(store)
    store.close()
    shell(line("pg_restore"), **given)
    restored = Store(url)
    restored.check()
    assert restored.get(before.id).id == before.id
    with pytest.raises(JobNotFound):
        restored.get(after.id)
    assert submit(restored).number > before.number  # counters came back too
    restored.close()
