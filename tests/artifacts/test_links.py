"""Downloads that are sent to the store by a link that is signed: for the owner alone, for as long as was said."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from apart import URL, Host
from houses import migrated
from s3 import Gate
from starlette.testclient import TestClient

from tcnn.errors import RequestError
from tcnn_api.app import create_app
from tcnn_api.settings import ApiSettings, load
from tcnn_jobs.client import Client
from tcnn_jobs.model.jobs import Job

CONTENT = b"weights" * 1000
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'
ALICE, BOB = ({"Authorization": f"Bearer key-of-{name}"} for name in ("alice", "bob"))


@pytest.fixture(scope="module")
def made(server: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Job]]:
    """A host, and a job of alice's that has succeeded on it, for all tests of this file."""
    root = tmp_path_factory.mktemp("links")
    (root / "shared.db").write_bytes(migrated())
    with pytest.MonkeyPatch.context() as here:
        server.empty()
        for name, value in server.environment.items():
            here.setenv(name, value)
        host = Host(root / "first" / "home", f"sqlite:///{root / 'shared.db'}")
        job = host.submit(owner="alice")
        host.courier("succeed()").run(until_empty=True)
        yield host, job
        host.store.close()


@pytest.fixture
def gate(server: Gate) -> Gate:
    """The server, with what that job left in it."""
    server.refuse = lambda method, path: None
    server.seen.clear()
    return server


@pytest.fixture
def hosts(made: tuple[Host, Job], gate: Gate) -> list[Host]:
    return [made[0]]


@pytest.fixture
def job(made: tuple[Host, Job]) -> Job:
    return made[1]


@contextmanager
def _api(hosts: list[Host], folder: Path, **more: object) -> Iterator[TestClient]:
    settings = ApiSettings(
        home=folder / "api", database_url=hosts[0].settings.database_url,
        api_keys=("alice:key-of-alice", "bob:key-of-bob"), **{"artifacts": URL, "presigned_seconds": 120, **more},
    )  # fmt: skip
    with TestClient(create_app(settings), base_url="http://localhost", follow_redirects=False) as client:
        yield client


def test_the_owner_is_sent_to_the_store(hosts: list[Host], job: Job, gate: Gate, tmp_path: Path) -> None:
    with _api(hosts, tmp_path) as api:
        for path in (f"/jobs/{job.id}/checkpoint", f"/jobs/{job.id}/files/best.safetensors"):
            sent = api.get(path, params={"redirect": "true"}, headers=ALICE)
            assert sent.status_code == 307, sent.text
            assert (sent.headers["etag"], sent.headers["cache-control"]) == (ETAG, "no-store")
            link = sent.headers["location"]
            assert link.startswith(f"{gate.url}/results/team/jobs/") and "key-of" not in link
            assert parse_qs(urlsplit(link).query)["X-Amz-Expires"] == ["120"]
            found = httpx.get(link, trust_env=False)
            assert found.content == CONTENT
            assert found.headers["content-disposition"].startswith('attachment; filename="')
            assert found.headers["content-type"] == "application/octet-stream"
            part = httpx.get(link, headers={"Range": "bytes=6990-"}, trust_env=False)
            assert (part.status_code, part.content) == (206, CONTENT[6990:])
            assert api.get(path, headers={**ALICE, "If-None-Match": ETAG}, params={"redirect": "1"}).status_code == 304
            assert api.get(path, headers=BOB, params={"redirect": "true"}).status_code == 404
            assert api.get(path, params={"redirect": "true"}).status_code == 401
            assert api.get(path, headers=ALICE).content == CONTENT, "who cannot be sent elsewhere gets it here"
            assert api.head(path, headers=ALICE, params={"redirect": "true"}).headers["content-length"] == "7000"


def test_without_the_setting_the_server_answers(hosts: list[Host], job: Job, gate: Gate, tmp_path: Path) -> None:
    with _api(hosts, tmp_path, presigned_seconds=None) as api:
        found = api.get(f"/jobs/{job.id}/checkpoint", params={"redirect": "true"}, headers=ALICE)
        assert (found.status_code, found.content) == (200, CONTENT)


def test_the_setting_takes_a_store_that_signs(tmp_path: Path) -> None:
    for artifacts in (None, f"file://{tmp_path}/store"):
        with pytest.raises(
            RequestError, match=r"TCNN_PRESIGNED_SECONDS: .*expected a store of results at s3://.*, got 60"
        ):
            load(home=tmp_path, artifacts=artifacts, presigned_seconds=60)


@pytest.mark.parametrize("refuses", [False, True])
def test_the_client_fetches_from_the_store_or_else_from_the_server(
    hosts: list[Host], job: Job, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """The real client; the store is not told its key, and may be out of its reach."""
    told: list[httpx.Headers] = []
    stream = httpx.stream

    def watched(method: str, url: str, **options: object) -> object:
        told.append(httpx.Headers(options["headers"]))  # type: ignore[arg-type]
        return stream(method, url, trust_env=False, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx, "stream", watched)
    if refuses:
        gate.refuse = lambda method, path: (403, "AccessDenied") if "Signature=" in path else None
    with _api(hosts, tmp_path) as api, Client("http://localhost", "key-of-alice") as client:
        api.headers.update(ALICE)
        client._server.http = api
        out = client.download(job.id, tmp_path / "got.safetensors")
    assert out.read_bytes() == CONTENT
    assert len(told) == 1 and "authorization" not in told[0]
    assert any("Signature=" in path for method, path in gate.seen if method == "GET")


def test_a_file_of_another_size_is_not_linked_to(hosts: list[Host], job: Job, gate: Gate) -> None:
    """What was written over in the store is not given out under the digest of what was there."""
    whole = hosts[0].store.get(job.id).checkpoint
    assert whole is not None
    for size, is_linked in ((7000, True), (7001, False)):
        file = whole.model_copy(update={"size": size})
        assert (hosts[0].artifacts.link(file, 60, content_type="text/plain") is not None) is is_linked


def test_a_file_that_is_gone_is_not_linked_to(hosts: list[Host], job: Job, tmp_path: Path) -> None:
    """The last one, for it takes the job's files away."""
    hosts[0].artifacts.bucket.remove(*hosts[0].artifacts.bucket.keys("jobs"))
    with _api(hosts, tmp_path) as api:
        gone = api.get(f"/jobs/{job.id}/checkpoint", params={"redirect": "true"}, headers=ALICE)
        assert gone.status_code == 404 and "no longer on the server" in gone.json()["detail"]
