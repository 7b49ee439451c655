"""Forms and a server that is really killed (SIGKILL) and begun again: nothing that was chosen or typed is lost, nothing
is sent twice, and lists that could not be had are filled when it is back.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api, until
from mortal import Mortal, mortal
from serving import Server
from story_of_faults import Faults

from tcnn_jobs.model.jobs import Upload

expect = sync_api.expect
AWAY = "The server cannot be reached."


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("killed") / "home")


@pytest.fixture(scope="module")
def running(story: Faults) -> Iterator[Mortal]:
    with mortal(story.house.home.root) as server:
        yield server


@pytest.fixture
def server(running: Mortal) -> Mortal:
    running.revive()
    return running


@pytest.fixture
def beside(story: Faults) -> Iterator[Upload]:
    """The older one of two data sets."""
    details = {"classes": ["cat", "dog"], "images": 40, "splits": {}}
    data = Upload(id="ds_" + "2" * 24, owner="local", kind="dataset", name="older.zip", path="y", size=1,
                  sha256="0" * 64, details=details)  # fmt: skip
    yield story.house.store.add_upload(data)
    story.house.store.remove_upload(data.id)


@pytest.fixture
def uploaded(story: Faults, beside: Upload) -> Iterator[Upload]:
    with story.with_a_data_set() as data:
        yield data


def jobs(server: Server) -> set[str]:
    with server.client(None) as client:
        return {job["id"] for job in client.get("/jobs?limit=100").json()["data"]}


@pytest.mark.slow
def test_lists_that_could_not_be_had_are_filled_when_it_is_back(
    server: Mortal, story: Faults, open_page: Open, uploaded: Upload, beside: Upload
) -> None:
    """With what was chosen before, and not with what they begin with; in a form that was left meanwhile, too."""
    page = open_page(f"{server.url}/#/evaluate?job={story.succeeded.job}")
    data, sizes = page.get_by_label("Data set", exact=True), page.get_by_label("Image sizes")
    expect(data).to_have_value(uploaded.id)
    data.select_option(beside.id)
    against = page.get_by_label("Compare with", exact=True)
    against.select_option(story.steady.job)
    sizes.fill("64")  # as a person's hand: what a test chooses from a list is not kept for that alone
    server.kill()
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("alert")).to_contain_text(AWAY)
    page.go_back()
    expect(data).to_contain_text("The list cannot be loaded while the server is unreachable.")
    expect(data).to_have_value(beside.id)
    sizes.fill("96")  # the form is kept as it is now
    assert inaccessible(page) == []
    server.start()
    expect(data.locator("option:checked")).to_contain_text("older.zip")
    expect(page.get_by_label("Model", exact=True)).to_have_value(story.succeeded.job)
    expect(against).to_have_values([story.steady.job])
    expect(sizes).to_have_value("96")
    expect(sizes).to_be_focused()
    page.reload()
    expect(data.locator("option:checked")).to_contain_text("older.zip")
    expect(sizes).to_have_value("96")


@pytest.mark.slow  # as the lists
@pytest.mark.parametrize("form", ["evaluate", "transform"])
def test_a_job_that_is_edited_is_loaded_when_it_is_back(
    server: Mortal, story: Faults, open_page: Open, form: str
) -> None:
    """Until then there is no form into which somebody might write what is replaced, and one line says why."""
    page = open_page(f"{server.url}/#/system")
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    server.kill()
    job = story.advised.job if form == "transform" else story.evaluated.job
    page.evaluate("address => { location.hash = address; }", f"#/{form}?from={job}")
    expect(page.locator("[role=alert]:visible")).to_have_count(1)
    expect(page.get_by_role("alert").filter(has_text=AWAY)).to_be_visible()
    again = page.get_by_role("button", name="Try again")
    again.press("Enter")
    expect(again).to_be_focused()
    server.start()
    if form == "transform":
        expect(page.get_by_role("combobox", name="Model")).to_have_value("resnet50")
        expect(page.get_by_label("Pretrained weights")).to_be_visible()
    else:
        request = page.get_by_label("Request")
        expect(request).to_have_value(re.compile(story.succeeded.job))
        request.fill("{")
        page.get_by_role("button", name="Run again").click()
        expect(page.get_by_text("This is not valid JSON")).to_be_visible()
        expect(request).to_be_focused()
        page.reload()
        expect(page.get_by_text("Evaluate on")).to_be_visible()
        expect(request).to_have_value("{")
    expect(page.locator("[role=alert]:visible")).to_have_count(0)


def test_what_is_sent_as_it_dies_is_one_job(server: Mortal, open_page: Open) -> None:
    """Also by a page that was loaded again before it was sent again; what is sent after that is another job."""
    before = jobs(server)
    page = open_page(f"{server.url}/#/transform")
    button = page.get_by_role("button", name="Convert", exact=True)
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Tab")
    page.get_by_text("More conversion options").click()
    page.get_by_label("Stage", exact=True).fill("-1")
    done: list[str] = []

    def die(route: Any) -> None:
        done.append(route.fetch().json()["id"])
        server.kill()
        route.continue_()

    page.route(re.compile("/transform$"), die, times=1)
    button.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(AWAY)
    expect(button).to_be_focused()
    server.start()
    expect(page.get_by_role("alert")).to_be_hidden()
    page.reload()
    expect(page.get_by_label("Stage", exact=True)).to_have_value("-1")
    button.click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    assert jobs(server) - before == {page.url.rpartition("/")[2]} == set(done)
    page.go_back()
    expect(page.get_by_label("Stage", exact=True)).to_have_value("-1")
    button.click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    assert len(jobs(server) - before) == 2


def test_what_is_sent_to_one_that_is_suspended_is_sent_once(server: Mortal, open_page: Open) -> None:
    """And done when it goes on, without a second press."""
    before = jobs(server)
    page = open_page(f"{server.url}/#/transform")
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Tab")
    sent: list[str] = []
    page.on("request", lambda asked: asked.method == "POST" and sent.append(asked.url))
    server.suspend()
    button = page.get_by_role("button", name="Convert", exact=True)
    button.click()
    until(page, lambda: sent)
    expect(button).to_be_disabled()
    server.resume()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    assert (len(sent), len(jobs(server) - before)) == (1, 1)


@pytest.mark.slow  # as the lists
def test_a_models_name_is_looked_for_when_it_is_back(server: Mortal, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/transform")
    server.kill()
    model = page.get_by_role("combobox", name="Model")
    model.fill("test_resnet")
    said = page.locator(".about-model")
    expect(said).to_contain_text(AWAY)
    page.get_by_label("Pretrained weights").focus()
    server.start()
    expect(said).to_contain_text("2 layers")
    expect(model).to_have_value("test_resnet")
