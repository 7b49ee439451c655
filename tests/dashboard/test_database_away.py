"""A server whose database goes away while its streams are open: they say so, the pages too, and both when it is back.

A real PostgreSQL that is stopped and started again; a file of SQLite's does not go away while it is open.
"""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api
from httpx_sse import EventSource
from postgres import NoPostgres, postgres
from postgres import Server as Database
from serving import Server, hosted

from tcnn_api import app
from tcnn_jobs.client import Client
from tcnn_jobs.model.jobs import Job, Kind, NewJob
from tcnn_jobs.store import Store

expect = sync_api.expect
AWAY = "database is not responding"


@pytest.fixture(scope="module")
def running_database() -> Iterator[Database]:
    try:
        with postgres() as running:
            yield running
    except NoPostgres as error:
        pytest.skip(f"POSTGRESQL IS NOT TESTED: {error}")


@pytest.fixture
def database(running_database: Database) -> Iterator[Database]:
    """One that runs again afterwards."""
    yield running_database
    running_database.start()


@pytest.fixture(scope="module")
def server(running_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that soon gives a database up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "Store", partial(Store, wait=0.2))
        with hosted(tmp_path_factory.mktemp("away") / "home", database_url=running_database.create("queue")) as running:
            yield running


@pytest.fixture
def store(server: Server, database: Database) -> Iterator[Store]:
    store = Store(database.address("queue"))
    yield store
    store.close()


@pytest.fixture
def job(store: Store) -> Job:
    return store.enqueue(NewJob(owner="local", kind=Kind.TRANSFORM, request={"model": "resnet18"}))


@pytest.mark.parametrize("path", [pytest.param("jobs", marks=pytest.mark.slow), "jobs/{}/events"])
def test_a_stream_says_that_the_database_is_away_and_back(
    server: Server, database: Database, store: Store, job: Job, path: str
) -> None:
    """Once each, and misses nothing of what happens afterwards."""
    said: list[tuple[str, str, Any]] = []
    headers = {"Accept": "text/event-stream"}
    with server.client(None) as client, client.stream("GET", path.format(job.id), headers=headers) as answer:
        for message in EventSource(answer).iter_sse():
            if not message.data:
                continue
            said.append((message.event, message.id, json.loads(message.data)))
            if len(said) == 1:
                database.stop()
            elif message.event == "away":
                time.sleep(1)  # some more looks are in vain
                database.start()
            elif message.event == "back":
                store.cancel(job.id)
            elif len(said) == 4:
                break
    first, last = ("jobs", "jobs") if path == "jobs" else ("queued", "cancelled")
    assert [event for event, *_ in said] == [first, "away", "back", last]
    assert all(data == {"data": {}} for _, _, data in said[1:3])
    seen = said[0][1]
    assert [number for _, number, _ in said[1:3]] == [seen, seen], "a client that comes back asks after the last event"


def test_a_client_that_watches_takes_it_for_no_event(
    server: Server, database: Database, store: Store, job: Job
) -> None:
    told: list[str] = []

    def event(kind: str, data: dict[str, Any]) -> None:
        told.append(kind)
        if kind == "queued":
            database.stop()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(Client(server.url).watch, job.id, event=event)
        while "queued" not in told:
            assert not watching.done()
        time.sleep(1)
        database.start()
        store.cancel(job.id)
        assert watching.result(60)["status"] == "cancelled"
    assert told == ["queued", "cancelled"]


def test_pages_say_that_the_database_is_away_and_back(
    server: Server, database: Database, store: Store, job: Job, open_page: Open
) -> None:
    """Those that are open, one that is opened meanwhile beside them, and one that has no stream: each goes on"""
    listed = open_page(server.url)
    expect(listed.locator(".jobs li").first).to_be_visible()
    beside = listed.context.new_page()
    database.stop()
    expect(listed.get_by_role("status").filter(has_text=AWAY)).to_be_visible()
    expect(listed.locator(".jobs li").first).to_be_visible()
    beside.goto(f"{server.url}/#/jobs/{job.id}")
    alone = open_page(f"{server.url}/#/data")
    for page in (beside, alone):
        expect(page.get_by_role("status").filter(has_text=AWAY)).to_be_visible()
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        assert inaccessible(page) == []
    database.start()
    for page in (listed, alone, beside):
        expect(page.get_by_role("status").filter(has_text=AWAY)).to_be_hidden()
    expect(alone.get_by_text("None uploaded yet.")).to_be_visible()
    expect(beside.get_by_role("button", name="Cancel")).to_be_visible()
    store.cancel(job.id)
    expect(beside.locator(".titled .badge")).to_contain_text("Cancelled")
    expect(listed.locator(".jobs li").first).to_contain_text("Cancelled")
