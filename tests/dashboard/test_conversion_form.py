"""Forms of jobs: every option of a conversion has a field, reaches the request, and stands there again when the job
is edited; and a form tells what a job will take, before it is submitted.
"""

import re
from pathlib import Path

import httpx
import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server
from story import Story
from tiny_runs import colours

from tcnn.config import ConversionConfig
from tcnn_api.routes import plan
from tcnn_jobs.client import Client

expect = sync_api.expect
FIELDS = {
    "stage": ("Stage", "3"), "head_dim": ("Head width", "8"), "content_heads": ("Content heads", "2"),
    "temperature": ("Temperature τ", "0.5"), "num_classes": ("Classes", "7"), "seed": ("Seed", "3"),
    "position_reach": ("Farthest shift", "5"), "content": ("Window or grid", "3"),
}  # fmt: skip
CHOICES = {
    "stride": ("Stride of the stage", "dilate"), "query_key": ("Query and key weights", "mimetic"),
    "position": ("Positional attention", "relative"), "content": ("Content attention sees", "pooled"),
}  # fmt: skip
ASKED = {
    "model": "test_resnet", "pretrained": False, "stage": 3, "head_dim": 8, "content_heads": 2, "temperature": 0.5,
    "num_classes": 7, "seed": 3, "position_reach": 5, "stride": "dilate", "query_key": "mimetic",
    "position": "relative", "content": "pooled:3,unpadded",
}  # fmt: skip


def test_all_options_of_a_conversion(server: Server, story: Story, open_page: Open) -> None:
    """Nor is one without a field that `ConversionConfig` gains."""
    page = open_page(f"{server.url}/#/transform")
    model = page.get_by_role("combobox", name="Model")
    model.fill("test_resnet")
    model.press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_text("More conversion options").click()
    expect(page.get_by_label("Window or grid")).to_be_hidden()  # the whole map has none
    controls = "[...document.querySelectorAll('[data-field]')].map((control) => control.dataset.field)"
    assert set(ConversionConfig.model_fields) - set(page.evaluate(controls)) == {"input_size"}  # it is the model's own
    for label, value in CHOICES.values():
        page.get_by_label(label).select_option(value)
    page.get_by_label("Exclude the padding").check()
    for field, (label, value) in FIELDS.items():
        if field != "content":
            page.get_by_label(label, exact=True).fill(value)
    page.get_by_text("More conversion options").click()
    page.get_by_role("button", name="Convert", exact=True).click()
    size = page.get_by_label("Window or grid")
    hint, wrong = "Map pixels, or means, per side.", "Expected a number from 1, for example 7."
    expect(size).to_have_accessible_description(f"{hint} {wrong}")
    expect(size).to_be_focused()
    size.fill("3")
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()
    job = page.url.rpartition("/")[2]
    assert story.house.store.get(job).request == ASKED

    page.goto(f"{server.url}/#/transform?from={job}")
    for label, value in (*CHOICES.values(), *FIELDS.values()):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    expect(page.get_by_label("Exclude the padding")).to_be_checked()


def test_content_heads_where_none_are_named(server: Server, story: Story, open_page: Open) -> None:
    """Four, which the presets for small data can train; in the same job the preset's; an older job has what it had."""
    page = open_page(f"{server.url}/#/transform")
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_text("More conversion options").click()
    heads, also = page.get_by_label("Content heads", exact=True), page.get_by_label("Fine-tune it in the same job")
    expect(heads).to_have_attribute("placeholder", "4")
    also.check()
    expect(heads).to_have_attribute("placeholder", "from the preset")
    also.uncheck()
    page.get_by_role("button", name="Convert", exact=True).click()
    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()
    assert story.house.store.get(page.url.rpartition("/")[2]).request["content_heads"] == 4
    older = httpx.post(f"{server.url}/transform", json={"model": "test_resnet", "pretrained": False}).json()["id"]
    page.goto(f"{server.url}/#/transform?from={older}")
    expect(page.get_by_label("Content heads", exact=True)).to_have_value("0")


@pytest.mark.slow
def test_a_list_that_is_dismissed_before_it_came_stays_away(server: Server, open_page: Open) -> None:
    """Escape after the last letter: models that were asked for come late and would lie over the rest of the form."""
    page = open_page("about:blank")
    page.clock.install()
    page.goto(f"{server.url}/#/transform")
    model = page.get_by_role("combobox", name="Model")
    expect(model).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.pause_at(page.evaluate("Date.now() + 1000"))  # or a slow machine has it ask before Escape comes
    model.fill("resnet18")
    model.press("Escape")
    page.clock.run_for(600)  # five times as long as it waits for further letters
    page.wait_for_timeout(100)
    expect(page.locator("[role=option]")).to_have_count(0)
    assert not [url for url in asked if "models?" in url]


@pytest.mark.slow
def test_what_it_will_take(working_server: Server, open_page: Open, tmp_path: Path) -> None:
    with Client(working_server.url) as client:
        data = client.upload_dataset(colours(tmp_path / "photos"))["id"]
    page = open_page(f"{working_server.url}/#/transform")
    ahead = page.get_by_role("button", name="What will it take?")
    expect(ahead).to_be_hidden()  # a conversion alone takes what the list of models tells
    page.get_by_role("combobox", name="Model").fill("test_resnet")
    page.get_by_role("combobox", name="Model").press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_label("Fine-tune it in the same job").check()
    page.get_by_label("Data set", exact=True).select_option(data)
    page.get_by_label("Batch size").fill("800")
    ahead.click()
    expect(page.locator("p.error:visible")).to_contain_text("a batch of 800 is larger than the 27 training images")
    expect(page.get_by_label("Batch size")).to_be_focused()
    page.get_by_label("Batch size").fill("8")
    page.get_by_label("Image size").fill("64")
    with page.expect_response(re.compile("/plan$"), timeout=2000 * plan.SECONDS):  # a process that loads torch
        ahead.click()
    card = page.get_by_role("status").filter(has_text="What it will take")
    expect(card).to_contain_text("27 to train on, 3 held out")
    expect(card).to_contain_text(re.compile(r"373\sk → \d+\sk"))
    expect(card).to_contain_text("no similar job has run here yet")
    assert inaccessible(page) == []
    assert httpx.get(f"{working_server.url}/jobs").json()["data"] == []
    page.get_by_label("Batch size").fill("9")
    expect(card).to_be_hidden()  # it was about another job
