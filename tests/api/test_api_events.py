"""Events as a list and as a stream: nothing is missed, nothing comes twice, and the stream ends with the job."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from houses import wait_for
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.errors import TooManyAtOnce
from tcnn_api.responses import stream
from tcnn_jobs.errors import JobNotFound, StoreUnavailable
from tcnn_jobs.model.jobs import Beat, Claim, Job, NewEvent, Progress, Result, Status
from tcnn_jobs.model.operation import WorkerInfo

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("quick_streams")
STREAM = {"Accept": "text/event-stream"}


def messages(text: str) -> list[dict[str, str]]:
    """The messages of a stream; a comment is none."""
    blocks = [block for block in text.replace("\r\n", "\n").split("\n\n") if block.strip() and block[0] != ":"]
    return [dict(line.split(": ", 1) for line in block.strip().splitlines()) for block in blocks]


def hold(job: Job) -> Claim:
    assert job.worker is not None
    return Claim(job=job.id, worker=job.worker, number=job.claim)


def beat(service: Service, job: Job, percent: float, *events: str) -> None:
    told = Beat(
        claim=hold(job),
        progress=Progress(phase="training", percent=percent),
        events=tuple(NewEvent(kind=kind, data={"percent": percent}) for kind in events),
    )
    info = WorkerInfo(name=job.worker or "", host="here", slots=1, version="0")
    assert service.store.heartbeat(info, [told])


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8, */*;q=0.1", True),
        ("application/json;q=0.5, text/event-stream;q=0.8", True),
        ("application/*;q=0.1, */*, text/event-stream;q=0.2", True),
        ("application/json;q=0, text/event-stream;q=0.001", True),
        ("application/json, text/event-stream;q=0", False),
        ("application/json;q=1, text/event-stream;q=0.1", False),
        ("application/json, text/event-stream", False),
        ("text/event-stream, */*", False),
        ("application/json, text/event-stream-x", False),
        ('text/plain;a="text/event-stream, text/event-stream"', False),
        ("text/*", False),
        ("text/event-stream;q=inf", False),
        ("text/event-stream;q=", False),
        ("", False),
        (";,=", False),
    ],
)
def test_a_stream_is_for_who_prefers_it_to_json(accept: str, streams: bool, alice: TestClient, make: Make) -> None:
    assert stream.prefers_stream(accept) is streams
    if not streams:
        for path in ("/jobs", f"/jobs/{make().id}/events"):
            assert alice.get(path, headers={"Accept": accept}).headers["content-type"] == "application/json"


def test_a_list_goes_on_where_it_ended(alice: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    job = make(Status.RUNNING)
    beat(service, job, 10, "epoch", "epoch")
    url = f"/jobs/{job.id}/events"
    whole = alice.get(url).json()
    assert [(event["seq"], event["kind"]) for event in whole["data"]] == [
        (1, "queued"), (2, "started"), (3, "epoch"), (4, "epoch"),
    ]  # fmt: skip
    assert whole["data"][1]["data"] == {"attempt": 1, "worker": job.worker}
    first = alice.get(url, params={"limit": 3}).json()
    rest = alice.get(url, params={"limit": 3, "after": 3}).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert first["data"] + rest["data"] == whole["data"]
    for query, field in (
        ("after=-1", "after"),
        ("after=x", "after"),
        ("limit=0", "limit"),
        (f"after={2**31}", "after"),
    ):
        refusal(alice.get(f"{url}?{query}"), 422, field)
    for wrong in ("x", "-1", "1.5", "None", f"{2**31}"):
        refusal(alice.get(url, headers={"Last-Event-ID": wrong}), 422, "Last-Event-ID")


def test_a_stream_of_an_ended_job_is_its_history(alice: TestClient, make: Make) -> None:
    job = make(Status.FAILED).id
    alice.post(f"/jobs/{job}/resume")
    alice.post(f"/jobs/{job}/cancel")
    url = f"/jobs/{job}/events"
    answer = alice.get(url, headers=STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    found = messages(answer.text)
    assert [message["event"] for message in found] == ["queued", "started", "failed", "resumed", "cancelled"]
    assert [json.loads(message["data"]) for message in found] == alice.get(url).json()["data"]
    later = messages(alice.get(url, headers=STREAM | {"Last-Event-ID": "3"}).text)
    assert later == found[3:]
    assert messages(alice.get(url, headers=STREAM, params={"after": 4}).text) == found[4:]
    beginning = STREAM | {"Last-Event-ID": ""}  # of an EventSource that has seen nothing
    assert messages(alice.get(url, headers=beginning).text) == found
    assert messages(alice.get(url, headers=beginning, params={"after": 4}).text) == found[4:]
    seen = alice.get(url, headers=STREAM | {"Last-Event-ID": "5"})
    assert (seen.status_code, seen.content) == (204, b""), "an EventSource would come back for ever"


def test_a_live_stream(alice: TestClient, service: Service, make: Make) -> None:
    """Events and progress come as they happen; the stream ends by itself when the job does."""
    job = make(Status.RUNNING)

    def work() -> None:
        beat(service, job, 10)
        time.sleep(0.4)
        beat(service, job, 50, "epoch")
        time.sleep(0.4)
        service.store.finish(hold(job), Result())

    thread = threading.Thread(target=work)
    started = time.monotonic()
    thread.start()
    found = messages(alice.get(f"/jobs/{job.id}/events", headers=STREAM | {"Last-Event-ID": "1"}).text)
    seconds = time.monotonic() - started
    thread.join()
    events = [message for message in found if message["event"] != "progress"]
    assert [(message["id"], message["event"]) for message in events] == [
        ("2", "started"), ("3", "epoch"), ("4", "succeeded"),
    ]  # fmt: skip
    progress = [message for message in found if message["event"] == "progress"]
    assert all("id" not in message for message in progress)
    assert {json.loads(message["data"])["percent"] for message in progress} <= {10.0, 50.0}
    assert 1 <= len(progress) <= 1 + seconds / stream.POLL
    assert seconds > 0.7, "it ended with its job"


def test_a_stream_ends_when_its_job_is_deleted(alice: TestClient, service: Service, make: Make) -> None:
    job = make()

    def delete() -> None:
        wait_for(lambda: bool(service.streams.open("alice")))
        service.store.cancel(job.id)
        service.store.delete(job.id)

    thread = threading.Thread(target=delete)
    thread.start()
    answer = alice.get(f"/jobs/{job.id}/events", headers=STREAM)
    thread.join()
    assert answer.status_code == 200
    told = [message["event"] for message in messages(answer.text)]
    assert told == ["queued", "cancelled"][: len(told)], "it may be deleted before the stream looks again"


@pytest.fixture
def full(alice: TestClient, service: Service, make: Make) -> Iterator[str]:
    """As many streams as alice may have open, on one job."""
    job = make()
    threads = [
        threading.Thread(target=alice.get, args=(f"/jobs/{job.id}/events",), kwargs={"headers": STREAM})
        for _ in range(service.settings.max_streams)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: service.streams.open("alice") == len(threads))
    yield job.id
    service.store.cancel(job.id)
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


def test_a_tenant_has_so_many_streams_and_no_more(
    alice: TestClient, bob: TestClient, full: str, service: Service, make: Make, refusal: Refusal
) -> None:
    url = f"/jobs/{full}/events"
    answer = alice.get(url, headers=STREAM)
    assert "TCNN_MAX_STREAMS" in refusal(answer, 429)["detail"]
    assert int(answer.headers["retry-after"]) > 0
    assert alice.get(url).status_code == 200, "a list is no stream"
    theirs = make(Status.FAILED, owner="bob").id
    assert bob.get(f"/jobs/{theirs}/events", headers=STREAM).status_code == 200
    service.store.cancel(full)
    wait_for(lambda: not service.streams.open("alice"))
    assert alice.get(url, headers=STREAM).status_code == 200, "streams that ended count no more"
    service.store.resume(full)


def test_a_client_that_went_away_is_noticed(url: str, service: Service, make: Make) -> None:
    job = make().id
    with httpx.Client(base_url=url, headers={**STREAM, "Authorization": "Bearer key-of-alice"}, trust_env=False) as web:
        for _ in range(3 * service.settings.max_streams):
            with web.stream("GET", f"/jobs/{job}/events") as answer:
                assert answer.status_code == 200
                assert next(answer.iter_lines()) == "id: 1"
            wait_for(lambda: not service.streams.open("alice"))


def test_streams_that_begin_at_once_are_counted_before_they_are_let_in(
    alice: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    """While one still waits for its first look at the database it has its place, and gives it back if that fails."""
    most, held = service.settings.max_streams, threading.Event()
    entered = threading.Semaphore(0)

    def slow(*arguments: Any, **options: Any) -> Any:
        entered.release()
        held.wait(60)
        raise JobNotFound("gone")

    monkeypatch.setattr(service.store, "list", slow)
    with ThreadPoolExecutor(most) as pool:
        waiting = [pool.submit(alice.get, "/jobs", headers=STREAM) for _ in range(most)]
        for _ in waiting:
            assert entered.acquire(timeout=60)
        refusal(alice.get("/jobs", headers=STREAM), 429)
        held.set()
        assert [call.result(60).status_code for call in waiting] == [404] * most
    assert service.streams.open("alice") == 0


def test_a_searched_list_that_is_watched_takes_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is none for it the stream goes on, and looks again later."""
    refused = iter((True, True, False))

    @asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        if next(refused):
            raise TooManyAtOnce("8 searches of yours are under way")
        yield

    async def still() -> bool:
        return True

    async def first() -> Any:
        async for message in stream.Streams(1).watch("ann", lambda: ([], "next_W10"), still, turn):
            return json.loads(message.data)

    monkeypatch.setattr(stream, "POLL", 0.01)
    assert asyncio.run(first()) == {"order": [], "changed": [], "has_more": True, "next": "next_W10"}
    assert not list(refused)


def test_that_the_database_is_away_is_told_once_and_that_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "POLL", 0.0)
    looks = iter([StoreUnavailable("locked")] * 3 + [([], None)])
    asked = itertools.count()

    def look() -> tuple[list[Job], str | None]:
        found = next(looks)
        if isinstance(found, StoreUnavailable):
            raise found
        return found

    async def still() -> bool:
        return next(asked) < 4

    async def heard() -> list[str | None]:
        return [message.event async for message in stream.Streams(1).watch("ann", look, still)]

    assert anyio.run(heard) == ["away", "back", "jobs"]
