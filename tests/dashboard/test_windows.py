"""Windows of one browser: back in the middle of a page, what another window has deleted meanwhile, and how many
event streams they have at the server, to which a browser opens six connections. No worker.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api, until
from serving import Server, hosted
from story import Story

from tcnn_jobs.model.naming import Labels

expect = sync_api.expect


def test_a_question_goes_with_its_page(server: Server, story: Story, open_page: Open) -> None:
    """Or it would be answered over another one."""
    page = open_page(server.url)
    page.get_by_role("link", name="convnext_tiny").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog", name="Delete this job?")).to_be_visible()
    page.go_back()
    expect(page.locator(".jobs li")).to_have_count(5)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_forward()
    expect(page.get_by_role("button", name="Delete")).to_be_enabled()


@pytest.mark.parametrize(
    ("address", "first"),
    [
        ("?status=failed&after=job_{}", "#/?status=failed"), ("data?after=ds_{}", "#/data"),
        pytest.param("?after=job_{}", "#/", marks=pytest.mark.slow),
        pytest.param("runs?q=a&after=job_{}", "#/runs?q=a", marks=pytest.mark.slow),
        pytest.param("checkpoints?weights=wts_{}", "#/checkpoints", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_page_of_a_list_after_something_that_was_deleted(
    server: Server, open_page: Open, address: str, first: str
) -> None:
    page = open_page(f"{server.url}/#/{address.format('9' * 24)}")
    expect(page.get_by_text("has been deleted")).to_be_visible()
    assert inaccessible(page) == []
    page.get_by_role("link", name="Newest").click()
    expect(page.get_by_text("has been deleted")).to_be_hidden()
    assert page.url.rpartition("/#")[2].rstrip("?") == first.removeprefix("#")


def test_what_another_window_does_with_a_job_is_seen_here(server: Server, story: Story, open_page: Open) -> None:
    """Also of a job that has ended, whose stream is over; and what is written here is no one else's news undone."""
    store, failed = story.house.store, story.failed.job
    page = open_page(f"{server.url}/#/jobs/{failed}")
    runs = page.context.new_page()
    runs.goto(f"{server.url}/#/runs?status=failed")
    expect(runs.locator(".runs tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Edit the note").click()
    store.label(failed, "local", Labels(name="called otherwise", tags=("seen",), note="by somebody else"))
    page.get_by_role("textbox", name="The note of").blur()  # which nobody has written in
    expect(page.get_by_role("heading", level=1)).to_have_text("called otherwise")
    expect(page.locator(".labels")).to_contain_text("seen")
    expect(page.locator(".labels")).to_contain_text("by somebody else")
    assert store.get(failed).note == "by somebody else"
    expect(runs.locator(".runs")).to_contain_text("called otherwise")
    store.resume(failed, "local")
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    expect(page.get_by_role("list", name="Events")).to_contain_text("Resumed")
    store.cancel(failed)
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    store.delete(failed, "local")
    expect(page.get_by_role("heading", level=1)).to_have_text("Job not found")


def test_a_refusal_shows_how_the_job_stands_now(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.cancelled.id}")
    job = re.compile(r"/jobs/job_\w+$")
    under_way: list[Any] = []  # which would be answered with how the job stands later
    page.on("request", lambda request: under_way.append(request) if job.search(request.url) else None)
    page.on("requestfinished", lambda request: under_way.remove(request) if request in under_way else None)
    page.reload()
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_be_visible()
    expect(page.get_by_role("list", name="Events")).to_contain_text("Cancelled")
    until(page, lambda: not under_way)
    asked: list[str] = []
    page.route(job, lambda route: route.continue_() if asked else route.abort())
    page.route(re.compile("/resume$"), lambda route: (asked.append("to resume"), route.continue_()))
    story.house.store.resume(story.cancelled.id, "local")
    resume.click()
    expect(page.get_by_role("alert").first).to_contain_text("is queued")
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    story.house.store.cancel(story.cancelled.id)


MOST = 4
"""Streams that the server allows: those that are left are counted by opening them."""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("streams") / "home")


@pytest.fixture(scope="module")
def strict_server(watched: Story) -> Iterator[Server]:
    with hosted(watched.house.home.root, max_streams=MOST) as running:
        yield running


def streams(strict_server: Server) -> int:
    """How many others have: as many as the server refuses."""
    with strict_server.client(None) as client, ExitStack() as opened:
        for number in range(MOST + 1):
            asked = client.stream("GET", "/jobs", headers={"Accept": "text/event-stream"})
            if opened.enter_context(asked).status_code == 429:
                return MOST - number
    raise AssertionError(f"more than {MOST} streams are allowed")


def windows(first: Any, strict_server: Server, *addresses: str) -> list[Any]:
    made = [first, *(first.context.new_page() for _ in addresses[1:])]
    for window, address in zip(made, addresses, strict=True):
        window.goto(f"{strict_server.url}/#/{address}")
    return made


def test_windows_that_look_at_the_same_have_one_stream(strict_server: Server, watched: Story, open_page: Open) -> None:
    assert streams(strict_server) == 0
    first, second = windows(open_page("about:blank"), strict_server, "", "")
    watched.tell(31)
    for window in (first, second):
        expect(window.get_by_role("progressbar")).to_have_js_property("value", 31)
    assert streams(strict_server) == 1
    first.close()  # which opened it
    watched.tell(32)
    expect(second.get_by_role("progressbar")).to_have_js_property("value", 32)
    assert streams(strict_server) == 1
    second.goto(f"{strict_server.url}/#/data")
    until(second, lambda: streams(strict_server) == 0)  # nobody looks any more


@pytest.mark.slow
def test_windows_that_look_at_different_things_have_two(strict_server: Server, watched: Story, open_page: Open) -> None:
    jobs = [f"jobs/{job}" for job in (watched.running.job, watched.queued.id)]
    lists = ["?status=running", "?kind=finetune", "?kind=finetune&status=running"]
    seen = windows(open_page("about:blank"), strict_server, *jobs, "", *lists, jobs[0], "")
    alive = [seen[0], *seen[2:]]
    for percent in (41, 42):
        watched.tell(percent)
        for window in alive:
            expect(window.get_by_role("progressbar")).to_have_js_property("value", percent)
        assert streams(strict_server) == 2
    expect(seen[1].get_by_role("heading", level=1)).to_be_visible()
    seen[7].goto(f"{strict_server.url}/#/runs")  # there is a connection for what else is asked for
    expect(seen[7].get_by_role("table")).to_be_visible()
