"""A server without a worker, a worker that the test plays, and the command line."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_and_worker import Run, Worker, runner
from serving import Server, hosted, look_here

from tcnn_api.responses import stream
from tcnn_api.routes.uploads import checkpoints, datasets, weights
from tcnn_jobs.client.client import Client
from tcnn_jobs.model.jobs import Claim


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What is uploaded is looked at by its threads: `tests/api/uploads` has the processes."""
    keys = "alice:key-of-alice,bob:key-of-bob"
    with pytest.MonkeyPatch.context() as patch:
        look_here(patch, checkpoints, datasets, weights)
        with hosted(tmp_path_factory.mktemp("service") / "home", api_keys=keys) as running:
            yield running


@pytest.fixture(autouse=True)
def quick_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for events ten times a second."""
    monkeypatch.setattr(stream, "POLL", 0.1)


@pytest.fixture
def worker(server: Server) -> Iterator[Worker]:
    made = Worker(server.home)
    yield made
    made.store.close()


@pytest.fixture
def run(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs `tcnn jobs …` in an empty directory, with the server and the key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCNN_SERVER", server.url)
    monkeypatch.setenv("TCNN_API_KEY", "key-of-alice")
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield runner(capsys)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, "key-of-alice", patience=20) as made:
        yield made


@pytest.fixture
def running(client: Client, worker: Worker) -> Claim:
    """A job that was submitted and taken."""
    job = client.submit("transform", {"model": "resnet18", "pretrained": False})
    claim = worker.take()
    assert claim.job == job["id"]
    return claim
