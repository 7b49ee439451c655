"""A server that answers nothing and does not even refuse, as where it is stopped or a network swallows what is sent;
uploads that break off.
"""

import re
from pathlib import Path
from typing import Any

from browsing import Open, inaccessible, sync_api, until
from serving import Server
from story import Story, pictures

expect = sync_api.expect
MINUTE = 60_000
SILENCE = MINUTE // 2
"""Milliseconds after which a page asks whether the server is there, and waits as long for that answer."""

HEAR = """banner => {
  window.heard = [];
  const all = {childList: true, characterData: true, subtree: true};
  new MutationObserver(() => heard.push(banner.textContent)).observe(banner, all);
}"""
"""Keeps what a banner says: it may be gone again when one looks, as the page's clock runs on by itself."""


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
    until(page, lambda: sum(url.endswith("healthz") for url in asked) > 1)
    assert sum(url.endswith("healthz") for url in asked) == 2, "one waits for its answer before the next is asked"
    page.unroute_all()
    banner.evaluate(HEAR)
    page.clock.run_for(10_000)
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    until(page, lambda: "Connected again." in page.evaluate("heard"))
    expect(page.get_by_role("alert")).to_have_count(0)


def test_what_takes_the_server_minutes_is_waited_for(server: Server, open_page: Open) -> None:
    """As to plan a job, or to load a model for a picture: it answers that it is there meanwhile."""
    page = open_page("about:blank")
    page.clock.install()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/system", hold)
    page.goto(f"{server.url}/#/system")
    until(page, lambda: held)
    for _ in range(5):
        with page.expect_response("**/healthz"):
            page.clock.run_for(SILENCE)
        page.wait_for_function("() => true")
    expect(page.get_by_text("Looking…")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Connection lost")).to_be_hidden()
    held[0].continue_()
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()


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
    page = open_page("about:blank")
    job = f"jobs/{story.succeeded.job}"
    # Or an answer tells the page that the server is back, and it asks again by itself, before the click.
    silence(page, job, f"{job}/events", "healthz")
    page.route(f"**/{job}", lambda route: route.continue_(), times=1)
    with page.expect_response("**/metrics.csv"), page.expect_response("**/datasets/*"):
        page.goto(f"{server.url}/#/{job}")
    details = re.compile("/files/.*before-after")
    page.route(details, lambda route: route.abort())
    page.get_by_text("The images on which they differ").click()
    alert = page.get_by_role("alert").filter(has_text="cannot be reached")
    expect(alert).to_be_visible()
    page.unroute(details)
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


def test_an_upload_that_broke_off_is_sent_again(server: Server, open_page: Open, tmp_path: Path) -> None:
    """As the same one, for the server may have it; what is no longer as it was chosen is said to be so."""
    content = pictures(broken=False)
    (tmp_path / "broken-off.zip").write_bytes(content)
    (tmp_path / "removed.zip").write_bytes(content)
    page = open_page(f"{server.url}/#/data")
    sent: list[str] = []

    def lose(route: Any) -> None:
        if route.request.method != "POST":
            return route.fallback()
        sent.append(route.request.headers["idempotency-key"])
        (tmp_path / "removed.zip").unlink(missing_ok=True)
        return route.continue_() if len(sent) > 1 else route.abort()

    page.route(re.compile("/datasets$"), lose)
    page.get_by_label("Files").set_input_files([tmp_path / "broken-off.zip", tmp_path / "removed.zip"])
    first, second = page.locator(".sending li").first, page.locator(".sending li").last
    expect(first).to_contain_text("The server cannot be reached.")
    expect(second).to_contain_text("The file is no longer there; choose it again.")
    expect(second.get_by_role("button")).to_have_text(["Dismiss"])
    assert inaccessible(page) == []
    expect(page.locator(".sending .sent")).to_contain_text("23 images of 2 classes")
    expect(first.get_by_role("button")).to_have_text(["Dismiss"])
    assert sent[0] == sent[-1]


def test_an_upload_waits_for_a_server_that_is_there_and_no_longer(
    server: Server, open_page: Open, tmp_path: Path
) -> None:
    """To look at a large file takes its time; one that hangs is not waited for."""
    (tmp_path / "pets.zip").write_bytes(pictures(broken=False))
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/data")
    expect(page.get_by_role("heading", name="Data sets")).to_be_visible()
    sent: list[str] = []

    def hold(route: Any) -> None:
        if route.request.method != "POST":
            return route.fallback()
        return sent.append(route.request.url)

    page.route(re.compile("/datasets$"), hold)
    page.get_by_label("Files").set_input_files(tmp_path / "pets.zip")
    item = page.locator(".sending li")
    until(page, lambda: sent)
    for _ in range(3):
        with page.expect_response("**/healthz"):
            page.clock.run_for(SILENCE)
        page.wait_for_function("() => true")
    expect(item.get_by_role("button", name="Stop")).to_be_visible()
    asked: list[str] = []
    page.route("**/healthz", lambda route: asked.append(route.request.url))
    page.clock.run_for(SILENCE)
    until(page, lambda: asked)
    page.clock.run_for(SILENCE)
    expect(item).to_contain_text("The server cannot be reached.")
    expect(page.get_by_role("status").filter(has_text="Connection lost")).to_be_visible()
    page.unroute_all()
    page.clock.run_for(3000)  # by itself, for the server answers again
    expect(item).to_contain_text("23 images of 2 classes")


def test_an_upload_that_always_breaks_off_is_not_sent_for_ever(server: Server, open_page: Open, tmp_path: Path) -> None:
    """As behind a proxy that takes no file of its size: the server is there, and the file has gone up four times."""
    (tmp_path / "large.zip").write_bytes(pictures(broken=False))
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/data")
    expect(page.get_by_role("heading", name="Data sets")).to_be_visible()
    sent: list[str] = []
    page.route(
        re.compile("/datasets$"),
        lambda route: sent.append(route.abort()) if route.request.method == "POST" else route.fallback(),
    )
    page.get_by_label("Files").set_input_files(tmp_path / "large.zip")
    again = page.get_by_role("button", name="Try again to send large.zip")
    for count in range(1, 5):
        until(page, lambda count=count: len(sent) == count)
        expect(again).to_be_visible()
        page.clock.run_for(3000)  # of a clock that also goes by itself, so the next try may have begun
    page.clock.run_for(60_000)
    page.wait_for_function("() => true")
    assert len(sent) == 4
    page.unroute_all()
    again.click()
    expect(page.locator(".sending .sent")).to_contain_text("23 images of 2 classes")
