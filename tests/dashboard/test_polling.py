"""Pages that ask from time to time, for want of a stream: where a proxy swallows them, where the server has too many,
and in the third window of a browser. They show what a stream would have told. No worker.
"""

import json
import re
from typing import Any

import pytest
from browsing import Open, sync_api, until
from serving import Server
from story import Story

from tcnn_jobs.model.jobs import Beat, NewEvent, Result
from tcnn_jobs.model.operation import WorkerInfo

expect = sync_api.expect
MANY = 1003
"""Events of a job, more than one page of them has."""


def stream(route: Any) -> bool:
    return "text/event-stream" in route.request.headers.get("accept", "")


def without_streams(open_page: Open, status: int = 429) -> Any:
    """A page whose streams are refused, or answered by a proxy with something else."""
    page = open_page("about:blank")
    page.add_init_script("delete globalThis.SharedWorker")  # whose requests a page's routes do not see
    answer = {"status": status, "content_type": "application/problem+json", "body": "{}"}
    is_stream = re.compile(r"/jobs(\?|/[^/]+/events)")
    page.route(is_stream, lambda route: route.fulfill(**answer) if stream(route) else route.continue_())
    return page


def happen(story: Story, *events: NewEvent) -> None:
    """As the running job's worker tells it."""
    info = WorkerInfo(name=story.running.worker, host="here", slots=1, version="1")
    story.house.store.heartbeat(info, [Beat(claim=story.running, events=events)])


def measure(story: Story, *epochs: int) -> None:
    """As the running job does."""
    run = story.house.home.attempt(story.running.job, story.running.number) / "run"
    run.mkdir(parents=True, exist_ok=True)
    rows = (
        {"kind": "epoch", "epoch": at, "updates": 10 * at, "train_loss": 1.0, "val": {"top1": 0.5}} for at in epochs
    )
    with (run / "metrics.jsonl").open("a") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.slow
def test_where_streams_are_not_to_be_had_it_polls(server: Server, story: Story, open_page: Open) -> None:
    page = without_streams(open_page)
    page.goto(server.url)
    row = page.locator(".jobs li", has_text="resnet18")
    expect(row).to_be_visible()
    for percent in (31, 32):
        story.tell(percent)
        expect(row.get_by_role("progressbar")).to_have_js_property("value", percent)
    page.goto(f"{server.url}/#/jobs/{story.running.job}")
    story.tell(33)
    expect(page.get_by_role("progressbar")).to_have_js_property("value", 33)


def test_the_third_window_of_a_browser_tells_what_happened(server: Server, story: Story, open_page: Open) -> None:
    first = open_page(f"{server.url}/#/jobs/{story.queued.id}")
    expect(first.get_by_role("list", name="Events")).to_contain_text("Queued")
    second, third = (first.context.new_page() for _ in range(2))
    second.goto(f"{server.url}/#/")
    expect(second.locator(".jobs li")).to_have_count(5)
    third.goto(f"{server.url}/#/jobs/{story.running.job}")
    expect(third.get_by_role("list", name="Events").get_by_role("listitem")).to_have_text(
        [re.compile("Attempt 1 started"), re.compile("Queued")]
    )


def test_a_page_that_polls_tells_events_and_draws_curves(server: Server, story: Story, open_page: Open) -> None:
    page = without_streams(open_page)
    page.goto(f"{server.url}/#/jobs/{story.running.job}")
    events = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(events.last).to_contain_text("Queued")
    measure(story, 0)
    happen(story, NewEvent(kind="epoch", data={"epoch": 0, "train_loss": 1.0, "val": {"top1": 0.5}}))
    expect(events.first).to_contain_text("Epoch 1: loss 1")
    page.get_by_text("Numbers by epoch").click()
    rows = page.get_by_role("region", name="Epochs").locator("tbody tr")
    expect(rows).to_have_count(1)
    measure(story, 1)  # of which no event tells
    expect(rows).to_have_count(2)


@pytest.mark.slow
def test_a_page_that_polls_reads_all_events_and_ends(server: Server, story: Story, open_page: Open) -> None:
    page = without_streams(open_page, status=200)
    asked: list[str] = []
    job = re.compile(rf"/jobs/{story.running.job}(/events\?.*)?$")
    page.on("request", lambda request: asked.append(request.url) if job.search(request.url) else None)
    page.goto(f"{server.url}/#/jobs/{story.running.job}")
    events = page.get_by_role("list", name="Events").get_by_role("listitem")
    expect(events.last).to_contain_text("Queued")
    happen(story, *(NewEvent(kind="message", data={"text": f"note {number}"}) for number in range(MANY)))
    expect(events.first).to_contain_text(f"note {MANY - 1}")
    story.house.store.finish(story.running, Result())
    expect(events.first).to_contain_text("Succeeded")
    expect(page.locator(".titled .badge")).to_contain_text("Succeeded")
    # It looks whether somebody resumes the job. One that polls asks for events between any three of these.
    until(page, lambda: len(asked) > 3 and not any("/events" in url for url in asked[-3:]))
    assert events.count() == len(story.house.store.events(story.running.job, limit=2 * MANY))
