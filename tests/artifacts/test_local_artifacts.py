"""Artifacts in this host's home: kept, found again, measured and removed."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcnn.errors import EnvironmentFailure, RequestError
from tcnn_jobs.artifacts.layout import Home
from tcnn_jobs.artifacts.local import LocalArtifacts, disk_usage
from tcnn_jobs.model.jobs import Artifact, Upload

JOB = "job_0123456789"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def artifacts(home: Home) -> LocalArtifacts:
    return LocalArtifacts(home)


def published(home: Home, claim: int, name: str, content: bytes) -> Artifact:
    """A file of an attempt."""
    path = home.attempt(JOB, claim) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return Artifact(name=path.name, path=f"{JOB}/{claim}/{name}", size=len(content), sha256="0" * 64)


@pytest.mark.parametrize("kind", ["dataset", "checkpoint"])
def test_an_upload_is_moved_in_and_removed(artifacts: LocalArtifacts, home: Home, kind: str) -> None:
    found = home.incoming / "found"
    if kind == "dataset":
        found.mkdir()
        (found / "1.png").write_bytes(b"picture")
        place = "datasets/ds_0123456789"
    else:
        found.write_bytes(b"weights")
        place = "checkpoints/ckpt_0123456789.safetensors"
    identifier = Path(place).stem
    upload = Upload(id=identifier, owner="ann", kind=kind, name="x", path=place, size=7, sha256="0" * 64)
    assert artifacts.add(upload, found) == upload
    assert not found.exists()
    assert artifacts.path(artifacts.upload(upload)) == home.root / place
    assert (home.root / place).exists()
    for _ in range(2):  # what is gone already is no error
        artifacts.remove_upload(upload)
        assert not (home.root / place).exists()


def test_attempts_are_the_folders_with_numbers(artifacts: LocalArtifacts, home: Home) -> None:
    """In the order of numbers, not of letters; of a job without files there are none."""
    assert artifacts.attempts(JOB, 10) == []
    for name in ("10", "9", "packed.zip"):
        (home.job(JOB) / name).mkdir(parents=True)
    assert artifacts.attempts(JOB, 10) == artifacts.published(JOB) == [9, 10]
    assert artifacts.attempts(JOB, 9) == [9], "of the last one its row, which is older, does not know"


def test_a_published_file_is_opened_with_its_size_and_time(artifacts: LocalArtifacts, home: Home) -> None:
    file = published(home, 1, "run/best.safetensors", b"weights")
    opened = artifacts.open(file)
    with opened.handle as handle:
        assert (handle.read(), opened.size) == (b"weights", 7)
    path = artifacts.path(artifacts.file(file))
    assert opened.modified == path.stat().st_mtime
    path.unlink()
    with pytest.raises(FileNotFoundError):
        artifacts.open(file)


def test_no_row_leads_out_of_the_home(artifacts: LocalArtifacts) -> None:
    outside = Artifact(name="x", path=f"{JOB}/../../../x", size=1, sha256="0" * 64)
    for ask in (artifacts.file, artifacts.open):
        with pytest.raises(RequestError, match="leaves jobs/"):
            ask(outside)


def test_a_file_of_an_attempt_or_none(artifacts: LocalArtifacts, home: Home) -> None:
    published(home, 2, "log.txt", b"hello")
    found = artifacts.attempt_file(JOB, 2, "log.txt")
    assert found is not None and found.read_bytes() == b"hello"
    assert artifacts.attempt_file(JOB, 1, "log.txt") is None
    assert artifacts.attempt_file(JOB, 2, "run") is None
    assert artifacts.beside(JOB, "packed.zip") == home.jobs / JOB / "packed.zip"


def test_bytes_of_every_job_until_it_is_removed(artifacts: LocalArtifacts, home: Home) -> None:
    published(home, 1, "model", bytes(1 << 20))
    home.job("job_small00000").mkdir()
    sizes = artifacts.sizes()
    assert sizes.keys() == {JOB, "job_small00000"}
    assert 1 << 20 <= sizes[JOB] < (1 << 20) + (1 << 16) and sizes["job_small00000"] < 1 << 16
    for _ in range(2):
        artifacts.remove_job(JOB)
    assert artifacts.sizes().keys() == {"job_small00000"}


def test_disk_usage_is_what_du_says(tmp_path: Path) -> None:
    """Blocks on disk: those of links once, and none for what a sparse file leaves out."""
    (tmp_path / "run").mkdir()
    whole = tmp_path / "run" / "whole"
    whole.write_bytes(bytes(range(256)) * (4 << 12))
    (tmp_path / "link").hardlink_to(whole)
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    told = subprocess.run(["du", "-sk", tmp_path], check=True, capture_output=True, text=True).stdout.split()[0]
    assert abs(disk_usage(tmp_path) - int(told) * 1024) < 1024


@contextmanager
def a_user() -> Iterator[int]:
    """This process is nobody's, if it was root's, whom no mode keeps out."""
    before = os.geteuid()
    if before:
        yield before
        return
    os.seteuid(65534)
    try:
        yield 65534
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("folder", ["jobs", "datasets", "checkpoints", "incoming"])
def test_a_home_of_which_one_folder_cannot_be_written_to(folder: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "home"
        Path(place).chmod(0o777)
        with a_user():
            home = Home(root).create()
            (root / folder).chmod(0o555)
            with pytest.raises(EnvironmentFailure, match=rf"expected folders .* can write to, found others: {folder};"):
                home.create()
            (root / folder).chmod(0o755)
            home.create()
