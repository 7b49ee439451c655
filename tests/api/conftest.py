"""A real app on a real SQLite file, with two tenants, inside the test's process; jobs are moved on as workers do."""

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from houses import migrated
from serving import listening
from starlette.testclient import TestClient

from tcnn_api.app import create_app
from tcnn_api.deps import Service
from tcnn_api.responses import stream
from tcnn_api.settings import load
from tcnn_jobs.model.jobs import Artifact, Claim, Failure, IdempotencyKey, Job, Kind, NewJob, Result, Status, Upload
from tcnn_jobs.store import Store

ALICE = {"Authorization": "Bearer key-of-alice"}
BOB = {"Authorization": "Bearer key-of-bob"}
DATASET = {"classes": ["a", "b"], "images": 9, "splits": {}}
CHECKPOINT = {"base_model": "resnet18", "tcnn_version": "0.1", "layers": 3, "parameters": 9, "trained": False}
WEIGHTS = {"architecture": None, "tensors": 1, "parameters": 9, "dtypes": {"float32": 1}, "shapes": [["x", [9]]]}
_numbers = itertools.count()


@pytest.fixture(scope="module", autouse=True)
def tables() -> Iterator[None]:
    """A new SQLite file begins with its tables: to make them takes a server a quarter of a second.

    Those of `test_serve_process.py` are processes, and make theirs.
    """
    made, migrate = migrated(), Store.migrate

    def found(store: Store) -> None:
        file = store.engine.url.database
        if store.is_sqlite and file is not None and not Path(file).exists():
            Path(file).write_bytes(made)
        migrate(store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "migrate", found)
        yield


@pytest.fixture
def quick_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server looks for events ten times a second."""
    monkeypatch.setattr(stream, "POLL", 0.1)


@pytest.fixture
def listens() -> Callable[[FastAPI], AbstractContextManager[str]]:
    """Puts an app on a real port for the time of a block, which gets its URL."""
    return listening


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client with alice's key."""
    root = tmp_path_factory.mktemp("service")
    (root / "data" / "pets").mkdir(parents=True)
    (root / "secret").mkdir()
    (root / "data" / "way-out").symlink_to(root / "secret")
    settings = load(
        home=root / "home", api_keys="alice:key-of-alice,bob:key-of-bob", dataset_roots=str(root / "data"),
        hub_names="hfds/timm/*,wds//shared/*,wds/s3://data/*,hf-hub:timm/*",
        webhook_hosts="hooks.example.org,*.good.example",
        max_streams=3, max_body_mb=0.05, max_runtime=7200,
    )  # fmt: skip
    with TestClient(create_app(settings), base_url="http://localhost", headers=ALICE) as client:
        yield client


@asynccontextmanager
async def _begun(app: FastAPI) -> AsyncIterator[None]:
    """A lifespan within another. Explorers belong to the event loop that started them, and must not outlive it."""
    yield
    await app.state.service.explorers.close()


@pytest.fixture(scope="module")
def url(alice: TestClient) -> Iterator[str]:
    """Alice's app on a port; what her client's lifespan has made is not made again."""
    app: Any = alice.app
    before, app.router.lifespan_context = app.router.lifespan_context, _begun
    with listening(app) as url:
        yield url
    app.router.lifespan_context = before


@pytest.fixture
def bob(alice: TestClient) -> TestClient:
    """The other tenant, on the same server; whose lifespan is alice's."""
    return TestClient(alice.app, base_url="http://localhost", headers=BOB)


@pytest.fixture
def nobody(alice: TestClient) -> TestClient:
    """A client without a key, each from an address of its own: wrong keys are counted by it."""
    return TestClient(alice.app, base_url="http://localhost", client=(f"nobody-{next(_numbers)}", 1))


@pytest.fixture
def service(alice: TestClient) -> Service:
    """What the server's requests share."""
    found: Service = alice.app.state.service  # type: ignore[attr-defined]
    return found


Make = Callable[..., Job]


@pytest.fixture
def make(service: Service) -> Make:
    """Makes a job of a status, the way its owner and a worker would."""
    store = service.store

    def make(
        status: Status = Status.QUEUED,
        owner: str = "alice",
        kind: Kind = Kind.TRANSFORM,
        request: dict[str, Any] | None = None,
        content: bytes | None = b"0123456789" * 100,
        key: IdempotencyKey | None = None,
    ) -> Job:
        # What a worker is to take is of the highest priority, so that it takes this one, or after what was resumed.
        priority = 0 if status is Status.QUEUED else 100
        new = NewJob(owner=owner, kind=kind, request=request or {"model": "resnet50d.ra2_in1k"}, priority=priority)
        job = store.enqueue(new, key)
        if status is Status.QUEUED:
            return job
        if status is Status.CANCELLED:
            return store.cancel(job.id)
        worker = f"worker-{next(_numbers)}"
        taken = store.claim(worker)
        while taken is not None and taken.id != job.id:
            taken = store.claim(worker)
        assert taken is not None
        claim = Claim(job=job.id, worker=worker, number=taken.claim)
        if status is Status.RUNNING:
            return taken
        if status is Status.FAILED:
            return store.fail(claim, Failure(code="diverged", message="the loss is no longer finite"))
        return store.finish(claim, _result(service, taken, content))

    return make


def _result(service: Service, job: Job, content: bytes | None) -> Result:
    if content is None:
        return Result(metrics={"top1": 0.5})
    folder = service.home.attempt(job.id, job.claim)
    folder.mkdir(parents=True)
    (folder / "converted.safetensors").write_bytes(content)
    (folder / "evaluation.json").write_text("{}")
    files = tuple(_artifact(service.home.jobs, path) for path in sorted(folder.iterdir()))
    return Result(checkpoint=files[0], files=files, verification={"passed": True}, metrics={"seconds": 1.5})


def _artifact(root: Path, path: Path) -> Artifact:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return Artifact(name=path.name, path=str(path.relative_to(root)), size=len(content), sha256=digest)


@pytest.fixture
def upload(service: Service) -> Callable[..., str]:
    """Enters an upload; its files are of no importance here."""

    def upload(kind: str = "dataset", owner: str = "alice", **details: Any) -> str:
        prefix, found = {"dataset": ("ds", DATASET), "checkpoint": ("ckpt", CHECKPOINT), "weights": ("wts", WEIGHTS)}[
            kind
        ]
        identifier, details = f"{prefix}_{next(_numbers):024x}", found | details
        service.store.add_upload(
            Upload(id=identifier, owner=owner, kind=kind, name="pets.zip", path=identifier, size=1, sha256="0" * 64,
                   details=details)
        )  # fmt: skip
        return identifier

    return upload


@pytest.fixture(scope="session")
def refusal() -> Callable[..., dict[str, Any]]:
    """The body of an RFC 9457 error, checked: what every error of this server must have."""

    def refusal(answer: Any, status: int, field: str | None = None) -> dict[str, Any]:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        body: dict[str, Any] = answer.json()
        assert list(body) == ["type", "title", "status", "detail", "instance", "errors"]
        assert body["status"] == status
        assert body["instance"] == answer.request.url.path
        assert body["detail"] and "\n" not in body["detail"]
        assert answer.headers["x-request-id"]
        if field is not None:
            assert [error["field"] for error in body["errors"]] == [field], body
        return body

    return refusal
