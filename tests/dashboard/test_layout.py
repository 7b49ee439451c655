"""Where things stand on wide and narrow windows: fields in line, answers in whole rows, names in view; and the page
of the API's document: by eye and by axe, on a phone and in the dark, with an operation tried. No worker.
"""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from browsing import ALL_LOOKS, LOOKS, Open, inaccessible, sync_api
from PIL import Image
from serving import Server
from story import SET, VERIFICATION, Story

expect = sync_api.expect
WIDTHS = (1280, 900, 700, 600, 390, 360)
NOT_IN_LINE = """[...document.querySelectorAll('.fields')].flatMap(fields => {
    const rows = new Map();
    for (const field of fields.children) {
        const control = field.querySelector('input, select, textarea');
        if (!control?.checkVisibility()) continue;
        const top = Math.round(field.getBoundingClientRect().top);
        const place = Math.round(control.getBoundingClientRect().top);
        const label = field.querySelector('label').textContent;
        rows.set(top, [...(rows.get(top) ?? []), [label, place, field.classList.contains('tick')]]);
    }
    return [...rows.values()].map(row => row.filter(([,, tick]) => !tick))
        .filter(row => new Set(row.map(([, top]) => top)).size > 1);
})"""
"""Rows of fields whose controls do not stand at one height."""
CUT = """[...document.querySelectorAll('.field.wide')].filter((one) => one.checkVisibility()
    && one.offsetWidth < one.parentElement.clientWidth - 1).map((one) => one.querySelector('label').textContent)"""
"""Fields that should have a row of their own, and share it."""
BROKEN = """[...document.querySelectorAll('.tick label')].filter((one) => {
    const words = document.createRange();
    words.selectNodeContents(one);
    const lines = new Set([...words.getClientRects()].map((box) => Math.round(box.top)));
    return one.checkVisibility() && one.innerText.length < 30 && lines.size !== 1;
}).map((one) => one.innerText)"""
"""Few words beside a box that stand on several lines."""


class Runs(Story):
    """The story; a run with settings of long names, and a conversion that was compared in two precisions."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        config = {"mixup": 0.2, "conversion": {"temperature_of_the_beginning": 0.1}, "sizes": [32, 64], "tags": []}
        request = {"model": "test_resnet", "finetune": {"dataset": SET, "config": config}}
        twice = [{**VERIFICATION["passes"][0], "dtype": dtype} for dtype in ("float32", "float64")]
        twice[1]["logits"] = {"relative": 4.42e-16, "max_relative": 4.43e-16}
        self.second = self._succeed(verification={**VERIFICATION, "passes": twice}, priority=100, request=request)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("layout") / "home")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["transform", "finetune", "evaluate"])
def test_fields_stand_in_line(server: Server, open_page: Open, form: str) -> None:
    page = open_page(f"{server.url}/#/{form}")
    for box in page.get_by_label(re.compile("^(A timm model|Fine-tune it in the same job)$")).all():
        box.check()
    for summary in page.locator("main summary").all():
        summary.click()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate(NOT_IN_LINE) == [], width
        assert page.evaluate(BROKEN) == [], width
        assert page.evaluate(CUT) == [], width


@pytest.mark.slow
def test_names_of_rows_stay_in_view(server: Server, story: Runs, open_page: Open) -> None:
    jobs = ",".join((story.succeeded.job, story.second.job, story.failed.job))
    page = open_page(f"{server.url}/#/compare?jobs={jobs}", viewport={"width": 390, "height": 860})
    region = page.get_by_role("region", name="Settings that differ")
    expect(region).to_have_attribute("data-more", "right")
    name = region.get_by_role("rowheader", name="mixup")
    before = name.bounding_box()
    region.evaluate("one => one.scrollTo(120, 0)")
    expect(region).to_have_attribute("data-more", "left right")
    assert name.bounding_box() == before
    expect(region).to_have_css("--left", "0px")  # it does not fade
    shown = region.evaluate("one => one.clientWidth")
    long = region.get_by_role("rowheader", name="conversion.temperature_of_the_beginning")
    assert long.bounding_box()["width"] < 0.55 * shown
    words = "one => { const at = document.createRange(); at.selectNodeContents(one); return at.toString(); }"
    assert long.evaluate(words) == "conversion.temperature_of_the_beginning"
    sizes = region.get_by_role("row", name="sizes").get_by_role("cell")
    assert sizes.all_inner_texts() == ["–", "32, 64", "–"]
    expect(region.get_by_role("rowheader", name="tags")).to_have_count(0)  # an empty list says nothing
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    region = page.get_by_role("region", name="Models before and after")
    name = region.get_by_role("rowheader").last
    before = name.bounding_box()
    region.evaluate("one => one.scrollTo(120, 0)")
    expect(region).to_have_attribute("data-more", "left right")
    assert name.bounding_box() == before


@pytest.mark.slow
def test_nothing_and_one_run_to_compare(server: Server, story: Runs, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/compare")
    expect(page.get_by_text("Select runs in the table first.")).to_be_visible()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.goto(f"{server.url}/#/compare?jobs={story.second.job}")
    expect(page.get_by_text("All settings are the same.")).to_have_count(0)  # it is one
    expect(page.get_by_role("region", name="Results")).to_be_visible()


def test_on_a_phone_the_verdict_is_whole(server: Server, story: Runs, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.second.job}", viewport={"width": 390, "height": 860})
    errors = page.get_by_role("region", name="Errors by precision")
    expect(errors.get_by_role("row")).to_have_count(3)
    expect(errors).to_have_attribute("data-more", "")
    assert errors.get_by_role("row").nth(1).get_by_role("cell").nth(1).inner_text() == "1e-5"


@pytest.mark.slow
@pytest.mark.parametrize("models", [2, 3, 4])
def test_answers_stand_in_whole_rows(server: Server, story: Runs, open_page: Open, models: int) -> None:
    guesses = [{"name": "a_dog_of_a_long_name", "probability": share} for share in (0.99996, 0.1, 0.0004, 0.0001, 0.0)]
    roles = ("cnn", "before", "tuned_cnn", "t_cnn")[:models]
    said = [{"role": role, "missing": None, "same_classes": True, "guesses": guesses} for role in roles]
    page = open_page("about:blank")
    page.route(re.compile("/predict$"), lambda route: route.fulfill(json={"models": said, "same_first_guess": True}))
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    image = {"name": "a.gif", "mimeType": "image/gif", "buffer": b"GIF89a"}
    page.get_by_label("An image", exact=True).set_input_files(image)
    answers = page.locator(".answer")
    expect(answers).to_have_count(models)
    assert answers.first.locator(".confidence").all_inner_texts() == [">99.9%", "10%", "<0.1%", "<0.1%", "0%"]
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 860})
        tops = page.evaluate("[...document.querySelectorAll('.answer')].map(one => one.getBoundingClientRect().top)")
        rows = [tops.count(top) for top in sorted(set(tops))]
        assert len(set(rows)) == 1, (width, rows)
        assert rows[0] > 1 or width < 700, (width, rows)


@pytest.mark.parametrize("kind", ["JPEG", pytest.param("PNG", marks=pytest.mark.slow)])
def test_an_image_that_is_tried_is_shown_as_models_see_it(
    server: Server, story: Runs, open_page: Open, kind: str
) -> None:
    wide, exif, out = Image.new("RGB", (64, 32)), Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # a camera that was held upright
    wide.save(out, kind, exif=exif)
    page = open_page("about:blank")
    page.route(re.compile("/predict$"), lambda route: route.fulfill(status=422, json={"detail": "no model"}))
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    image = {"name": "a.jpg", "mimeType": f"image/{kind.lower()}", "buffer": out.getvalue()}
    page.get_by_label("An image", exact=True).set_input_files(image)
    shown = page.get_by_alt_text("The image that was tried")
    expect(shown).to_be_visible()
    assert shown.evaluate("async one => (await one.decode(), one.clientWidth / one.clientHeight)") == 2


def test_numbers_are_rounded_to_what_they_say(server: Server, open_page: Open) -> None:
    """A share neither to nothing nor to all."""
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    said: Any = page.evaluate(
        """import('./numbers.js').then(({ percent }) =>
            [0, 1e-9, 0.0001, 0.0006, 0.5, 0.9994, 0.9999, 1].flatMap(share => [percent(share), percent(share, 0)]))"""
    )
    assert said == [
        "0%", "0%", "<0.1%", "<1%", "<0.1%", "<1%", "0.1%", "<1%", "50%", "50%", "99.9%", ">99%", ">99.9%", ">99%",
        "100%", "100%",
    ]  # fmt: skip
    said = page.evaluate(
        """import('./numbers.js').then(({ number }) =>
            [1e-4, 1.25e-4, 2.05e-5, 1e-10, -3e-7, 1.1e7, 0.001, 0].map(value => number(value, 4)))"""
    )
    # Powers of ten have no zeros at their end.
    assert said == ["1e-4", "1.25e-4", "2.05e-5", "1e-10", "-3e-7", "1.1e+7", "0.001", "0"]


def test_a_minute_has_sixty_seconds_and_an_hour_sixty_minutes(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")
    said = page.evaluate(
        """import('./components/format.js').then(({ duration }) =>
            [0.4, 59.7, 119.6, 3599.6, 3600, 5399, 7185, 90000].map(duration))"""
    )
    assert said == ["0 s", "1 min 0 s", "2 min 0 s", "1 h 0 min", "1 h 0 min", "1 h 30 min", "2 h 0 min", "25 h 0 min"]


def opened_document(url: str, open_page: Open, width: int, scheme: str, paths: str = "/") -> Any:
    """The page of the paths that begin so, with an operation opened by the keyboard."""
    page = open_page("about:blank", viewport={"width": width, "height": 860}, color_scheme=scheme)
    page.route("**/openapi.json", lambda route: route.fulfill(json=_some(route.fetch().json(), paths)))
    page.goto(f"{url}/docs")
    page.locator("#operations-models-list_models").get_by_role("button").first.press("Enter")
    expect(page).to_have_url(f"{url}/docs#/models/list_models")
    expect(page.locator(".microlight").first).to_be_visible()
    return page


def _some(document: dict[str, Any], paths: str) -> dict[str, Any]:
    return document | {"paths": {name: one for name, one in document["paths"].items() if name.startswith(paths)}}


@pytest.mark.slow  # as long as ten pages of ours; that it is there, and whole, `tests/api/test_api_problems.py` has
def test_an_operation_is_opened_with_the_keyboard(server: Server, open_page: Open) -> None:
    page = opened_document(server.url, open_page, 1280, "light", "/models")  # all fifty take it ten seconds
    expect(page.get_by_role("button", name="Try it out")).to_be_visible()


@pytest.mark.slow
def test_it_is_read_on_a_phone_in_the_dark(server: Server, open_page: Open) -> None:
    page = opened_document(server.url, open_page, 390, "dark")
    expect(page.locator("#docs")).to_have_css("filter", "invert(0.92) hue-rotate(180deg)")
    assert inaccessible(page) == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), ALL_LOOKS)
def test_an_operation_is_tried(server: Server, open_page: Open, width: int, scheme: str) -> None:
    page = opened_document(server.url, open_page, width, scheme)
    assert inaccessible(page) == []
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table").first).to_contain_text("200")
    assert inaccessible(page) == []
    page.get_by_role("button", name="Authorize").first.click()
    expect(page.get_by_role("button", name="Close").first).to_be_visible()
    assert inaccessible(page) == []
