"""A schema that a newer release has changed while an older one still uses it: only added to, and used on."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from alembic import command
from deeds import new
from sampled import ON_SQLITE
from sqlalchemy import Connection, inspect, text

from tcnn_jobs.database.upgrade import alembic_config, head
from tcnn_jobs.errors import StoreUnavailable
from tcnn_jobs.model.jobs import Claim, Status
from tcnn_jobs.store import Store

ROOT = Path(__file__).parents[3]
BEFORE = {
    "0014": "c2ee744ee7b782502f4a0640fead3346ff9818f0",
    "0015": "f4eb9398e38bdef4a27c6f3b77ea411830ee83fb",
    "0017": "ef1ac3aa108a1190c9d0b54fa9dcef43caf9da42",
}
"""The last commits with these schemas; a worker of the first knows nothing of request versions, one of the last nothing
of jobs that only wait for slots."""
SINCE = "0014"
"""From here on migrations only add, unless they raise `compatibility.oldest`."""

IMPORTS = """
import sys
try:
    from tcnn_jobs.model import Beat, Claim, Kind, NewJob, Progress, Result, WorkerInfo
except ImportError:
    from tcnn_jobs.model.jobs import Beat, Claim, Kind, NewJob, Progress, Result
    from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store
store = Store(sys.argv[1])
"""
OLD_DEEDS = """
first, second = (store.enqueue(NewJob(owner="ann", kind=Kind.TRANSFORM, request={"model": "resnet18"})) for _ in "12")
taken = store.claim("old", tuple(Kind))
claim = Claim(job=taken.id, worker="old", number=taken.claim)
info = WorkerInfo(name="old", host="here", slots=1, version="old")
held = store.heartbeat(info, [Beat(claim=claim, progress=Progress(phase="training"))])
store.finish(claim, Result(notes=("by the old one",)))
store.cancel(second.id)
store.resume(second.id)
assert store.reap(60) == [] and store.workers()[0].info.name == "old" and store.statistics().queued == {"transform": 1}
print(__import__("tcnn_jobs").__file__, *held.values(), *(job.status for job in store.list()[0]))
"""


@pytest.fixture(
    scope="module", params=[SINCE, *(pytest.param(one, marks=pytest.mark.slow) for one in ("0015", "0017"))]
)
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages as they were then."""
    asked = ("git", "-C", str(ROOT), "archive", BEFORE[request.param], "tcnn", "tcnn_jobs")
    found = subprocess.run(asked, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"THE RELEASE BEFORE IS NOT TESTED: there is no git history here ({found.stderr.decode().strip()})")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@ON_SQLITE
def test_code_of_the_release_before_works_on_todays_schema(store: Store, url: str, before: Path) -> None:
    """A server or worker of it that was running goes on, and today's sees what it did."""
    said = _do(before, OLD_DEEDS, url)
    assert said == [str(before / "tcnn_jobs" / "__init__.py"), "held", "queued", "succeeded"]
    queued, done = store.list()[0]
    assert done.result is not None and done.result.notes == ("by the old one",)
    taken = store.claim("new")
    assert taken is not None and (taken.id, taken.request_version) == (queued.id, 1)
    assert store.versions() == {"old": 1}


def _do(before: Path, deeds: str, url: str) -> list[str]:
    """What code of then says, in words."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS + deeds, url], cwd=before, env={"PYTHONPATH": str(before)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


@ON_SQLITE
def test_either_release_takes_what_waited_for_slots_with_the_other(store: Store, url: str, before: Path) -> None:
    """An older one takes it from a silent worker, and what it claims itself counts from the claim, also here."""
    job = store.enqueue(new(slots=2))
    waiting = store.claim("new", slots=1, later=2)
    assert waiting is not None and waiting.id == job.id
    taken = "*(job.status for job in store.reap(-1)), store.claim('old', tuple(Kind), slots=2).attempt"
    assert _do(before, f"print({taken})", url) == ["queued", "2"]
    with store.writing() as connection:
        connection.execute(text("UPDATE jobs SET started_at = started_at - 1000"))
    after = store.hand_back(Claim(job=job.id, worker="old", number=2))
    assert after.ran == pytest.approx(1000, abs=60)


def test_migrations_only_add(empty_url: str) -> None:
    """Whatever a table had, it still has, and nobody who does not know a new column has to fill it."""
    store = Store(empty_url)
    with store.writing() as connection:
        command.upgrade(alembic_config(connection), SINCE)
        old = _columns(connection)
    store.migrate()
    with store.reading() as connection:
        new = _columns(connection)
    for table, columns in old.items():
        assert columns.items() <= new[table].items()
        for name in new[table].keys() - columns.keys():
            _, nullable, default = new[table][name]
            assert nullable or default is not None, f"{table}.{name}: older code does not fill it"
    store.close()


def _columns(connection: Connection) -> dict[str, dict[str, tuple[str, bool, object]]]:
    look = inspect(connection)
    return {
        table: {c["name"]: (str(c["type"]), c["nullable"], c["default"]) for c in look.get_columns(table)}
        for table in look.get_table_names()
    }


def test_a_newer_schema_that_was_only_added_to_is_used(store: Store, url: str) -> None:
    """A worker of this release starts beside the next one."""
    with store.writing() as connection:
        connection.execute(text("ALTER TABLE jobs ADD COLUMN colour TEXT"))
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    other = Store(url)
    other.migrate()
    other.check()
    with other.reading() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"
    other.close()


def test_a_newer_schema_that_took_something_away_is_left_alone(store: Store) -> None:
    """And told."""
    with store.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        connection.execute(text("UPDATE compatibility SET oldest = '9998'"))
    with pytest.raises(StoreUnavailable, match=f"the schema is 9999, expected {head()}"):
        store.check()
    with pytest.raises(StoreUnavailable, match=r"does not know its schema, 9999; use the version that made it"):
        store.migrate()


def test_newer_requests_are_left_to_newer_workers(store: Store) -> None:
    """On both databases, whatever stands before and behind them."""
    newer, older = store.enqueue(new(priority=5, request_version=7)), store.enqueue(new())
    taken = store.claim("w1", understands=6)
    assert taken is not None and taken.id == older.id
    assert store.claim("w1", understands=6) is None
    assert store.get(newer.id).status is Status.QUEUED
    taken = store.claim("w2", understands=7)
    assert taken is not None and taken.id == newer.id
