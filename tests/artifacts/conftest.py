"""One S3 server for all tests of this folder, empty before each, which has its own gate; two hosts share it and a
database.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from apart import URL, Host, two_hosts
from s3 import Gate, gated, s3

from tcnn_jobs.artifacts import bucket as bucket_of
from tcnn_jobs.artifacts.bucket import Bucket


@pytest.fixture(scope="session")
def server() -> Iterator[Gate]:
    with s3() as gate:
        yield gate


@pytest.fixture
def gate(server: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """The server, empty, and known to this process; what tests before have left on its way does not come here."""
    with gated(server.behind, server.process) as gate:
        gate.empty()
        for name, value in gate.environment.items():
            monkeypatch.setenv(name, value)
        yield gate


@pytest.fixture
def bucket(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """It tries half as often."""
    monkeypatch.setattr(bucket_of, "TRIES", 3)
    return Bucket(URL, pause=0.01)


@pytest.fixture
def hosts(gate: Gate, tmp_path: Path) -> Iterator[list[Host]]:
    """Two of them, on one database."""
    with two_hosts(tmp_path, URL) as hosts:
        yield hosts


@pytest.fixture
def near(tmp_path: Path) -> Iterator[list[Host]]:
    """Two whose store is a folder: for what is the same wherever the objects lie, and takes many requests."""
    with two_hosts(tmp_path, f"file://{tmp_path / 'store'}") as hosts:
        yield hosts
