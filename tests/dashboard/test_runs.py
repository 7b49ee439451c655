"""The table of runs: named, found, sorted, given columns and compared. One server, no worker."""

import re
from typing import Any

import pytest
from browsing import LOOKS, Open, inaccessible, sync_api
from serving import Server
from story import Story

from tcnn_jobs.model.naming import Labels

expect = sync_api.expect
SET = "ds_" + "0" * 24


class Two(Story):
    """The story with a second run, of other settings."""

    second: Any = None


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Two:
    made = Two(tmp_path_factory.mktemp("runs") / "home")
    request = {"model": "test_resnet", "finetune": {"dataset": SET, "config": {"mixup": 0.2, "lr": 0.001}}}
    made.second = made._succeed(priority=100, request=request)
    return made


@pytest.mark.slow  # a note is edited, and runs are found by their address, below; `tests/jobs/store` names and sorts
def test_runs_are_named_found_and_sorted(server: Server, story: Two, open_page: Open) -> None:
    """Each row begins with the accuracy of the model that was kept."""
    page = open_page(f"{server.url}/#/runs")
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(6)
    expect(page.locator(".runs thead th").nth(1)).to_have_text("accuracy")
    row = rows.filter(has=page.locator(f'a[href="#/jobs/{story.second.job}"]'))
    expect(row.locator("td").nth(1)).to_have_text("80%")
    page.get_by_role("button", name="Edit the name of convnext_tiny").click()
    page.keyboard.type("not this")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit the name of convnext_tiny")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("<b>the first")
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="<b>the first")).to_be_visible()
    page.get_by_role("button", name="Edit the tags of <b>the first").click()
    page.keyboard.type('old, a"b')
    page.keyboard.press("Enter")
    expect(page.locator(".runs .error")).to_contain_text("quotation mark")
    assert inaccessible(page, ".runs") == []
    page.get_by_role("textbox", name="The tags of").fill("old, ablation")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="old", exact=True).click()
    expect(rows).to_have_count(1)
    named = story.house.store.get(story.cancelled.id)
    assert (named.name, named.tags) == ("<b>the first", ("old", "ablation"))

    page.get_by_role("button", name="Remove the filter by tag old").click()
    expect(rows).to_have_count(6)
    page.get_by_label("Search").fill("FIRST ablation")
    expect(rows).to_have_count(1)
    page.reload()  # the address has it
    expect(page.get_by_label("Search")).to_have_value("FIRST ablation")
    expect(rows).to_have_count(1)
    page.get_by_label("Search").fill("test_resnet")
    expect(rows).to_have_count(2)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="mixup").check()
    page.get_by_role("button", name="mixup").click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("mixup ▼")
    expect(rows.first.get_by_role("cell").last).to_have_text("0.2")
    page.get_by_role("button", name="mixup").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("mixup ▲")
    page.go_back()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("mixup ▼")


@pytest.mark.slow
def test_runs_are_compared_without_one_that_was_deleted(server: Server, story: Two, open_page: Open) -> None:
    gone = "job_" + "9" * 24
    page = open_page(f"{server.url}/#/compare?jobs={story.succeeded.job},{gone},{story.second.job}")
    expect(page.locator(".notice")).to_have_text(f"No longer available: {gone}.")
    row = page.get_by_role("region", name="Settings that differ").get_by_role("row").nth(1)
    expect(row).to_contain_text("mixup")
    for width, scheme in [(1280, "light"), *LOOKS]:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.goto(f"{server.url}/#/compare?jobs={gone}")
    expect(page.locator(".notice")).to_have_text(f"No longer available: {gone}.")
    expect(page.get_by_role("link", name="All runs")).to_be_visible()


def test_runs_are_compared_and_cloned(server: Server, story: Two, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/runs?q=test_resnet")
    ticks = page.get_by_role("checkbox", name="Select test_resnet")
    ticks.first.check()
    expect(page.get_by_role("link", name="Clone and edit")).to_have_attribute(
        "href", re.compile("^#/transform.from=job_")
    )
    ticks.last.check()
    page.get_by_role("link", name="Compare").click()
    differ = page.get_by_role("region", name="Settings that differ").get_by_role("row")
    assert differ.nth(1).inner_text().split() == ["mixup", "0.2", "–"]
    expect(page.get_by_role("img", name=re.compile("Validation top-1: .* to 80%; .* to 80%"))).to_be_visible()
    page.go_back()
    expect(ticks.last).to_be_checked()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.set_viewport_size({"width": 1280, "height": 860})
    page.goto(f"{server.url}/#/jobs/{story.second.job}")
    page.get_by_role("button", name="Edit the note of").click()
    page.keyboard.type("as in\nthe table")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".note")).to_have_text("as in\nthe table")
    page.get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_role("combobox", name="Model")).to_have_value("test_resnet")
    expect(page.get_by_label("Settings, one NAME=VALUE per line")).to_have_value("mixup=0.2")
    page.get_by_text("Name and queue").click()
    page.get_by_label("Name", exact=True).fill("again")
    page.get_by_label("Tags").fill("a, b")
    page.get_by_label("Fine-tune it in the same job").uncheck()
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="again")).to_be_visible()
    expect(page.locator(".labels .tag")).to_have_text(["a", "b"])
    job = page.url.rpartition("/")[2]
    page.get_by_role("link", name="Clone and edit").click()
    tags = page.get_by_role("textbox", name="Tags")
    expect(tags).to_have_value("a, b")
    expect(tags).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("")
    page.goto(f"{server.url}/#/evaluate?from={job}")
    expect(page.get_by_label("Request")).to_have_value(re.compile(r'"tags": \[\s*"a",\s*"b"\s*\]'))


def test_more_runs_than_are_compared_are_said_to_be(server: Server, story: Two, open_page: Open) -> None:
    others = ",".join(f"job_{number:024}" for number in range(7))
    page = open_page(f"{server.url}/#/compare?jobs={story.second.job},{others}")
    expect(page.locator(".notice").last).to_have_text("At most 7 runs can be compared: these are the first 7 of 8.")


def test_a_name_given_elsewhere_is_seen_when_the_window_is_looked_at_again(
    server: Server, story: Two, open_page: Open
) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.second.job}")
    heading = page.get_by_role("heading", level=1)
    named = page.get_by_role("link", name="named", exact=True)
    for name in ("named", "named again"):
        expect(heading).to_be_visible()
        story.house.store.label(story.second.job, "local", Labels(name=name, tags=(name,)))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(heading).to_have_text(name)
        expect(page.locator(".labels .tag")).to_have_text([name])
        expect(page.get_by_role("button", name=f"Edit the note of {name}", exact=True)).to_be_visible()
    page.goto(f"{server.url}/#/runs?status=succeeded")
    expect(page.get_by_role("link", name="named again", exact=True)).to_be_visible()
    story.house.store.label(story.second.job, "local", Labels(name="named"))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(named).to_be_visible()
    story.house.store.label(story.second.job, "local", Labels())


def test_who_is_in_the_table_stays_there_when_it_is_drawn_again(server: Server, story: Two, open_page: Open) -> None:
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/runs")
    link = page.get_by_role("link", name="resnet18", exact=True)  # of the job that runs
    link.focus()
    sorter = page.get_by_role("button", name="Created")
    for place in (link, page.get_by_role("checkbox", name="Select resnet50d.ra2_in1k"), sorter):
        place.focus()
        story.house.store.label(story.running.job, "local", Labels(note=place.inner_text() or "a note"))
        with page.expect_response(re.compile(r"/jobs\?")):
            page.clock.run_for(6000)
        expect(link).to_have_attribute("title", place.inner_text() or "a note")  # by then it is drawn
        expect(place).to_be_focused()


def test_letters_that_are_still_composed_are_no_name_yet(server: Server, story: Two, open_page: Open) -> None:
    """Enter chooses among the letters that an input method offers."""
    page = open_page(f"{server.url}/#/jobs/{story.running.job}")
    page.get_by_role("button", name="Edit the name").click()
    field = page.get_by_role("textbox", name="The name of")
    page.keyboard.type("にほん")
    for key in ("Enter", "Escape"):
        field.dispatch_event("keydown", {"key": key, "isComposing": True})
    page.wait_for_timeout(200)
    expect(field).to_have_value("にほん")
    expect(page.get_by_role("heading", level=1)).to_have_count(1)  # for those who do not see the field in its place
    assert inaccessible(page, ".head") == []
    page.keyboard.press("Escape")
    assert page.locator("h1").bounding_box()["width"] > 20, "it is seen again"
    assert story.house.store.get(story.running.job).name is None


def test_tags_are_whole_and_in_order_in_letters_of_any_direction(server: Server, story: Two, open_page: Open) -> None:
    story.house.store.label(story.failed.job, "local", Labels(tags=("עברית", "العربية")))
    page = open_page(f"{server.url}/#/?status=failed")
    for address, tags in (("?status=failed", ".jobs bdi"), (f"jobs/{story.failed.job}", ".labels .tag")):
        page.goto(f"{server.url}/#/{address}")
        expect(page.locator(tags)).to_have_count(2)
        first, second = (one.bounding_box()["x"] for one in page.locator(tags).all())
        assert first < second, address
    story.house.store.label(story.failed.job, "local", Labels(tags=("W" * 50,)))
    page.set_viewport_size({"width": 360, "height": 860})
    page.reload()
    expect(page.locator(".labels .tag")).to_have_count(1)
    assert inaccessible(page) == []
