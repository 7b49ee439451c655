"""What is written into the page itself (a key, names, tags) and the explorer, with a server that is really killed
(SIGKILL) and begun again: all go on by themselves, and what was written is kept once.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api, with_key
from mortal import Mortal, mortal
from story import Story
from test_explorer_page import HEADS, known

expect = sync_api.expect
AWAY = "The server cannot be reached."
KEY = "key-of-local"


@pytest.fixture(scope="module")
def running(story: Story) -> Iterator[Mortal]:
    with mortal(story.house.home.root, TCNN_API_KEYS=f"local:{KEY}") as server:
        yield server


@pytest.fixture
def server(running: Mortal) -> Mortal:
    running.revive()
    return running


def lost(page: Any) -> Any:
    return page.get_by_role("status").filter(has_text="Connection lost")


@pytest.mark.slow
def test_a_key_is_given_when_it_is_back(server: Mortal, open_page: Open) -> None:
    """What was written into the dialog stays there; the line that it was away goes."""
    page = open_page(server.url)
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    server.kill()
    field.fill(KEY)
    field.press("Enter")
    said = page.locator("#key-error")
    expect(said).to_contain_text(AWAY)
    expect(field).to_be_focused()
    expect(field).to_have_value(KEY)
    assert inaccessible(page) == []
    server.start()
    expect(said).to_be_empty()
    field.press("Enter")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator(".jobs li")).to_have_count(5)
    expect(page.get_by_role("button", name="Key")).to_have_text("Key of local")


def test_whose_key_it_is_is_asked_again(server: Mortal, open_page: Open) -> None:
    page = open_page("about:blank")
    page.add_init_script(f"sessionStorage.setItem('tcnn-key', '{KEY}')")
    page.route("**/me", lambda route: route.abort(), times=1)
    page.goto(server.url)
    expect(page.get_by_role("button", name="Key")).to_have_text("Key of local")


@pytest.mark.slow
def test_the_explorer_goes_on_when_it_is_back(server: Mortal, story: Story, open_page: Open) -> None:
    """Opened while the server was away, and asked for a place as it died."""
    page = with_key(open_page, f"{server.url}/#/system", KEY)
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    known(page, alive=lambda: server.process.poll() is None)
    server.kill()
    page.evaluate("address => { location.hash = address; }", f"#/jobs/{story.succeeded.job}/attention?head=2")
    alert = page.get_by_role("alert").filter(has_text=AWAY)
    again = alert.get_by_role("button", name="Try again")
    again.press("Enter")
    expect(again).to_be_focused()
    assert inaccessible(page) == []
    server.start()
    tiles = page.locator(".tile")
    expect(tiles).to_have_count(HEADS)
    expect(alert).to_have_count(0)
    expect(page.get_by_role("heading", name="What the heads attend to")).to_be_visible()
    expect(tiles.nth(1)).to_have_attribute("aria-pressed", "true")

    expect(lost(page)).to_be_hidden()
    server.kill()
    place = page.locator(".stage")
    place.press("ArrowRight")
    expect(alert).to_have_count(1)
    expect(tiles).to_have_count(HEADS)
    server.start()
    expect(alert).to_have_count(0)
    page.wait_for_url(re.compile("head=2&.*x=0[.]"))


def dies_with(server: Mortal, page: Any, done: bool) -> None:
    """The server dies when a job is to be changed; before it was, or before it says so."""
    died: list[bool] = []

    def die(route: Any) -> None:
        if route.request.method != "PATCH" or died:
            return route.fallback()
        died.append(True)
        if done:
            assert route.fetch().status == 200
        server.kill()
        return route.continue_()

    page.route(re.compile("/jobs/[^/]+$"), die)


@pytest.mark.parametrize("done", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_name_is_kept_when_it_is_back(server: Mortal, story: Story, open_page: Open, done: bool) -> None:
    """Without a second press; it stays in its field until then."""
    job = story.failed.job
    page = with_key(open_page, f"{server.url}/#/jobs/{job}", KEY)
    page.get_by_role("button", name=re.compile("^Edit the name")).click()
    field = page.get_by_label(re.compile("^The name of"))
    dies_with(server, page, done)
    field.fill(f"the one {done}")
    field.press("Enter")
    expect(page.get_by_role("alert").filter(has_text=AWAY).first).to_be_visible()
    expect(field).to_have_value(f"the one {done}")
    expect(field).to_be_editable()
    assert inaccessible(page, ".of-name") == []
    server.start()
    expect(page.get_by_role("heading", level=1, name=f"the one {done}")).to_be_visible()
    expect(field).to_have_count(0)
    assert story.house.store.get(job).name == f"the one {done}"


@pytest.mark.slow
def test_tags_are_kept_though_the_table_was_left(server: Mortal, story: Story, open_page: Open) -> None:
    """To go away is to keep what was written, as it always is; what is written further is not kept half."""
    page = with_key(open_page, f"{server.url}/#/runs", KEY)
    page.get_by_role("button", name=re.compile("^Edit the tags of resnet50d")).or_(
        page.get_by_role("button", name=re.compile("^Edit the tags of the one"))
    ).click()
    field = page.get_by_label(re.compile("^The tags of"))
    field.fill("good")
    server.kill()
    field.press("Enter")
    error = page.locator(".editable .error")
    expect(error).to_contain_text(AWAY)
    field.fill("good, better")
    server.start()
    expect(lost(page)).to_be_hidden()
    expect(error).to_be_empty()
    expect(field).to_have_value("good, better")
    expect(field).to_be_focused()
    server.kill()
    field.press("Enter")
    expect(error).to_contain_text(AWAY)
    page.get_by_role("link", name="System").click()
    server.start()
    expect(page.locator("#announcer")).to_have_text("The tags are saved.")
    assert story.house.store.get(story.failed.job).tags == ("good", "better")
