"""A job shared by a link: made with a key, opened without one, revoked. One server with keys, no worker."""

import re
from collections.abc import Iterator

import pytest
from browsing import LOOKS, Open, inaccessible, open_log, sync_api
from serving import Server, hosted
from story import Story

from tcnn_api.access import credentials

expect = sync_api.expect


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials, "LIFE", 0.2)
        with hosted(story.house.home.root, api_keys="local:key-of-the-owner") as running:
            yield running


def test_a_job_is_shared_and_the_link_revoked(server: Server, story: Story, open_page: Open) -> None:
    owner = open_page(f"{server.url}/#/jobs/{story.succeeded.job}")
    owner.get_by_label("API key").fill("key-of-the-owner")
    owner.get_by_role("button", name="Use this key").click()
    owner.get_by_role("button", name="Share").click()
    owner.get_by_label("Valid for").select_option("30")
    owner.get_by_role("button", name="Create a link").click()
    link = owner.get_by_label("The link (shown only once)").input_value()
    assert link.startswith(f"{server.url}/#/shared/tcnnshare_")
    assert "key-of" not in link
    expect(owner.get_by_role("list", name="Links").get_by_role("listitem")).to_have_count(1)
    for width, scheme in LOOKS:
        owner.set_viewport_size({"width": width, "height": 860})
        owner.emulate_media(color_scheme=scheme)
        assert inaccessible(owner, "dialog") == [], (width, scheme)
    owner.set_viewport_size({"width": 1280, "height": 860})

    guest = open_page(link)  # in a context of its own, which has no key
    expect(guest.get_by_role("heading", level=1, name="test_resnet")).to_be_visible()
    expect(guest.get_by_text("Before and after", exact=True)).to_be_visible()
    expect(guest.get_by_text("Fine-tune on a data set")).to_be_visible()  # whose name a link does not tell
    expect(guest.get_by_text("Succeeded", exact=True).first).to_be_visible()
    for name in ("Delete", "Share", "Clone and edit", "Key"):
        expect(guest.get_by_role("button", name=name)).to_have_count(0)
    expect(guest.get_by_role("navigation", name="Main")).to_have_count(0)
    guest.get_by_text("The images on which they differ").click()
    expect(guest.locator(".changed code").first).to_be_visible()
    expect(guest.locator(".changed a")).to_have_count(0)  # the explorer is not a link's to open
    open_log(guest)
    expect(guest.locator("pre.log").last).to_have_text("converting\ndone\n")
    assert guest.evaluate("Object.keys(sessionStorage).concat(Object.keys(localStorage)).join()") == ""

    owner.get_by_role("button", name=re.compile("^Revoke the link")).click()
    expect(owner.get_by_role("list", name="Links").get_by_role("listitem")).to_have_count(0)
    guest.wait_for_timeout(300)  # for which this server believes what it knew
    guest.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as it looks every five seconds
    expect(guest.get_by_role("heading", name="The job cannot be shown")).to_be_visible()
    expect(guest.locator("main a")).to_have_count(0)  # which nothing opens without a key
    guest.reload()
    expect(guest.get_by_role("heading", name="This link does not work")).to_be_visible()
    expect(guest.get_by_role("dialog")).to_have_count(0)  # nobody is asked for a key


def test_a_link_is_opened_where_a_key_is_asked_for(server: Server, story: Story, open_page: Open) -> None:
    """Or is about to be, when other windows have not answered yet; who goes back is asked again."""
    _, secret = story.house.store.create_share(story.succeeded.job, "local", 60)
    page = open_page(f"{server.url}/#/")
    dialog = page.locator("dialog.key")
    for _ in range(2):
        expect(dialog).to_be_visible()
        page.goto(f"{server.url}/#/shared/{secret}")
        expect(page.get_by_role("heading", level=1, name="test_resnet")).to_be_visible()
        expect(dialog).to_be_hidden()
        page.get_by_text("The images on which they differ").click()
        expect(page.locator(".changed code").first).to_be_visible()
        page.go_back()
    expect(dialog).to_be_visible()
    page.get_by_role("heading", name="This server requires a key").press("Escape")
    with page.expect_response(lambda answer: answer.status == 401):
        page.evaluate("location.hash = '#/data'")
    page.evaluate("secret => location.hash = `#/shared/${secret}`", secret)
    expect(page.get_by_role("heading", level=1, name="test_resnet")).to_be_visible()
    page.wait_for_timeout(400)  # for which it asks other windows
    expect(dialog).to_be_hidden()


@pytest.mark.slow
def test_a_link_changes_nothing_for_whoever_has_a_key(server: Server, story: Story, open_page: Open) -> None:
    share, secret = story.house.store.create_share(story.failed.job, "local", 60)
    page = open_page(f"{server.url}/#/")
    page.get_by_label("API key").fill("key-of-the-owner")
    page.get_by_role("button", name="Use this key").click()
    expect(page.locator(".jobs > li")).to_have_count(5)
    page.goto(f"{server.url}/#/shared/{secret}")
    expect(page.get_by_text("diverged").first).to_be_visible()
    expect(page.get_by_role("link", name="Edit and run again")).to_have_count(0)
    page.go_back()
    expect(page.locator(".jobs > li")).to_have_count(5)
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    assert story.house.store.shares(story.failed.job, "local") == [share]
    _, other = story.house.store.create_share(story.succeeded.job, "local", 60)
    guest = open_page(f"{server.url}/#/shared/{other}")
    open_log(guest)
    expect(guest.locator("pre.log").last).to_have_text("converting\ndone\n")
    for width, scheme in LOOKS:
        guest.set_viewport_size({"width": width, "height": 860})
        guest.emulate_media(color_scheme=scheme)
        assert inaccessible(guest) == [], (width, scheme)
    guest.goto(f"{server.url}/#/shared/{secret[:-1]}")
    expect(guest.get_by_role("heading", name="This link does not work")).to_be_visible()
    assert inaccessible(guest) == []


@pytest.mark.slow  # an admin's page is looked at in test_data_pages.py, what each may read in `tests/api`
def test_the_system_of_one_tenant(server: Server, open_page: Open) -> None:
    """What is not its own it is told of, and not shown."""
    page = open_page(f"{server.url}/#/system")
    page.get_by_label("API key").fill("key-of-the-owner")
    page.get_by_role("button", name="Use this key").click()
    expect(page.get_by_text("Tenant local")).to_be_visible()
    expect(page.get_by_text("are shown only with an admin key")).to_be_visible()
    expect(page.get_by_text("Disk free")).to_have_count(0)
    assert inaccessible(page) == []
