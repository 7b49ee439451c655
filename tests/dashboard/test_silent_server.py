"""A server that answers nothing and does not even refuse, as where it is stopped or a network swallows what is sent."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Open, sync_api
from serving import Server, hosted
from story import Story

expect = sync_api.expect
MINUTE = 60_000


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("silent") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    with hosted(story.house.home.root) as running:
        yield running


def silence(page: Any, *paths: str) -> list[str]:
    """What is asked of these paths gets no answer; what was asked so far."""
    asked: list[str] = []
    for path in paths:
        page.route(f"**/{path}", lambda route: asked.append(route.request.url))
    return asked


def test_a_server_that_says_nothing_is_told_and_found_again(server: Server, open_page: Open) -> None:
    page = open_page("about:blank")
    page.clock.install()
    asked = silence(page, "system", "healthz")
    page.goto(f"{server.url}/#/system")
    expect(page.get_by_text("Looking…")).to_be_visible()
    page.clock.run_for(MINUTE)
    expect(page.get_by_role("alert")).to_contain_text("The server cannot be reached")
    banner = page.get_by_role("status").filter(has_text="Connection lost")
    expect(banner).to_be_visible()
    page.clock.run_for(4_000)
    page.wait_for_function("() => true")
    assert sum(url.endswith("healthz") for url in asked) == 1, "one waits for its answer before the next is asked"
    page.unroute_all()
    page.clock.run_for(10_000)
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Connected again")).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_an_alert_says_is_said_once(server: Server, open_page: Open) -> None:
    """The page of the system looks every ten seconds; a screen reader would read the same out each time."""
    page = open_page("about:blank")
    page.clock.install()
    page.route("**/system", lambda route: route.fulfill(status=503, json={"detail": "the database is away"}))
    page.goto(f"{server.url}/#/system")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("the database is away")
    alert.evaluate("element => { element.marked = true; }")
    with page.expect_response("**/system"):
        page.clock.run_for(10_000)
    page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => done(true)))")
    assert alert.evaluate("element => element.marked"), "the same element"
    with page.expect_response("**/system"):
        page.get_by_role("button", name="Try again").click()
    expect(alert).to_contain_text("the database is away")


def test_details_that_did_not_come_can_be_asked_for_again(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}")
    page.route(re.compile("/files/.*before-after"), lambda route: route.abort())
    page.get_by_text("The images on which they differ").click()
    alert = page.get_by_role("alert").filter(has_text="cannot be reached")
    expect(alert).to_be_visible()
    page.unroute_all()
    alert.get_by_role("button", name="Try again").click()
    expect(page.locator(".changed img").first).to_be_visible()
    expect(alert).to_have_count(0)


def test_a_job_is_asked_for_once_at_a_time(server: Server, story: Story, open_page: Open) -> None:
    """Every five seconds, and of two answers on the way the older might have been drawn last."""
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.get_by_text("The images on which they differ")).to_be_visible()
    asked = silence(page, f"jobs/{story.succeeded.job}")
    page.clock.run_for(10_000)  # the first look, and one at what the stream has said
    page.wait_for_function("() => true")
    before = len(asked)
    assert before >= 1
    page.clock.run_for(40_000)
    page.wait_for_function("() => true")
    assert len(asked) - before < 4, "the end of the stream may have asked, too, but nobody every five seconds"
    page.unroute_all()
    with page.expect_response(f"**/jobs/{story.succeeded.job}"):
        page.clock.run_for(MINUTE)
