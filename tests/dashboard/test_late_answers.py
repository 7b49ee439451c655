"""What answers that come late, out of order or not at all must not do to a page. One server, no worker."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from browsing import HOSTILE, Open, sync_api, until
from serving import Server
from story_of_faults import Faults

from tcnn_jobs.model.jobs import Kind, Upload
from tcnn_jobs.model.naming import Labels

expect = sync_api.expect


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("late") / "home")


@pytest.fixture
def uploaded(story: Faults) -> Iterator[Upload]:
    with story.with_a_data_set() as data:
        yield data


@pytest.mark.slow  # what was typed stays where a page is left, in test_form_errors.py
def test_a_form_that_is_filled_and_sent_while_its_lists_still_load(
    server: Server, story: Faults, open_page: Open, uploaded: Upload
) -> None:
    page = open_page("about:blank")
    held: list[Any] = []
    page.route(re.compile(r"/datasets\?"), lambda route: held.append(route))  # noqa: PLW0108 (a method cannot be marked)
    page.goto(f"{server.url}/#/evaluate?job={story.succeeded.job}")
    page.get_by_label("Image sizes").fill("96")
    page.get_by_label("Class by class").uncheck()
    until(page, lambda: held)
    page.reload()  # the browser keeps the place in the history, and with it what was written
    expect(page.get_by_label("Image sizes")).to_have_value("96")
    page.get_by_label("Image sizes").fill("128")
    page.get_by_role("button", name="Evaluate").click()
    expect(page.get_by_role("button", name="Evaluate")).to_be_disabled()
    until(page, lambda: len(held) == 2)
    held[1].continue_()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    with server.client(None) as client:
        made = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    asked = made["request"]
    assert (asked["dataset"], asked["config"]["sizes"]) == (uploaded.id, [128]) and not asked["config"]["per_class"]
    story.house.store.cancel(made["id"])


def test_enter_sends_nothing_while_the_list_that_it_chooses_from_is_on_its_way(
    server: Server, story: Faults, open_page: Open
) -> None:
    """After Escape an arrow key asks for the list again, and marks its first model, or its last one."""
    page = open_page(f"{server.url}/#/transform")
    model = page.get_by_role("combobox", name="Model")
    options = page.get_by_role("listbox", name="Models").get_by_role("option")
    model.fill("test_resnet")
    expect(options.first).to_be_visible()
    model.press("Escape")
    held: list[Any] = []
    page.route(re.compile(r"/models\?"), lambda route: held.append(route))  # noqa: PLW0108 (a method cannot be marked)
    posted: list[str] = []
    page.on("request", lambda asked: asked.method == "POST" and posted.append(asked.url))
    for key, marked in (("ArrowDown", options.first), ("ArrowUp", options.last)):
        model.press(key)
        until(page, lambda: held)
        model.press("Enter")
        held.pop().continue_()
        expect(marked).to_have_attribute("aria-selected", "true")
        if key == "ArrowDown":
            model.press("Escape")
    model.press("Enter")
    expect(options).to_have_count(0)
    expect(model).to_have_value(re.compile("^test_resnet"))
    model.press("ArrowDown")
    model.press("Escape")  # the list that is still to come is not wanted any more
    model.press("Enter")
    until(page, lambda: posted)
    assert len(posted) == 1 and posted[0].endswith("/transform")


@pytest.mark.slow
def test_what_is_open_stays_open_when_a_name_arrives_late(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page("about:blank")
    held: list[Any] = []
    page.route(re.compile("/datasets/"), lambda route: held.append(route))  # noqa: PLW0108 (a method cannot be marked)
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_timeout(1000)  # what may be drawn before the name is
    seen = page.get_by_text("The images on which they differ")
    if early := seen.count() > 0:
        seen.click()
    until(page, lambda: held)
    held[0].continue_()
    page.unroute_all(behavior="wait")
    if not early:
        seen.click()
    page.wait_for_timeout(500)
    expect(page.locator(".changed a").first).to_be_visible()


@pytest.mark.slow
def test_an_answer_that_comes_after_its_page_was_left_is_not_shown(
    server: Server, story: Faults, open_page: Open
) -> None:
    page = open_page("about:blank")
    held: list[Any] = []
    page.route(re.compile(f"/jobs/{story.retried.job}$"), lambda route: held.append(route))  # noqa: PLW0108
    page.goto(f"{server.url}/#/jobs/{story.retried.job}")
    until(page, lambda: held)
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.get_by_role("heading", level=1)).to_have_text("test_resnet")
    with page.expect_response(re.compile(f"/jobs/{story.retried.job}$")):
        held[0].continue_()
    page.evaluate("new Promise((done) => setTimeout(done, 200))")
    expect(page.get_by_role("heading", level=1)).to_have_text("test_resnet")
    assert "test_resnet" in page.title()


@pytest.mark.slow  # as `tests/api` has it, and the client
def test_what_is_sent_again_after_a_lost_answer_is_one_job(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/transform")
    lost: list[str] = []

    def lose(route: Any) -> None:
        if lost:
            route.continue_()
        else:
            lost.append(route.fetch().json()["id"])  # the server has done it, and nobody hears of it
            route.abort()

    page.route(re.compile("/transform$"), lose)
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.locator(".titled .badge")).to_contain_text("Queued")
    assert page.url.rpartition("/")[2] == lost[0]
    story.house.store.cancel(lost[0])


def test_an_edited_request_that_is_sent_again_is_the_same_one(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/evaluate?from={story.evaluated.job}")
    keys: list[str] = []

    def lose(route: Any) -> None:
        keys.append(route.request.headers["idempotency-key"])
        route.abort()

    page.route(re.compile("/evaluate$"), lose)
    request = page.get_by_label("Request")
    expect(request).to_have_value(re.compile(story.succeeded.job))
    for number in (1, 2):
        page.get_by_role("button", name="Run again").click()
        until(page, lambda number=number: len(keys) == number)  # type: ignore[misc]
        expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    request.fill(request.input_value().replace("{", '{"priority": 1,', 1))
    page.get_by_role("button", name="Run again").click()
    until(page, lambda: len(keys) == 3)
    assert keys[0] == keys[1] != keys[2]


def test_that_the_server_was_away_is_told_until_it_answers_again(
    server: Server, story: Faults, open_page: Open
) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.queued.id}", viewport={"width": 360, "height": 500})
    page.route(re.compile("/(cancel|healthz)$|/jobs"), lambda route: route.abort())
    page.get_by_role("button", name="Cancel").click()
    away = page.get_by_text("The server cannot be reached.")
    expect(away).to_be_visible()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    bar, said = page.locator("header.bar").bounding_box(), page.locator("#connection").bounding_box()
    assert 0 < bar["y"] + bar["height"] <= said["y"] + 1, (bar, said)  # below the bar, which has three lines here
    page.unroute_all()
    expect(away).to_be_hidden()
    expect(page.get_by_role("button", name="Cancel")).to_be_enabled()


def test_a_name_that_did_not_come_is_asked_for_again(
    server: Server, story: Faults, open_page: Open, uploaded: Upload
) -> None:
    job = story.house.submit(kind=Kind.FINETUNE, request={"job": story.waits.id, "dataset": uploaded.id})
    page = open_page("about:blank")
    lost: list[Any] = []
    page.route(re.compile("/datasets/"), lambda route: (lost.append(route), route.abort()))
    page.goto(f"{server.url}/#/runs?q={job.id}")
    until(page, lambda: lost)
    expect(page.locator(".runs")).to_contain_text(uploaded.id)
    page.unroute_all()
    held: list[Any] = []
    page.route(re.compile("/datasets/"), lambda route: held.append(route))  # noqa: PLW0108 (a method cannot be marked)
    page.goto(f"{server.url}/#/?kind=finetune")
    until(page, lambda: held)
    page.goto(f"{server.url}/#/jobs/{job.id}")  # which waits for the same answer
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    held[0].continue_()
    expect(page.locator(".request")).to_contain_text(uploaded.name)
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)  # what the job before it learned from
    story.house.store.cancel(job.id)


def test_what_a_job_is_called_now_is_told_where_others_name_it(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.waits.id}")
    expect(page.locator(".request")).to_contain_text(HOSTILE)
    page.goto(f"{server.url}/#/jobs/{story.queued.id}")
    page.get_by_role("button", name="Edit the name").click()
    page.keyboard.type("another name")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("another name")
    page.goto(f"{server.url}/#/jobs/{story.waits.id}")
    expect(page.locator(".request")).to_contain_text("another name")
    story.house.store.label(story.queued.id, "local", Labels(name="named elsewhere"))
    page.goto(f"{server.url}/#/?status=queued")
    row = page.locator(f'.jobs a[href="#/jobs/{story.waits.id}"]')
    expect(row.locator(".name")).to_have_text("named elsewhere")
    story.house.store.label(story.queued.id, "local", Labels(name=None))


def test_curves_that_cannot_be_had_are_not_left_out_in_silence(server: Server, story: Faults, open_page: Open) -> None:
    page = open_page("about:blank")
    page.route(re.compile("metrics.csv"), lambda route: route.fulfill(status=503, json={"detail": "not just now"}))
    page.goto(f"{server.url}/#/compare?jobs={story.succeeded.job},{story.failed.job}")
    expect(page.get_by_role("alert")).to_contain_text("not just now")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("img", name=re.compile("^Training loss"))).to_be_visible()


def test_a_job_that_comes_after_its_form_was_left_is_not_kept_with_another(
    server: Server, story: Faults, open_page: Open
) -> None:
    page = open_page("about:blank")
    held: list[Any] = []
    page.route(re.compile(r"/weights\?"), lambda route: held.append(route))  # noqa: PLW0108 (a method cannot be marked)
    page.goto(f"{server.url}/#/transform?from={story.advised.job}")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("resnet50")
    page.goto(f"{server.url}/#/transform")
    until(page, lambda: len(held) == 2)
    for route in held:
        route.continue_()
    page.unroute_all(behavior="wait")
    page.wait_for_timeout(200)
    page.reload()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("")
