"""Downloads of the client: over wires that break, from servers that are busy, through proxies that compress."""

import gzip
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from command_and_worker import CONTENT, Run, Worker
from cutting import compressing, relay, scripted
from serving import Server

from tcnn.errors import CheckpointError, OutputError, RequestError
from tcnn_jobs.client.client import Client
from tcnn_jobs.client.refusals import ServerFailure
from tcnn_jobs.model.jobs import Claim


def test_a_broken_download_goes_on(server: Server, worker: Worker, running: Claim, tmp_path: Path) -> None:
    worker.finish(running)
    with relay(server.url, 300_000, cuts=3) as wire, Client(wire.url, "key-of-alice") as client:
        path = client.download(running.job, tmp_path / "t.safetensors")
        assert wire.cuts == 3
    assert path.read_bytes() == CONTENT
    assert [item.name for item in tmp_path.iterdir()] == ["t.safetensors"]


def test_what_is_not_what_was_announced_is_not_kept(
    client: Client, worker: Worker, running: Claim, tmp_path: Path
) -> None:
    worker.finish(running, CONTENT[:-1] + b"x")
    with pytest.raises(CheckpointError, match="nothing was kept"):
        client.download(running.job, tmp_path / "t.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_in_the_middle(tmp_path: Path) -> None:
    """As when its database is away for a moment."""
    sha = hashlib.sha256(CONTENT).hexdigest()
    file = {"name": "t.safetensors", "size": len(CONTENT), "sha256": sha, "url": "/file"}
    job = {"id": "job_1", "status": "succeeded", "result": {"checkpoint": file, "files": [file]}}
    busy = (503, {"Retry-After": "0"}, b"{}")
    script = (200, {}, json.dumps(job).encode()), busy, busy, busy, (200, {}, CONTENT)
    with scripted(*script) as server, Client(server.url) as client:
        assert client.download("job_1", tmp_path / "t").read_bytes() == CONTENT
    assert len(server.asked) == 5
    away = scripted(script[0], busy)
    with away as server, Client(server.url, patience=0.1) as client, pytest.raises(ServerFailure, match="503"):
        client.download("job_1", tmp_path / "u")
    assert [item.name for item in tmp_path.iterdir()] == ["t"]


def test_what_there_is_not(client: Client, worker: Worker, running: Claim, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no checkpoint; it is running"):
        client.download(running.job, tmp_path / "t")
    worker.finish(running)
    with pytest.raises(RequestError, match="has no file 'other'"):
        client.download(running.job, tmp_path / "t", name="other")
    (tmp_path / "t").write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        client.download(running.job, tmp_path / "t")
    assert (tmp_path / "t").read_text() == "mine"
    client.download(running.job, tmp_path / "t", name="best.safetensors", force=True)
    assert (tmp_path / "t").read_bytes() == CONTENT


@pytest.mark.parametrize("always", [False, True])
def test_through_a_proxy_that_compresses(
    server: Server, worker: Worker, running: Claim, run: Run, tmp_path: Path, always: bool
) -> None:
    """What was asked for as it is comes so from a good proxy, and is unpacked from one that does not listen."""
    worker.write(running, "log.txt", "hello\n" * 1000)
    worker.finish(running)
    with compressing(server.url, always) as proxy, Client(proxy, "key-of-alice") as client:
        assert client.download(running.job, tmp_path / "t.safetensors").read_bytes() == CONTENT
        with zipfile.ZipFile(client.download_all(running.job, tmp_path / "all.zip")) as packed:
            assert CONTENT in [packed.read(name) for name in packed.namelist()]
        assert client.log(running.job) == "hello\n" * 1000
        assert run("download", running.job, "u.safetensors", "--server", proxy).code == 0
    assert (tmp_path / "u.safetensors").read_bytes() == CONTENT


def test_what_came_compressed_and_cannot_be_unpacked(tmp_path: Path) -> None:
    file = {"name": "t", "size": 9, "sha256": hashlib.sha256(b"123456789").hexdigest(), "url": "/file"}
    job = {"id": "job_1", "status": "succeeded", "result": {"checkpoint": file, "files": [file]}}
    spoilt = (200, {"Content-Encoding": "gzip"}, b"x" + gzip.compress(b"123456789"))
    with scripted((200, {}, json.dumps(job).encode()), spoilt) as server, Client(server.url) as client:
        for get in (
            lambda: client.download("job_1", tmp_path / "t"),
            lambda: client.download_all("job_1", tmp_path / "t"),
            lambda: client.log("job_1"),
        ):
            with pytest.raises(ServerFailure, match="came compressed and cannot be unpacked"):
                get()
    assert list(tmp_path.iterdir()) == []
