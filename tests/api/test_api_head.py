"""HEAD on every route of GET: the same answer without a body, and without the work that only a body takes."""

import http.client
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Status

Make = Callable[..., Any]
KEY = {"Authorization": "Bearer key-of-alice"}
CHANGES = {"x-request-id", "date", "connection"}
"""Headers that no two answers have alike."""


def parts(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items() if name.lower() not in CHANGES}


@pytest.fixture
def done(make: Make, service: Service) -> str:
    """A job that has succeeded, and has a log."""
    job = make(Status.SUCCEEDED)
    (service.home.attempt(job.id, job.claim) / "log.txt").write_text("done\n")
    return f"/jobs/{job.id}"


def test_pages_that_monitors_ask_for(nobody: TestClient) -> None:
    for path in ("/", "/healthz", "/readyz", "/docs", "/openapi.json", "/static/dashboard/app.js",
                 "/static/swagger-ui.css"):  # fmt: skip
        head, get = nobody.head(path), nobody.get(path)
        assert (head.status_code, head.content, get.status_code) == (200, b"", 200), path
        found, expected = parts(head.headers), parts(get.headers)
        assert set(found) == set(expected) and int(found["content-length"]) > 0, path
        assert path == "/readyz" or found == expected, "the free space changes"


def test_what_a_key_opens(alice: TestClient, done: str) -> None:
    for path in ("/jobs", done, f"{done}/events", f"{done}/logs", f"{done}/archive", f"{done}/checkpoint",
                 f"{done}/checkpoints", "/jobs?q=a&limit=1", "/models?query=resnet18", "/datasets", "/me"):  # fmt: skip
        head, get = alice.head(path), alice.get(path)
        assert (head.status_code, head.content) == (200, b""), path
        assert parts(head.headers) == parts(get.headers) and get.content, path


def test_refusals_are_those_of_get(
    alice: TestClient, bob: TestClient, nobody: TestClient, make: Make, done: str, service: Service
) -> None:
    waiting = make().id
    for client, path, status in (
        (nobody, "/jobs", 401), (bob, f"{done}/archive", 404), (bob, done, 404), (alice, "/nothing", 404),
        (alice, f"/jobs/{waiting}/archive", 409), (alice, f"/jobs/{waiting}/report", 409),
        (alice, "/jobs?limit=0", 422), (alice, "/jobs?colour=red", 422), (alice, "/transform", 405),
    ):  # fmt: skip
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (status, b""), path
        assert answer.headers["content-type"] == "application/problem+json"
    assert set(alice.put("/jobs").headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert alice.head("/transform").headers["allow"] == "POST"
    link = alice.post(f"{done}/shares", json={"days": 1}).json()["secret"]
    shown = {"Authorization": f"Bearer {link}"}
    assert nobody.head(f"{done}/logs", headers=shown).status_code == 200
    assert nobody.head("/jobs", headers=shown).status_code == 403


def test_nothing_is_made_for_a_head(alice: TestClient, done: str, service: Service, upload: Callable[..., str]) -> None:
    """The uploads have no files here: whatever looked into them would fail."""
    data, checkpoint = upload(), upload("checkpoint")
    before = sorted(service.home.root.rglob("*"))
    for path, media in (
        (f"{done}/report", "text/html; charset=utf-8"), (f"/datasets/{data}/contents", "application/json"),
        (f"/datasets/{data}/images", "application/json"), (f"/checkpoints/{checkpoint}/info", "application/json"),
    ):  # fmt: skip
        head = alice.head(path)
        assert (head.status_code, head.content, head.headers["content-type"]) == (200, b"", media), path
        assert "content-length" not in head.headers and head.headers["x-content-type-options"] == "nosniff"
    assert [path for path in sorted(service.home.root.rglob("*")) if "tcnn.db" not in path.name] == [
        path for path in before if "tcnn.db" not in path.name
    ]
    assert alice.head("/datasets/ds_000000000000000000000000/contents").status_code == 404


def test_streams_that_never_end(url: str, service: Service, make: Make, done: str, alice: TestClient) -> None:
    """One connection answers one after the other, with nothing between the heads, and no stream stays open."""
    place, running = urlsplit(url), make(Status.RUNNING).id
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    stream = KEY | {"Accept": "text/event-stream"}
    for path, headers, media in (
        (f"/jobs/{running}/events", stream, "text/event-stream"), ("/jobs", stream, "text/event-stream"),
        (f"{done}/archive", KEY, "application/zip"), (f"{done}/logs", KEY, "text/plain"), ("/", {}, "text/html"),
        (f"{done}/checkpoint", KEY, "application/octet-stream"), (f"{done}/report", KEY, "text/html"),
    ):  # fmt: skip
        for _ in range(service.settings.max_streams + 1):
            connection.request("HEAD", path, headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200 and (answer.headers["content-type"] or "").startswith(media), path
            assert answer.read() == b"" and connection.sock is not None, path
    connection.request("GET", "/healthz")
    assert connection.getresponse().read().startswith(b"{")
    connection.close()
    deadline = time.monotonic() + 30
    while service.streams.open("alice") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not service.streams.open("alice")
    told = [line for line in alice.get("/metrics").text.splitlines() if 'method="HEAD"' in line and "_count" in line]
    assert any('route="/jobs/{id}/archive",status="200"' in line for line in told)
