"""Workers of two releases, each installed from a wheel of its own, at one queue: one leaves, the other comes, no job is
lost.

The release before is the last commit with the schema 0015, whose workers understand requests of version 2, as those of
0.2.0 do. Today's is installed as 0.3.0. The release after it is made here: a migration, a setting and a
request version more.
"""

import io
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from houses import House, RealWorkers, published, submit, wait_for, wait_for_end, wait_for_training
from tiny_runs import colours

from tcnn_jobs.database.upgrade import head
from tcnn_jobs.model.jobs import REQUEST_VERSION, Job, Status
from tcnn_jobs.store import Store

ROOT = Path(__file__).parents[2]
BEFORE = {
    "0015": ("f4eb9398e38bdef4a27c6f3b77ea411830ee83fb", 2),
}
"""By its schema: the commit, and the newest requests that its workers understand."""
PARTS = ("tcnn", "tcnn_jobs", "tcnn_api", "pyproject.toml", "README.md", "LICENSE")
UV = Path(sys.executable).with_name("uv")
CONVERT = {"model": "test_resnet", "pretrained": False}


def _installed(source: Path, version: str, folder: Path) -> Path:
    """The folder in which a wheel of this source is installed, as a release of a number."""
    (source / "tcnn" / "version.py").write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    for words in (
        (
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            source,
        ),
        (
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            folder / "installed",
            f"{folder}/tcnn-{version}-py3-none-any.whl",
        ),
    ):
        done = subprocess.run([UV, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder / "installed"


def _of(root: Path, packages: Path) -> RealWorkers:
    """Workers whose tcnn is the one that is installed in this folder."""
    workers = RealWorkers(root, PYTHONPATH=str(packages), PYTHONSAFEPATH="1")
    asked = "import tcnn_jobs.worker.worker as it; print(it.__file__)"
    found = subprocess.run([sys.executable, "-c", asked], env=workers.environment, capture_output=True, check=True)
    assert Path(found.stdout.decode().strip()).is_relative_to(packages)
    return workers


def _copy(folder: Path) -> Path:
    """Today's source."""
    folder.mkdir(parents=True)
    for name in PARTS:
        part, leave = ROOT / name, shutil.ignore_patterns("__pycache__")
        shutil.copytree(part, folder / name, ignore=leave) if part.is_dir() else shutil.copy(part, folder)
    return folder


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where today's release is installed."""
    folder = tmp_path_factory.mktemp("today")
    return _installed(_copy(folder / "source"), "0.3.0", folder)


def _workers_of(store: Store, job: Job) -> list[str]:
    return [event.data["worker"] for event in store.events(job.id) if event.kind == "started"]


def _name(workers: RealWorkers, number: int) -> str:
    """What a worker's own process calls itself, as far as it can be told from outside."""
    return f"-{workers.processes[number].pid}-"


def _one_by_each(house: House, first: str, second: str) -> None:
    """Convert until both have had a job."""
    done: set[str] = set()
    for _ in range(20):
        jobs = [house.submit(request=CONVERT) for _ in range(2)]
        for job in jobs:
            assert wait_for_end(house, job).status is Status.SUCCEEDED
            done |= {part for part in (first, second) for name in _workers_of(house.store, job) if part in name}
        if len(done) == 2:
            return
    raise AssertionError(f"only {done} worked")


@pytest.mark.parametrize("schema", BEFORE)
def test_todays_worker_joins_those_of_the_release_before(tmp_path: Path, today: Path, schema: str) -> None:
    """It brings the database up to date under them, takes over what they hand back, and is left alone at the end."""
    commit, understands = BEFORE[schema]
    found = subprocess.run(("git", "-C", ROOT, "archive", commit, *PARTS), capture_output=True, check=False)
    if found.returncode:
        pytest.skip("THE RELEASE BEFORE IS NOT TESTED: there is no git history here")
    root = tmp_path / "home"
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    root.mkdir()
    old, new = _of(root, _installed(tmp_path / "source", "0.2.0", tmp_path)), _of(root, today)
    try:
        first = old.start()
        wait_for(lambda: "working" in (root / "worker-0.log").read_text())
        images = colours(tmp_path / "images")
        second = new.start()
        house = wait_for(lambda: _opened(root))
        assert len(wait_for(lambda: (there := house.store.workers())[1:] and there)) == 2
        told = {state.info.version.split(",")[0]: state.info.request_version for state in house.store.workers()}
        assert told == {"tcnn 0.2.0": understands, "tcnn 0.3.0": REQUEST_VERSION}
        _one_by_each(house, _name(old, 0), _name(new, 0))
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
        training = submit(house, images, epochs=60)  # long enough to be met on its way
        wait_for_training(house, training)
        new.start()
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        after = wait_for_end(house, training)
        assert (after.status, after.attempt) == (Status.SUCCEEDED, 1)
        begun, ended = _workers_of(house.store, training)
        assert _name(old, 0) in begun and _name(new, 1) in ended
        published(house, training)
        house.store.close()
    finally:
        old.end()
        new.end()


def _opened(root: Path) -> House | None:
    """The queue, once it has today's schema."""
    house = House(root)
    with house.store.reading() as connection:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return house if found == head() else None


def _next_release(folder: Path) -> Path:
    _copy(folder)
    jobs = folder / "tcnn_jobs"
    for file, was, now in (
        ("model/jobs.py", f"REQUEST_VERSION = {REQUEST_VERSION}", f"REQUEST_VERSION = {REQUEST_VERSION + 1}"),
        (
            "model/requests.py",
            "ADDED: dict[str, int] = {",
            f'ADDED: dict[str, int] = {{"colour": {REQUEST_VERSION + 1}, ',
        ),
        ("model/requests.py", "    webhook: Annotated[", '    colour: str = "red"\n    webhook: Annotated['),
    ):
        text = (jobs / file).read_text()
        assert text.count(was) == 1
        (jobs / file).write_text(text.replace(was, now))
    (jobs / "migrations" / "versions" / "r9999_colour.py").write_text(
        f'import sqlalchemy as sa\nfrom alembic import op\nrevision, down_revision = "9999", "{head()}"\n'
        'def upgrade(): op.add_column("jobs", sa.Column("colour", sa.Text))\n'
    )
    return folder


def test_the_next_release_joins_todays_workers(house: House, tmp_path: Path, today: Path) -> None:
    """Requests with what only it knows are its own; today's worker may even start on its schema."""
    root, after = house.home.root, tmp_path / "after"
    workers = _of(root, today)
    later = _of(root, _installed(_next_release(after / "source"), "0.3.0", after))
    try:
        workers.start()
        newer = house.submit(request={**CONVERT, "colour": "blue"}, request_version=REQUEST_VERSION + 1)
        plain = house.submit(request=CONVERT)
        assert wait_for_end(house, plain).status is Status.SUCCEEDED
        waiting = house.store.get(newer.id)
        assert (waiting.status, waiting.attempt) == (Status.QUEUED, 0)
        assert waiting.waiting_for == "waits for a worker of a newer release"
        later.start()
        assert wait_for_end(house, newer).status is Status.SUCCEEDED
        assert all(_name(later, 0) in name for name in _workers_of(house.store, newer))
        assert [state.info.request_version for state in house.store.workers()].count(REQUEST_VERSION + 1) == 1
        assert workers.processes[0].poll() is None, "today's goes on"
        workers.start()
        wait_for(lambda: len(house.store.workers()) == 3)
        _one_by_each(house, _name(workers, 1), _name(later, 0))
    finally:
        workers.end()
        later.end()
