"""Pages that show, send files or share, and a server that is really killed (SIGKILL) and begun again."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import Open, inaccessible, open_log, sync_api, until, with_key
from mortal import Mortal, mortal
from story import Story, pictures

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


@contextmanager
def answering_in_its_place(server: Mortal) -> Iterator[None]:
    """As a proxy before a server that is away."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(502)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>502 Bad Gateway</h1>")

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", server.port), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield
        proxy.shutdown()


@pytest.mark.slow  # details that did not come: test_silent_server
def test_what_was_opened_while_it_was_away_is_there_when_it_is_back(
    server: Mortal, story: Story, open_page: Open
) -> None:
    """Of a job's page: its log, of which the lines that were there stay, and the details of before and after."""
    page = with_key(open_page, f"{server.url}/#/jobs/{story.succeeded.job}", KEY)
    log = page.get_by_role("region", name=re.compile("^Log"))
    open_log(page)
    expect(log).to_contain_text("converting")
    server.kill()
    page.get_by_label("Search", exact=True).fill("done")
    alerts = page.get_by_role("alert").filter(has_text=AWAY)
    expect(alerts).to_have_count(1)
    expect(log).to_contain_text("converting")
    page.get_by_text("Class by class").click()
    expect(alerts).to_have_count(2)
    file = page.get_by_role("link", name=re.compile("^before-after.json"))
    for _ in range(2):
        file.click()
        expect(file).to_have_text(re.compile(rf"^before-after.json \({AWAY}"))
    assert inaccessible(page) == []
    server.start()
    expect(log.locator("mark")).to_have_text("done")
    expect(page.get_by_role("region", name="Accuracy by class")).to_be_visible()
    expect(alerts).to_have_count(0)
    expect(file).to_have_text("before-after.json")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["compare", "jobs"])
def test_to_try_again_in_vain_does_not_lose_the_page(server: Mortal, story: Story, open_page: Open, which: str) -> None:
    """As a reload would, after which nothing of the page is left that could notice that the server is back."""
    page = with_key(open_page, f"{server.url}/#/system", KEY)
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    server.kill()
    one = story.succeeded.job
    address = f"compare?jobs={one},{story.failed.job}" if which == "compare" else f"jobs/{one}"
    page.evaluate("address => { location.hash = address; }", f"#/{address}")
    again = page.get_by_role("button", name="Try again")
    for _ in range(2):
        again.press("Enter")
        expect(again).to_be_focused()
    server.start()
    expect(page.get_by_text("test_resnet").first).to_be_visible()
    expect(again).to_have_count(0)
    assert page.evaluate("document.activeElement !== document.body"), "who goes on with the keyboard begins here"


@pytest.mark.slow  # as test_silent_server and test_late_answers
def test_a_forms_upload_that_broke_off_is_sent_again_as_the_same_one(
    server: Mortal, open_page: Open, tmp_path: Path
) -> None:
    """Without choosing the file once more, or a press, and it is there once; the form waits for it."""
    (tmp_path / "pets.zip").write_bytes(pictures(broken=False))
    page = with_key(open_page, f"{server.url}/#/finetune", KEY)
    sent: list[str] = []
    page.on("request", lambda one: one.method == "POST" and sent.append(one.headers["idempotency-key"]))
    expect(page.get_by_label("Data set", exact=True)).to_contain_text("None uploaded yet")
    server.suspend()
    page.get_by_label("Upload a data set").set_input_files(tmp_path / "pets.zip")
    until(page, lambda: sent)
    server.kill()
    again = page.get_by_role("button", name="Try again to send pets.zip")
    expect(again).to_be_visible()
    expect(page.locator("main .error:visible")).to_contain_text(AWAY)
    again.focus()
    server.start()
    expect(page.get_by_role("button", name=re.compile("(Stop|Dismiss) pets.zip"))).to_be_focused()
    expect(page.get_by_label("Data set", exact=True).locator("option:checked")).to_contain_text("pets.zip")
    expect(page.locator("main").get_by_text("23 images of 2 classes")).to_be_visible()
    expect(again).to_be_hidden()
    assert sent[0] == sent[-1] and len(sent) == 2
    with server.client(KEY) as client:
        assert len(client.get("/datasets").json()["data"]) == 1


def test_a_link_that_was_made_as_it_died_is_not_made_twice(server: Mortal, story: Story, open_page: Open) -> None:
    """Its secret went with the answer: it is revoked, and another one takes its place."""
    page = with_key(open_page, f"{server.url}/#/jobs/{story.succeeded.job}", KEY)

    def die(route: Any) -> None:
        assert route.fetch().status == 201
        server.kill()
        route.continue_()

    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog")
    make = dialog.get_by_role("button", name="Create a link")
    page.route(re.compile("/shares$"), die, times=1)
    make.click()
    expect(dialog.get_by_role("alert")).to_contain_text(AWAY)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Share").click()  # whose list cannot be had now
    expect(dialog.get_by_role("alert")).to_contain_text(AWAY)
    server.start()
    links = dialog.get_by_role("list", name="Links").get_by_role("listitem")
    expect(links).to_have_count(1)
    make.click()
    expect(dialog.get_by_label("The link (shown only once)")).to_have_value(re.compile("/#/shared/tcnnshare_"))
    expect(links).to_have_count(1)


@pytest.mark.slow
def test_an_answer_that_breaks_off_is_asked_for_again(server: Mortal, story: Story, open_page: Open) -> None:
    """One of which the first part has arrived: of it the browser says other words, which nobody understands."""
    folder = story.house.home.attempt(story.succeeded.job, story.succeeded.number)
    before = (folder / "log.txt").read_text()
    (folder / "log.txt").write_text(before + "a long line, of which there are many\n" * 2_000_000 + "the last\n")
    page = with_key(open_page, f"{server.url}/#/jobs/{story.succeeded.job}", KEY)
    open_log(page)
    expect(page.get_by_role("region", name=re.compile("^Log"))).to_contain_text("the last")
    begun: list[str] = []

    def stop(answer: Any) -> None:
        if answer.url.endswith("/logs?") and not begun:
            begun.append(answer.url)
            server.kill()

    page.on("response", stop)
    page.get_by_label("Search", exact=True).fill("the last")
    until(page, lambda: begun)
    expect(page.get_by_role("alert").filter(has_text=AWAY)).to_be_visible()
    (folder / "log.txt").write_text(before + "the last\n")
    server.start()
    expect(page.locator("mark")).to_have_text("the last")


@pytest.mark.slow
def test_behind_a_proxy_it_is_as_far_away(server: Mortal, story: Story, open_page: Open, tmp_path: Path) -> None:
    """Pages say so and go on by themselves: a stream, what is asked for meanwhile, a list of a form, and an upload."""
    (tmp_path / "pets.zip").write_bytes(pictures(broken=False))
    page = with_key(open_page, f"{server.url}/#/", KEY)
    expect(page.locator(".jobs li").first).to_be_visible()
    lost = page.get_by_role("status").filter(has_text="Connection lost. Trying again…")
    server.kill()
    with answering_in_its_place(server):
        expect(lost).to_be_visible()
        page.get_by_role("link", name="Data", exact=True).click()
        alert = page.locator("main").get_by_role("alert")
        expect(alert).to_contain_text(AWAY)
        page.get_by_label("Files").set_input_files(tmp_path / "pets.zip")
        expect(page.locator("#outbox")).to_contain_text(AWAY)
        page.get_by_role("link", name="Fine-tune", exact=True).click()
        data = page.get_by_label("Data set", exact=True)
        expect(data).to_contain_text("The list cannot be loaded while the server is unreachable.")
        expect(lost).to_be_visible()
    server.start()
    expect(lost).to_be_hidden()
    expect(data).to_contain_text("pets.zip · 23 images, 2 classes")
