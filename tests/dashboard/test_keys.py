"""A server with keys: the dialog that asks for one, whose it is, and the pages of one tenant. No worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import LOOKS, Open, archive, inaccessible, sync_api, until
from serving import Server, hosted
from story import Story

from tcnn_api.access import credentials
from tcnn_jobs.model.accounts import NewKey

expect = sync_api.expect


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
    expect(page.get_by_role("alert").filter(has_text="does not recognise")).to_be_visible()
    page.keyboard.type("secret-of-this")  # in the place of the wrong one, of which nobody sees the letters
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
    expect(page.get_by_role("alert").filter(has_text="does not recognise")).to_be_visible()
    page.reload()
    expect(page.locator(".jobs li")).to_have_count(5)


@pytest.mark.slow
def test_the_dialog_says_why_it_asks(server: Server, open_page: Open) -> None:
    page = open_page(server.url)
    expect(page.get_by_role("dialog", name="This server requires a key")).to_be_visible()
    expect(page.get_by_role("button", name="Forget the key")).to_be_hidden()
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
    expect(page.get_by_role("dialog", name="This server requires a key")).to_be_visible()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(
        "The server does not recognise this key. Check it, or ask for another."
    )
    page.get_by_role("button", name="Forget the key").click()
    expect(page.locator("#key-error")).to_be_empty()


def test_a_key_that_two_windows_ask_for_is_given_once(server: Server, open_page: Open) -> None:
    """As when it has expired while both were open."""
    page = open_page(server.url)
    other = page.context.new_page()
    other.goto(server.url)
    for window in (page, other):
        expect(window.get_by_role("dialog")).to_be_visible()
    entered(page, "secret-of-this")
    for window in (page, other):
        expect(window.locator(".jobs li")).to_have_count(5)
        expect(window.get_by_role("dialog")).to_be_hidden()
        expect(window.get_by_role("button", name="Key of local")).to_be_visible()


def given_another(page: Any, key: str) -> None:
    page.locator("#key").click()
    entered(page, key)


def test_another_key_is_that_of_every_window(server: Server, story: Story, open_page: Open) -> None:
    """What the key before it has opened would stand there under the other tenant's name, and go on to be told."""
    page = open_page(server.url)
    entered(page, "secret-of-this")
    windows = [page.context.new_page() for _ in range(2)]
    for window, address in zip(windows, (f"jobs/{story.running.job}", "runs"), strict=True):
        window.goto(f"{server.url}/#/{address}")
    job, runs = windows
    expect(job.get_by_role("heading", level=1)).to_have_text("resnet18")
    expect(runs.locator(".runs tbody tr")).to_have_count(5)
    given_another(runs, "other-key")
    expect(runs.get_by_text("No runs match.")).to_be_visible()
    expect(page.get_by_text("Nothing here yet")).to_be_visible()
    expect(job.get_by_role("heading", level=1)).to_have_text("Job not found")
    for window in (page, job):
        expect(window.get_by_role("button", name="Key of bob")).to_be_visible()


def test_a_key_that_one_window_forgets_opens_nothing_in_any(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(server.url)
    entered(page, "secret-of-this")
    other = page.context.new_page()
    other.goto(f"{server.url}/#/jobs/{story.running.job}")
    expect(other.get_by_role("heading", level=1)).to_have_text("resnet18")
    page.locator("#key").click()
    page.get_by_role("button", name="Forget the key").click()
    for window in (page, other):
        expect(window.get_by_role("dialog", name="This server requires a key")).to_be_visible()
        expect(window.locator("#key")).to_have_text("Key")
        assert window.evaluate("sessionStorage.getItem('tcnn-key')") is None
    expect(page.locator(".jobs li")).to_have_count(0)
    expect(other.get_by_role("heading", level=1)).to_have_text("The job cannot be shown")
    entered(other, "secret-of-this")
    expect(page.locator(".jobs li")).to_have_count(5)
    expect(other.get_by_role("heading", level=1)).to_have_text("resnet18")


def test_a_file_goes_to_whom_it_was_chosen_for(server: Server, open_page: Open, tmp_path: Path) -> None:
    """One whose turn comes when the window has another tenant's key waits for somebody to say so."""
    page = open_page(f"{server.url}/#/data")
    entered(page, "secret-of-this")
    expect(page.get_by_text("None uploaded yet.")).to_be_visible()
    other = page.context.new_page()
    other.goto(server.url)
    expect(other.get_by_role("button", name="Key of local")).to_be_visible()
    held: list[Any] = []
    page.route("**/datasets", lambda route: route.continue_() if held else held.append(route))
    for name in ("first", "second"):
        (tmp_path / f"{name}.zip").write_bytes(archive(tmp_path / name))
    page.get_by_label("Files").set_input_files([tmp_path / "first.zip", tmp_path / "second.zip"])
    until(page, lambda: held)
    given_another(other, "other-key")
    expect(page.get_by_role("button", name="Key of bob")).to_be_visible()
    held[0].continue_()  # on its way already, with the key that it was sent with
    expect(page.locator("#outbox .sent")).to_contain_text("first.zip")
    expect(page.locator("#outbox .error")).to_contain_text("The key has changed since this file was chosen.")
    assert inaccessible(page, "#outbox") == []
    with server.client("other-key") as bob, server.client("secret-of-this") as local:
        assert bob.get("/datasets").json()["data"] == []
        assert [one["name"] for one in local.get("/datasets").json()["data"]] == ["first.zip"]
        page.get_by_role("button", name="Try again to send second.zip").click()
        expect(page.locator(".listing").get_by_role("link", name="second.zip")).to_be_visible()
        assert [one["name"] for one in bob.get("/datasets").json()["data"]] == ["second.zip"]
        local.delete(f"/datasets/{local.get('/datasets').json()['data'][0]['id']}")


def test_a_key_that_was_refused_is_not_sent_again(
    story: Story, open_page: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that look again would use up the wrong keys that an address may send, and the next one would be refused."""
    monkeypatch.setattr(credentials, "LIFE", 0.0)
    store = story.house.store
    made, secret = store.create_key(NewKey(tenant="local"))
    sent: list[str] = []
    with hosted(story.house.home.root) as server:
        page = open_page(f"{server.url}/#/runs")
        entered(page, secret)
        expect(page.locator(".runs tbody tr")).to_have_count(5)
        data = page.context.new_page()
        data.goto(f"{server.url}/#/data")
        expect(data.get_by_text("None uploaded yet.")).to_be_visible()
        for window in (page, data):
            window.on("response", lambda answer: answer.status == 401 and sent.append(answer.url))
        store.revoke_key(made.id)
        (tmp_path / "a.zip").write_bytes(b"0" * 1000)
        data.get_by_label("Files").set_input_files(tmp_path / "a.zip")
        expect(data.get_by_role("dialog", name="This server requires a key")).to_be_visible()
        expect(data.locator("#outbox .error")).to_have_text("This server requires a valid key.")
        expect(page.get_by_role("dialog", name="This server requires a key")).to_be_visible()
        before = len(sent)
        for _ in range(3):
            page.keyboard.press("Escape")
            page.evaluate("document.querySelector('.runs .sorter').click()")
            expect(page.get_by_role("dialog")).to_be_visible()
        assert len(sent) == before
        page.goto(f"{server.url}/#/jobs/{story.running.job}")
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", level=1)).to_have_text("The job cannot be shown")
        entered(data, store.create_key(NewKey(tenant="local"))[1])
        expect(page.get_by_role("heading", level=1)).to_have_text("resnet18")
        expect(data.get_by_role("dialog")).to_be_hidden()
