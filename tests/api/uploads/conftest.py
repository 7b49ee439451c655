"""One server for all tests of uploads, and what a refusal must leave: nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from serving import SMALL, Server, hosted, look_here, problem

from tcnn_api.routes.uploads import checkpoints, datasets, gallery, weights


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    allowed = {name.removeprefix("TCNN_").lower(): value for name, value in SMALL.items()}
    with hosted(tmp_path_factory.mktemp("service") / "home", **allowed) as running:
        yield running


@pytest.fixture
def looked_at_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are looked at by a thread of the server: a process for each takes a quarter of a second.

    What such a process is has `test_confined.py`; bombs and what is accepted otherwise have real ones.
    """
    look_here(monkeypatch, checkpoints, datasets, gallery, weights)


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def refused(server: Server, client: httpx.Client) -> Callable[..., str]:
    """Uploads a file that must be refused, without leaving anything; returns what the field's message says."""

    def refused(route: str, path: Path, status: int = 422, name: str | None = None) -> str:
        before = server.files()
        with path.open("rb") as file:
            answer = client.post(route, files={"file": (name or path.name, file)})
        assert answer.status_code == status, answer.text
        body = problem(answer)
        assert server.files() == before
        assert client.get(route).json()["data"] == []
        return body["detail"]

    return refused
