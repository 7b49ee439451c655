"""Every option of a conversion has a field: it reaches the request, and stands there again when the job is edited."""

from collections.abc import Iterator

import pytest
from browsing import Open, sync_api
from serving import Server, hosted
from story import Story

from tcnn.config import ConversionConfig

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


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("conversion") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    with hosted(story.house.home.root) as running:
        yield running


def test_all_options_of_a_conversion(server: Server, story: Story, open_page: Open) -> None:
    """Nor is one without a field that `ConversionConfig` gains."""
    page = open_page(f"{server.url}/#/transform")
    model = page.get_by_role("combobox", name="Model")
    model.fill("test_resnet")
    model.press("Escape")
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_text("More about the conversion").click()
    expect(page.get_by_label("Window or grid")).to_be_hidden()  # the whole map has none
    controls = "[...document.querySelectorAll('[data-field]')].map((control) => control.dataset.field)"
    assert set(ConversionConfig.model_fields) - set(page.evaluate(controls)) == {"input_size"}  # it is the model's own
    for label, value in CHOICES.values():
        page.get_by_label(label).select_option(value)
    page.get_by_label("Without the padding").check()
    for field, (label, value) in FIELDS.items():
        if field != "content":
            page.get_by_label(label, exact=True).fill(value)
    page.get_by_text("More about the conversion").click()
    page.get_by_role("button", name="Convert", exact=True).click()
    size = page.get_by_label("Window or grid")
    hint, wrong = "Pixels of the map, or means, on a side.", "Expected a number from 1, for example 7."
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
    expect(page.get_by_label("Without the padding")).to_be_checked()


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
