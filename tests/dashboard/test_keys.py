"""A server with keys: the dialog that asks for one, whose it is, and the pages of one tenant. No worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import LOOKS, Open, inaccessible, sync_api
from hosting import hosted
from serving import Server
from story import Story

expect = sync_api.expect


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("keys") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    keys = "local:secret-of-this,bob:other-key"
    with hosted(story.house.home.root, api_keys=keys) as running:
        yield running


def entered(page: Any, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_a_key_is_asked_for_once_and_not_kept_on_disk(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(server.url, accept_downloads=True)
    expect(page.get_by_role("dialog")).to_be_visible()
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_role("alert").filter(has_text="does not know")).to_be_visible()
    page.get_by_label("API key").fill("secret-of-this")
    page.keyboard.press("Enter")
    expect(page.locator(".jobs li")).to_have_count(5)
    assert page.evaluate("[...Object.values(localStorage), document.cookie].join('')").find("secret-of-this") < 0
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="best.safetensors").click()
    assert Path(waiting.value.path()).read_bytes() == b"0" * 1000
    page.reload()
    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()  # the tab still knows it
    other = page.context.new_page()
    other.goto(server.url)
    expect(other.locator(".jobs li")).to_have_count(5)  # from the window that has it
    expect(other.get_by_role("button", name="Key")).to_have_text("Key of local")


@pytest.mark.slow
def test_a_wrong_key_takes_no_good_ones_place(server: Server, open_page: Open) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("dialog")).to_be_visible()
    assert inaccessible(page) == []
    entered(page, "secret-of-this")
    page.get_by_role("button", name="Key of local").click()
    page.get_by_label("API key").fill("wrong-one")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="does not know")).to_be_visible()
    page.reload()
    expect(page.locator(".jobs li")).to_have_count(5)


@pytest.mark.slow
def test_the_dialog_says_why_it_asks(server: Server, open_page: Open) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("dialog", name="This server needs a key")).to_be_visible()
    expect(page.get_by_role("button", name="Forget it")).to_be_hidden()
    entered(page, "secret-of-this")
    page.get_by_role("button", name="Key of local").click()
    expect(page.get_by_role("dialog", name="Use another key")).to_be_visible()
    expect(page.locator("#key-error")).to_be_empty()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    entered(page, "other-key")
    expect(page.get_by_role("button", name="Key of bob")).to_be_visible()
    expect(page.get_by_text("Nothing here yet")).to_be_visible()  # whose jobs are others
    page.evaluate("sessionStorage.setItem('tcnn-key', 'revoked-since')")
    page.reload()
    expect(page.get_by_role("dialog", name="This server needs a key")).to_be_visible()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(
        "The server does not know this key. Check it, or ask for another."
    )
    page.get_by_role("button", name="Forget it").click()
    expect(page.locator("#key-error")).to_be_empty()
