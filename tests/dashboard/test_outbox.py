"""Uploads beside the pages: they go on wherever the user goes, who sees how far they are, stops them, hears what became
of them, and is asked before the window is closed.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import ALL_LOOKS, Open, client_of, inaccessible, sync_api, until
from serving import Server
from story import pictures

expect = sync_api.expect


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("files") / "pets.zip"
    file.write_bytes(pictures(broken=False))
    return file


def held(page: Any, path: str = "datasets") -> Callable[[], None]:
    """What is sent to this path waits until what is returned is called."""
    waiting: list[Any] = []
    held = [True]

    def hold(route: Any) -> None:
        if route.request.method == "POST" and held:
            waiting.append(route)
        else:
            route.fallback()

    page.route(re.compile(f"/{path}$"), hold)

    def release() -> None:
        until(page, lambda: waiting)
        held.clear()
        waiting.pop().continue_()

    return release


def go(page: Any, name: str) -> None:
    page.get_by_role("navigation", name="Main").get_by_role("link", name=name, exact=True).click()
    expect(page.locator(f"nav [aria-current]:text-is('{name}')")).to_be_visible()


def test_it_goes_on_in_view_on_other_pages(server: Server, open_page: Open, pets: Path) -> None:
    """And who comes back before it has arrived finds it on the list, without loading the page again."""
    page = open_page(f"{server.url}/#/data")
    expect(page.get_by_text("None uploaded yet.")).to_be_visible()
    uploads = page.get_by_role("region", name="Uploads", exact=True)
    expect(uploads).to_be_hidden()
    release = held(page)
    page.get_by_label("Files").set_input_files([pets, pets])
    for name in ("Runs", "System"):
        go(page, name)
        expect(uploads).to_contain_text("Uploads: 2 in progress")
    go(page, "Data")
    expect(page.get_by_text("None uploaded yet.")).to_be_visible()
    release()
    expect(page.locator(".listing tbody tr")).to_have_count(2)
    go(page, "Jobs")
    expect(uploads).to_contain_text("Uploads: 2 sent")
    expect(page.locator("#announcer")).to_have_text(re.compile("^pets.zip was uploaded: 23 images of 2 classes"))
    uploads.get_by_role("button", name="Dismiss pets.zip").last.click()
    uploads.get_by_role("link", name="pets.zip").click()
    expect(page.get_by_role("heading", level=1, name="pets.zip")).to_be_visible()
    uploads.get_by_role("button", name="Dismiss pets.zip").press("Enter")
    expect(uploads).to_be_hidden()
    expect(page.locator("main")).to_be_focused()


def test_a_refusal_is_told_on_the_page_where_the_user_is(server: Server, open_page: Open, tmp_path: Path) -> None:
    """Also where the list of uploads was closed."""
    (tmp_path / "no.zip").write_bytes(b"nothing")
    page = open_page(f"{server.url}/#/data")
    release = held(page)
    page.get_by_label("Files").set_input_files(tmp_path / "no.zip")
    uploads = page.get_by_role("region", name="Uploads", exact=True)
    uploads.locator("summary").press("Enter")
    expect(uploads.get_by_role("button", name="Stop no.zip")).to_be_hidden()
    go(page, "Runs")
    release()
    expect(uploads.get_by_role("alert")).to_contain_text("expected a zip, tar")
    expect(uploads).to_contain_text("Uploads: 1 rejected")


def test_the_browser_asks_before_a_window_is_closed_from_which_something_is_to_go(
    server: Server, open_page: Open, pets: Path
) -> None:
    page = open_page(f"{server.url}/#/data")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
    release = held(page)
    page.get_by_label("Files").set_input_files(pets)
    go(page, "Jobs")
    page.close(run_before_unload=True)
    until(page, lambda: asked)
    assert asked == ["beforeunload"]
    release()
    expect(page.get_by_role("region", name="Uploads", exact=True)).to_contain_text("Uploads: 1 sent")
    page.reload()
    expect(page.locator(".jobs li").first).to_be_visible()
    assert asked == ["beforeunload"]


def test_one_is_stopped_from_another_page(server: Server, open_page: Open, pets: Path) -> None:
    """The next one is sent; and who stops it by the keyboard goes on beside it."""
    page = open_page(f"{server.url}/#/data")
    with client_of(server) as client:
        before = len(client.get("/datasets").json()["data"])
    release = held(page)
    page.get_by_label("Files").set_input_files([pets, pets])
    go(page, "Jobs")
    stop = page.get_by_role("button", name="Stop pets.zip")
    until(page, lambda: stop.count() == 2)
    stop.first.press("Enter")
    expect(stop).to_be_focused()
    page.wait_for_function("() => true")
    release()
    expect(page.get_by_role("region", name="Uploads", exact=True)).to_contain_text("Uploads: 1 sent")
    with client_of(server) as client:
        assert len(client.get("/datasets").json()["data"]) == before + 1


def test_a_form_is_not_sent_without_what_is_on_its_way(
    server: Server, open_page: Open, pets: Path, tmp_path: Path
) -> None:
    """One that was opened anew meanwhile lists what arrives, and what was chosen there stays chosen."""
    late = tmp_path / "late.zip"
    late.write_bytes(pets.read_bytes())
    with client_of(server) as client, pets.open("rb") as file:
        older = client.post("/datasets", files={"file": ("older.zip", file)}).json()["id"]
    page = open_page(f"{server.url}/#/finetune")
    data = page.get_by_label("Data set", exact=True)
    page.get_by_label("A timm model").check()
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    expect(data.locator("option", has_text="older.zip")).to_have_count(1)
    release = held(page)
    upload = page.get_by_label("Upload a data set")
    upload.set_input_files(late)
    page.get_by_role("button", name="Fine-tune", exact=True).click()
    expect(page.get_by_text("late.zip is still uploading: wait until it has arrived, or stop it.")).to_be_visible()
    expect(upload).to_be_focused()
    assert inaccessible(page) == []
    go(page, "Jobs")
    go(page, "Fine-tune")
    data.select_option(older)
    release()
    expect(data.locator("option", has_text="late.zip")).to_have_count(1)
    expect(data).to_have_value(older)


def test_nothing_of_a_page_ends_behind_it(server: Server, open_page: Open, pets: Path) -> None:
    page = open_page(f"{server.url}/#/data")
    held(page)
    page.get_by_label("Files").set_input_files([pets] * 12)
    go(page, "Fine-tune")
    last = page.get_by_role("button", name="What will it take?")
    expect(page.locator("#outbox")).to_contain_text("Uploads: 12 in progress")
    for width, scheme in ALL_LOOKS:
        page.set_viewport_size({"width": width, "height": 640})
        page.emulate_media(color_scheme=scheme)
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        outbox, button = page.locator("#outbox").bounding_box(), last.bounding_box()
        assert outbox["height"] < 330 and outbox["y"] + outbox["height"] <= 641
        assert button["y"] + button["height"] <= outbox["y"]
        assert inaccessible(page, "#outbox", contrast=width == 390) == [], (width, scheme)


def test_how_far_it_is_on_a_phone(server: Server, open_page: Open, pets: Path) -> None:
    """Where the page needs the place it is told in one line, which opens."""
    page = open_page(f"{server.url}/#/data", viewport={"width": 375, "height": 667})
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1}
    network.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": 3000})
    page.get_by_label("Files").set_input_files(pets)
    go(page, "Runs")
    outbox = page.locator("#outbox")
    expect(outbox).to_contain_text(re.compile(r"^Uploads: 1 in progress \(\d+%\)"))
    assert outbox.bounding_box()["height"] < 60
    outbox.locator("summary").press("Enter")
    expect(page.get_by_role("progressbar", name="Upload of pets.zip")).to_be_visible()
    network.send("Network.emulateNetworkConditions", {**slow, "uploadThroughput": -1})
    expect(outbox).to_contain_text("Uploads: 1 sent")
    assert inaccessible(page) == []
