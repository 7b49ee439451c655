"""Charts: values under the pointer, a legend that hides, files of what is shown; on the pages and in reports."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import HOSTILE, LOOKS, Open, inaccessible, sync_api
from PIL import Image
from serving import Server
from story import Story

from tcnn.analysis.pages.report import report

expect = sync_api.expect


def saved(page: Any, chart: Any, kind: str) -> bytes:
    with page.expect_download() as waiting:
        chart.get_by_role("button", name=re.compile(f"^Save .* as {kind}$")).click()
    assert waiting.value.suggested_filename.endswith(f".{kind.lower()}")
    return Path(waiting.value.path()).read_bytes()


def as_files(page: Any, chart: Any, rows: list[dict[str, Any]]) -> None:
    """The chart of losses as CSV, SVG and PNG, before and after a series is hidden."""
    table = list(csv.DictReader(io.StringIO(saved(page, chart, "CSV").decode())))
    assert list(table[0]) == ["optimizer steps", "training, by step", "training", "validation"]
    by_step = {float(row["optimizer steps"]): row for row in table}
    for row in rows:
        column, value = (
            ("training, by step", row["loss"]) if row["kind"] == "train" else ("training", row["train_loss"])
        )
        assert float(by_step[row["updates"]][column]) == pytest.approx(value)
    drawn = ElementTree.fromstring(saved(page, chart, "SVG"))
    space = {"svg": "http://www.w3.org/2000/svg"}
    words = [one.text for one in drawn.iterfind(".//svg:text", space)]
    assert words[0] == "Loss" and {"training, by step", "training", "validation", "optimizer steps"} <= set(words)
    lines = [one for one in drawn.iterfind(".//svg:path", space) if one.get("fill") == "none"]
    assert len(lines) == 3 and len({one.get("stroke") for one in lines}) == 3
    picture = Image.open(io.BytesIO(saved(page, chart, "PNG"))).convert("RGB")
    assert picture.width == 2 * round(float(drawn.get("width") or 0))
    assert len(picture.getcolors(picture.width * picture.height) or ()) > 10  # lines of several colours on a ground
    key = chart.get_by_role("button", name=re.compile("^validation"))
    expect(key).to_have_attribute("aria-pressed", "true")
    key.click()
    expect(key).to_have_attribute("aria-pressed", "false")
    expect(chart.get_by_role("img")).not_to_have_attribute("aria-label", re.compile("validation"))
    assert "validation" not in saved(page, chart, "CSV").decode().splitlines()[0]
    key.press("Enter")
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile("validation"))


def rows_of(story: Story) -> list[dict[str, Any]]:
    run = story.house.home.attempt(story.succeeded.job, story.succeeded.number) / "run"
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_chart_of_a_page(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.succeeded.job}", accept_downloads=True)
    chart = page.get_by_role("group", name="Loss")
    expect(chart).to_be_visible()
    as_files(page, chart, rows_of(story))
    box = chart.get_by_role("img").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(chart.locator(".reading > span")).to_have_text(re.compile(r"step \d+"))
    place = int((chart.locator(".reading > span").text_content() or "").split()[1])
    row = next(row for row in rows_of(story) if row["kind"] == "train" and row["updates"] == place)
    said = chart.get_by_role("button", name=re.compile("^training, by step")).locator("b").text_content() or ""
    assert float(said) == pytest.approx(row["loss"], rel=0.01)


@pytest.mark.slow
def test_a_report_has_the_same_charts(server: Server, story: Story, open_page: Open, tmp_path: Path) -> None:
    run = story.house.home.attempt(story.succeeded.job, story.succeeded.number)
    (run / "run" / "best.safetensors").rename(tmp_path / "best.safetensors")  # a thousand zeros: no checkpoint
    severe = {str(level): {"images": 9, "top1": 0.9 - 0.1 * level} for level in (1, 3, 5)}
    measured = [{"model": HOSTILE, "height": side, "width": side, "clean": {"images": 9, "top1": side / 100},
                 "corruptions": {"fog": {"top1": 0.6, "severities": severe}}} for side in (32, 64)]  # fmt: skip
    evaluation = tmp_path / "evaluation.json"
    evaluation.write_text(json.dumps({"data": "pets", "images": 9, "rows": measured}))
    try:
        (tmp_path / "report.html").write_text(report(run, evaluations=[evaluation]))
    finally:
        (tmp_path / "best.safetensors").rename(run / "run" / "best.safetensors")
    page = open_page("about:blank", accept_downloads=True)
    page.route("http://127.0.0.1:1/report", lambda route: route.fulfill(
        path=tmp_path / "report.html", content_type="text/html; charset=utf-8"))  # fmt: skip
    page.goto("http://127.0.0.1:1/report")
    chart = page.get_by_role("group", name="Loss")
    expect(chart).to_be_visible()
    as_files(page, chart, rows_of(story))
    by_size = page.get_by_role("group", name="Accuracy by resolution")
    expect(by_size.get_by_role("img")).to_have_attribute("aria-label", re.compile("from 32% to 64%"))
    expect(by_size).to_contain_text(HOSTILE)
    expect(page.get_by_role("group", name="Accuracy by severity")).to_contain_text(f"{HOSTILE}, 64")
    assert page.title() != "owned"
    ours = "getComputedStyle(document.documentElement).getPropertyValue('--accent')"
    colours = page.evaluate(ours)
    dashboard = open_page(server.url)
    assert colours and dashboard.evaluate(ours) == colours  # one palette
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)


def test_axes_have_few_round_labels(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    ticks: list[list[float]] = page.evaluate(
        """import('./scale.js').then(({ scale }) => [
            scale([1, 3], 0, 100, { whole: true }), scale([4, 4], 0, 100, { whole: true }),
            scale([3, 36], 0, 100, { whole: true, most: 2 }),
            ...[[0.217, 0.883], [0.999997, 1.000001], [3, 98_765]].map((each) => scale(each, 0, 100))
        ].map((one) => one.ticks))"""
    )
    assert ticks[:3] == [[1, 2, 3], [3, 4, 5], [10, 20, 30]]  # no half of a step, and no label alone
    assert all(3 <= len(each) <= 6 for each in ticks), ticks
    assert ticks[3] == [0.2, 0.4, 0.6, 0.8, 1]
    assert all(len(str(tick)) <= 6 for each in ticks for tick in each), ticks
    shares: list[list[float]] = page.evaluate(
        """import('./scale.js').then(({ scale }) =>
            [[0, 0], [1, 1], [0.999, 1]].map((each) => scale(each, 0, 100, { share: true }).ticks))"""
    )
    assert [(min(each), max(each)) for each in shares] == [(0, 0.6), (0.9, 1), (0.994, 1)]  # none below 0, above 1


BELOW = {(-5e-6, -1e-7): 0, (-0.3, 0.15): 0.2, (-0.6, 0.3): 0.5, (-7e-4, 2e-4): 5e-4, (-1e7, 3e6): 5e6}
"""Least and greatest values, and where their axes end."""


def test_zero_is_a_tick_of_every_axis_that_reaches_it_from_below(server: Server, open_page: Open) -> None:
    """Itself, and no remainder of sums."""
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    ticks: list[list[float]] = page.evaluate(
        "(all) => import('./scale.js').then(({ scale }) => all.map((each) => scale(each, 0, 100).ticks))", list(BELOW)
    )
    assert all(0 in each for each in ticks), ticks
    assert [each[-1] for each in ticks] == list(BELOW.values())


NUMBERS = """async ([module, points]) => {
  const { chart } = await import(module);
  const made = chart({ title: "Loss", format: String });
  document.querySelector("main").replaceChildren(made.element);
  made.draw([{ name: "one", points }]);
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const { right } = made.element.querySelector("svg").getBoundingClientRect();
  const beyond = (one) => one.getBoundingClientRect().right - right;
  return [...made.element.querySelectorAll(".tick")].map((one) => [one.textContent, beyond(one)]);
}"""
"""The numbers of the axis below a chart, and how far they reach beyond it."""


def test_the_last_number_of_an_axis_is_whole(server: Server, open_page: Open) -> None:
    """It stands below the last point, with half of it beyond."""
    page = open_page(f"{server.url}/#/system", viewport={"width": 640, "height": 800})
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    numbers = page.evaluate(NUMBERS, ["./static/dashboard/chart.js", [[0, 1], [5000, 2]]])
    assert numbers[-1][0] == "5,000"
    assert max(beyond for _, beyond in numbers) <= 0


NAMED = """([module, names]) => import(module).then(({ chart }) => {
  const made = chart({ title: "Loss", format: String });
  document.querySelector("main").replaceChildren(made.element);
  made.draw(names.map((name) => ({ name, points: [[1, 2e-7], [2, 1e-7]] })));
})"""
"""A chart of series of these names."""
FORMULAS = {
    '=HYPERLINK("http://elsewhere","result")': '\'=HYPERLINK("http://elsewhere","result")',
    **{name: f"'{name}" for name in ("+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1")},
    **{name: name for name in ("1-1", "a=b", "resnet18", "")},
}
"""Names, and how a spreadsheet takes them for text."""


def test_a_name_that_begins_like_a_formula_is_text_in_a_spreadsheet(server: Server, open_page: Open) -> None:
    """And values below zero are numbers."""
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    saved = page.evaluate(
        """(names) => import('./saving.js').then(({ csvOf }) =>
            csvOf(names.map((name) => ({ name, points: [[-1, -2.5]] })), "epoch"))""",
        list(FORMULAS),
    )
    names, values = csv.reader(io.StringIO(saved, newline=""))
    assert names == ["epoch", *FORMULAS.values()]
    assert values == ["-1"] + ["-2.5"] * len(FORMULAS)


PIECES = """part => {
  const words = document.createRange();
  words.selectNodeContents(part);
  return words.getClientRects().length;
}"""


def test_names_of_any_direction_and_length_leave_numbers_whole(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/system", viewport={"width": 320, "height": 800})
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    page.evaluate(NAMED, ["./static/dashboard/chart.js", ["مرحبا", "second مرحبا"]])
    for key in page.locator(".legend button").all():
        expect(key.locator("b")).to_have_text("1e-7")
        assert key.locator("b").evaluate(PIECES) == 1
    page.evaluate(NAMED, ["./static/dashboard/chart.js", ["a" * 200, "b"]])
    expect(page.locator(".legend button")).to_have_count(2)
    assert page.evaluate("document.scrollingElement.scrollWidth") == 320
