"""One tenant cannot take what all need: threads, memory; and what a tenant hears whose quota is used up."""

import asyncio
import io
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from serving import look_here
from starlette.testclient import TestClient

from tcnn.errors import EnvironmentFailure
from tcnn_api import middleware
from tcnn_api.deps import Service
from tcnn_api.errors import TooManyAtOnce
from tcnn_api.pools import Pool
from tcnn_api.routes.uploads import datasets
from tcnn_jobs.model.jobs import Status

Refusal = Callable[..., dict[str, Any]]


@pytest.fixture
def silent() -> Iterator[threading.Event]:
    """What a bucket waits for that says nothing; in the end it does."""
    event = threading.Event()
    yield event
    event.set()


def test_a_pool_has_a_share_an_end_and_no_part_in_others(silent: threading.Event) -> None:
    async def use() -> None:
        pool = Pool("the bucket", share=2, queue=4, seconds=0.6)
        calls = [asyncio.ensure_future(pool.run("ann", silent.wait, 30)) for _ in range(4)]
        await asyncio.sleep(0.05)
        with pytest.raises(TooManyAtOnce, match="4 requests of yours wait for the bucket already"):
            await pool.run("ann", lambda: 1)
        assert await pool.run("bob", lambda: 2) == 2
        for call in calls:
            with pytest.raises(EnvironmentFailure, match=r"the bucket gave no answer within 0\.6 s"):
                await call
        await asyncio.sleep(0.05)
        assert pool.held("ann") == 2, "threads count until they end, those that never began do not"
        silent.set()
        while pool.held("ann"):
            await asyncio.sleep(0.01)
        with pytest.raises(ZeroDivisionError):
            await pool.run("ann", lambda: 1 // 0)
        assert await pool.run("ann", lambda: 3) == 3

    asyncio.run(use())


def test_a_silent_bucket_stops_neither_the_database_nor_other_tenants(
    alice: TestClient, bob: TestClient, service: Service, make: Any, silent: threading.Event,
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal,
) -> None:  # fmt: skip
    """45 requests for logs, which nobody answers; and everybody else is answered at once."""
    job, theirs = make(Status.SUCCEEDED), make(Status.SUCCEEDED, owner="bob")
    attempts = service.artifacts.attempts

    def hang(name: str, *rest: Any, **given: Any) -> Any:
        if name == job.id:
            silent.wait(60)
        return attempts(name, *rest, **given)

    monkeypatch.setattr(service.artifacts, "attempts", hang)
    with ThreadPoolExecutor(45) as pool:
        waiting = [pool.submit(alice.get, f"/jobs/{job.id}/logs") for _ in range(45)]
        for _ in range(6000):
            if service.pools.storage.held("alice") == 16:
                break
            time.sleep(0.01)
        for client in (alice, bob):
            assert client.get("/jobs").status_code == 200
            assert client.post("/transform", json={"model": "resnet18"}).status_code == 202
        assert bob.get(f"/jobs/{theirs.id}/logs").status_code == 404
        assert len(bob.get(f"/jobs/{theirs.id}/checkpoint").content) == 1000
        refusal(alice.get(f"/jobs/{job.id}/logs"), 429)
        silent.set()
        assert sorted({call.result(30).status_code for call in waiting}) == [404, 429]


@pytest.mark.parametrize("query", [{"q": "x"}, {"tag": "x"}, {"sort": "-metrics.top1"}])
def test_searches_take_turns(
    alice: TestClient, bob: TestClient, service: Service, silent: threading.Event, query: dict[str, str],
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal,
) -> None:  # fmt: skip
    """One of a tenant at a time: whoever searches, or sorts, for ever holds up neither lists nor other tenants."""
    plain, running = service.store.list, threading.Event()

    def slow(owner: str | None, **options: Any) -> Any:
        if owner == "alice" and (options["search"] or options["tags"] or options["order"].by != "created"):
            running.set()
            silent.wait(60)
        return plain(owner, **options)

    monkeypatch.setattr(service.store, "list", slow)
    with ThreadPoolExecutor(9) as pool:
        calls = [pool.submit(alice.get, "/jobs", params=query) for _ in range(9)]
        assert running.wait(60)
        for client, given in ((alice, {}), (alice, {"sort": "created"}), (bob, {}), (bob, query)):
            assert client.get("/jobs", params=given).status_code == 200
        while not any(call.done() for call in calls):
            time.sleep(0.01)
        assert [call.result().status_code for call in calls if call.done()] == [429]
        silent.set()
        assert sorted(call.result(30).status_code for call in calls) == [200] * 8 + [429]


def test_downloads_of_a_tenant_are_bounded(
    alice: TestClient, bob: TestClient, service: Service, make: Any, refusal: Refusal
) -> None:
    """Each has a connection and an open file for as long as it lasts, and nothing of either afterwards."""
    job, theirs = make(Status.SUCCEEDED).id, make(Status.SUCCEEDED, owner="bob").id
    with ExitStack() as under_way:
        for _ in range(32):
            under_way.enter_context(service.pools.downloads.hold("alice"))
        for path in ("checkpoint", "files/evaluation.json", "archive"):
            refusal(alice.get(f"/jobs/{job}/{path}"), 429)
        assert bob.get(f"/jobs/{theirs}/checkpoint").status_code == 200
    for _ in range(33):
        assert alice.get(f"/jobs/{job}/checkpoint").status_code == 200


Seen = list[int]


@pytest.fixture
def pictures(service: Service, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Sizes of pictures that are in memory together, whenever one of them is looked at."""
    seen: Seen = []
    held = 0

    async def ask(job: str, checkpoint: Any, asked: Any, content: bytes = b"", tenant: str = "") -> bytes:
        nonlocal held
        held += len(content)
        seen.append(held)
        await asyncio.sleep(0.005)
        held -= len(content)
        return b"{}"

    monkeypatch.setattr(service.explorers, "ask", ask)
    return seen


def test_pictures_are_read_within_a_bound(alice: TestClient, pictures: Seen, service: Service, make: Any) -> None:
    """16 at once, of 8 MiB each: one of a tenant is in memory, and nothing of any stays."""
    job = make(Status.SUCCEEDED).id
    picture = b"0" * (8 << 20)
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(alice.post, f"/jobs/{job}/attention/images", content=picture) for _ in range(16)]
        assert {call.result(60).status_code for call in calls} == {201}
    assert pictures == [len(picture)] * 16
    assert not list(service.home.incoming.iterdir()) and not service.pools.pictures.held("alice")


def test_slow_pictures_hold_up_nobody(
    alice: TestClient, bob: TestClient, pictures: Seen, service: Service, make: Any, url: str, refusal: Refusal
) -> None:
    """Neither other tenants nor their own, whatever length they announce: until it has come, a picture is on disk."""
    jobs = {name: make(Status.SUCCEEDED, owner=name).id for name in ("alice", "bob")}
    with ExitStack() as slow:
        for name in ["alice", *["bob"] * 32]:
            client = slow.enter_context(socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)))
            head = f"POST /jobs/{jobs[name]}/predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-of-{name}"
            client.sendall(f"{head}\r\nContent-Length: {32 << 20}\r\n\r\n".encode() + bytes(2048))
        while service.pools.pictures.held("alice") < 1 or service.pools.pictures.held("bob") < 32:
            time.sleep(0.01)
        assert alice.post(f"/jobs/{jobs['alice']}/predict", content=b"a picture").status_code == 200
        refusal(bob.post(f"/jobs/{jobs['bob']}/predict", content=b"a picture"), 429)
    assert pictures == [len(b"a picture")]
    while service.pools.pictures.held("bob"):
        time.sleep(0.01)
    assert bob.post(f"/jobs/{jobs['bob']}/predict", content=b"a picture").status_code == 200


def test_a_body_that_does_not_come_is_given_up(
    alice: TestClient, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    """Neither silence nor a drip keeps a request open."""
    told: list[Any] = []

    async def ask(pause: float) -> None:
        body = iter([b"x" * 10] * 20)

        async def receive() -> Any:
            await asyncio.sleep(pause)
            return {"type": "http.request", "body": next(body), "more_body": True}

        async def send(message: Any) -> None:
            told.append(message)

        headers = [(b"authorization", b"Bearer key-of-alice"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/transform", "raw_path": b"/transform", "query_string": b"",
                 "headers": headers, "client": ("drip", 1), "server": ("localhost", 80), "scheme": "http",
                 "http_version": "1.1", "root_path": ""}  # fmt: skip
        await alice.app(scope, receive, send)

    monkeypatch.setattr(middleware, "SILENCE", 0.1)
    monkeypatch.setattr(middleware, "SLOWEST", 1000)
    for pause in (0.3, 0.03):
        told.clear()
        assert alice.portal is not None
        alice.portal.call(ask, pause)
        assert told[0]["status"] == 408 and (b"connection", b"close") in told[0]["headers"]


MODEL = {"model": "resnet18", "pretrained": False}


@pytest.fixture
def any_amount(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server is that of other tests, too. What is uploaded is looked at by a thread: `uploads/` has processes."""
    look_here(monkeypatch, datasets)
    yield
    service.store.set_quotas("alice", queued=None, running=None, gpu_hours=None, stored=None)


def _photos() -> dict[str, tuple[str, bytes]]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for label in ("cat", "dog"):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8)).save(picture, "png")
            archive.writestr(zipfile.ZipInfo(f"{label}/1.png"), picture.getvalue())  # the same bytes at any time
    return {"file": ("photos.zip", packed.getvalue())}


@pytest.mark.usefixtures("any_amount")
def test_a_full_queue(alice: TestClient, bob: TestClient, service: Service, refusal: Refusal) -> None:
    service.store.set_quotas("alice", queued=0)
    answer = alice.post("/transform", json=MODEL)
    told = refusal(answer, 429)
    assert told["type"] == "urn:tcnn:problem:quota-exceeded"
    assert "expected at most 0 queued jobs of yours, found" in told["detail"]
    assert int(answer.headers["retry-after"]) == 60
    assert bob.post("/transform", json=MODEL).status_code == 202


@pytest.mark.usefixtures("any_amount")
def test_used_hours(alice: TestClient, service: Service, refusal: Refusal) -> None:
    service.store.set_quotas("alice", gpu_hours=0)
    assert "GPU hours in 30 days" in refusal(alice.post("/transform", json=MODEL), 429)["detail"]


@pytest.mark.usefixtures("any_amount")
def test_no_room(alice: TestClient, bob: TestClient, service: Service, refusal: Refusal) -> None:
    """An upload is refused before it has come, unless it was accepted before."""
    key = {"Idempotency-Key": "photos"}
    before = alice.post("/datasets", files=_photos(), headers=key)
    assert before.status_code == 201
    service.store.set_quotas("alice", stored=1)
    assert refusal(alice.post("/datasets", files=_photos()), 403)["type"] == "urn:tcnn:problem:bytes-exceeded"
    refusal(alice.post("/transform", json=MODEL), 403)
    assert alice.post("/datasets", files=_photos(), headers=key).json() == before.json()
    assert bob.post("/datasets", files=_photos()).status_code == 201


@pytest.mark.usefixtures("any_amount")
def test_an_upload_that_is_larger_than_the_room(alice: TestClient, service: Service, refusal: Refusal) -> None:
    """Nothing of it remains."""
    (tenant,) = service.store.tenants("alice")
    before = sorted(service.home.datasets.iterdir())
    service.store.set_quotas("alice", stored=tenant.use.stored + 10)
    assert "and these are" in refusal(alice.post("/datasets", files=_photos()), 403)["detail"]
    assert sorted(service.home.datasets.iterdir()) == before


@pytest.mark.usefixtures("any_amount")
def test_why_a_job_waits(alice: TestClient, service: Service) -> None:
    service.store.set_quotas("alice", running=0)
    job = alice.post("/transform", json=MODEL).json()
    assert job["waiting_for"] == "as many of your jobs run as may: 0"
