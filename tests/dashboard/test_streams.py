"""How many event streams the windows of one browser have at the server: a browser opens six connections to it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from browsing import Open, sync_api, until
from serving import Server, hosted
from story import Story

expect = sync_api.expect
MOST = 4
"""Streams that the server allows: those that are left are counted by opening them."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("streams") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    with hosted(story.house.home.root, max_streams=MOST) as running:
        yield running


def streams(server: Server) -> int:
    """How many others have: as many as the server refuses."""
    with server.client(None) as client, ExitStack() as opened:
        for number in range(MOST + 1):
            asked = client.stream("GET", "/jobs", headers={"Accept": "text/event-stream"})
            if opened.enter_context(asked).status_code == 429:
                return MOST - number
    raise AssertionError(f"more than {MOST} streams are allowed")


def windows(first: Any, server: Server, *addresses: str) -> list[Any]:
    made = [first, *(first.context.new_page() for _ in addresses[1:])]
    for window, address in zip(made, addresses, strict=True):
        window.goto(f"{server.url}/#/{address}")
    return made


def test_windows_that_look_at_the_same_have_one_stream(server: Server, story: Story, open_page: Open) -> None:
    assert streams(server) == 0
    first, second = windows(open_page("about:blank"), server, "", "")
    story.tell(31)
    for window in (first, second):
        expect(window.get_by_role("progressbar")).to_have_js_property("value", 31)
    assert streams(server) == 1
    first.close()  # which opened it
    story.tell(32)
    expect(second.get_by_role("progressbar")).to_have_js_property("value", 32)
    assert streams(server) == 1
    second.goto(f"{server.url}/#/data")
    until(second, lambda: streams(server) == 0)  # nobody looks any more


@pytest.mark.slow
def test_windows_that_look_at_different_things_have_two(server: Server, story: Story, open_page: Open) -> None:
    jobs = [f"jobs/{job}" for job in (story.running.job, story.queued.id)]
    lists = ["?status=running", "?kind=finetune", "?kind=finetune&status=running"]
    seen = windows(open_page("about:blank"), server, *jobs, "", *lists, jobs[0], "")
    alive = [seen[0], *seen[2:]]
    for percent in (41, 42):
        story.tell(percent)
        for window in alive:
            expect(window.get_by_role("progressbar")).to_have_js_property("value", percent)
        assert streams(server) == 2
    expect(seen[1].get_by_role("heading", level=1)).to_be_visible()
    seen[7].goto(f"{server.url}/#/runs")  # there is a connection for what else is asked for
    expect(seen[7].get_by_role("table")).to_be_visible()
