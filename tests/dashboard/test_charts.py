"""Charts: values under the pointer, a legend that hides, files of what is shown; on the pages and in reports."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browsing import HOSTILE, LOOKS, Open, client_of, inaccessible, sync_api
from PIL import Image
from serving import Server
from story import Story, pictures

from tcnn.analysis.pages.report import report
from tcnn_api.routes.jobs.files import table

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


PEAK = [
    *({"kind": "train", "updates": at, "loss": 1.5 if at % 2 else 0.5} for at in range(1, 1201)),
    *({"kind": "epoch", "epoch": at, "updates": 2 * at + 2, "train_loss": 1, "val": {"loss": 1,
       "top1": 0.9 if at == 300 else 0.5}} for at in range(600)),
]  # fmt: skip
"""A run of more measurements than a chart has pixels, one of which is far above the others."""
HEIGHTS = """path => (path.match(/[\\d.]+ [\\d.]+/g)).map(pair => Number(pair.split(' ')[1]))"""
"""Of the points of an SVG path, in pixels from the top."""


def reading(page: Any, chart: Any, *keys: str) -> str:
    """What a chart says, in one line, after keys were pressed at its first place."""
    chart.focus()
    for key in (*["Shift+ArrowLeft"] * 21, *keys):
        page.keyboard.press(key)
    return " ".join(chart.locator(".reading").inner_text().split())


@pytest.mark.parametrize("pages", ["job", "compare"])
def test_nothing_is_told_that_was_not_measured(server: Server, story: Story, open_page: Open, pages: str) -> None:
    """However many points there are: in words, in files, and in the height of a peak."""
    page = open_page(server.url, accept_downloads=True)
    page.route("**/metrics.csv", lambda route: route.fulfill(body=table(PEAK), content_type="text/csv"))
    job = story.succeeded.job
    page.goto(f"{server.url}/#/jobs/{job}" if pages == "job" else f"{server.url}/#/compare?jobs={job}")
    chart = page.get_by_role("group", name="Accuracy" if pages == "job" else "Validation top-1")
    expect(chart).to_be_visible()
    found = list(csv.DictReader(io.StringIO(saved(page, chart, "CSV").decode())))
    values = [[float(value) for value in row.values()] for row in found]
    assert values == [[row["updates"], row["val"]["top1"]] for row in PEAK[1200:]]
    said = reading(page, chart, *["Shift+ArrowRight"] * 10)  # half of the way
    assert said == f"step 602 {'top-1' if pages == 'job' else 'test_resnet'} 90%"
    drawn = chart.locator(".line path").get_attribute("d")
    heights = page.evaluate(HEIGHTS, drawn)
    assert len(heights) < 4 * 1280  # as few as the pixels need
    assert min(heights) == pytest.approx(float(chart.locator(".cursor circle").get_attribute("cy")), abs=0.1)
    if pages == "job":
        losses = page.get_by_role("group", name="Loss")
        table_of = list(csv.DictReader(io.StringIO(saved(page, losses, "CSV").decode())))
        assert [float(row["training, by step"]) for row in table_of] == [row["loss"] for row in PEAK[:1200]]


ENDED = """([module, at]) => import(module).then(({ chart }) => {
  const made = chart({ title: "Loss", format: String, ...(at && { at }) });
  document.querySelector("main").replaceChildren(made.element);
  made.draw([{ name: "long", points: [[1, 5], [2, 4], [3, 3], [9, 2]] }, { name: "short", points: [[3, 8], [6, 7]] },
    { name: "hidden", points: [[1, 1]] }]);
})"""
"""A chart of three series that begin and end at different places."""


def test_a_series_says_nothing_where_it_was_not_measured(server: Server, open_page: Open) -> None:
    """Before its first and after its last point; between them it says where, if that is another place."""
    page = open_page(f"{server.url}/#/system")
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    page.evaluate(ENDED, ["./static/dashboard/chart.js", None])
    chart = page.get_by_role("group", name="Loss")
    chart.get_by_role("button", name=re.compile("^hidden")).click()
    expect(chart.locator(".reading")).to_have_text("latestlong 2short 7hidden ")
    said = [reading(page, chart, *["ArrowRight"] * place) for place in range(5)]
    assert said == ["step 1 long 5 short – hidden", "step 2 long 4 short – hidden", "step 3 long 3 short 8 hidden",
                    "step 6 long 3 at step 3 short 7 hidden", "step 9 long 2 short – hidden"]  # fmt: skip
    expect(chart.locator(".cursor circle")).to_have_count(1)
    page.evaluate(ENDED, ["./static/dashboard/chart.js", "side"])
    chart = page.get_by_role("group", name="Loss")
    expect(chart.locator(".reading")).to_have_text("side 9long 2short –hidden –")  # of sizes none is the latest


NAMED = """([module, names]) => import(module).then(({ chart }) => {
  const made = chart({ title: "Loss", format: String });
  document.querySelector("main").replaceChildren(made.element);
  made.draw(names.map((name) => ({ name, points: [[1, 2e-7], [2, 1e-7]] })));
})"""
"""A chart of series of these names."""
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


LARGE = """async () => {
  const { ascending, closest, nearest, needed } = await import('./points.js');
  const points = Array.from({ length: 100_000 }, (_, at) => [at, at === 77_777 ? 9 : Math.sin(at)]);
  const kept = needed(points, (x) => Math.floor(x / 250));
  return {
    kept: kept.length, peak: kept.some(([x, y]) => x === 77_777 && y === 9), ends: [kept[0][0], kept.at(-1)[0]],
    measured: kept.every((one) => points[one[0]] === one), ascending: ascending(kept) === kept,
    sorted: ascending([[2, 1], [1, 2]]), few: needed([[0, 1], [0, 1], [5, 2]], (x) => x),
    nearest: [-1, 0, 3.4, 3.6, 99_999, 100_000].map((x) => nearest(points, x)?.[0] ?? null),
    closest: [-5, 1, 1.4, 1.6, 7].map((x) => closest([0, 1, 2, 4], x)), none: nearest([], 1),
  };
}"""


def test_a_line_is_drawn_of_some_of_many_points(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    found = page.evaluate(LARGE)
    assert found["kept"] <= 4 * 400 and found["ends"] == [0, 99_999]
    assert found["peak"] and found["measured"] and found["ascending"]
    assert found["sorted"] == [[1, 2], [2, 1]] and found["few"] == [[0, 1], [0, 1], [5, 2]]
    assert found["nearest"] == [None, 0, 3, 4, 99_999, None] and found["none"] is None
    assert found["closest"] == [0, 1, 1, 2, 3]


def hues(part: Any) -> int:
    """How many colours an element has besides black, white and greys."""
    picture = Image.open(io.BytesIO(part.screenshot())).convert("RGB")
    colours = picture.getcolors(picture.width * picture.height) or []
    return sum(max(colour) - min(colour) > 80 for count, colour in colours if count > 9)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_have_colours_where_the_system_gives_all_others(
    server: Server, story: Story, open_page: Open, scheme: str
) -> None:
    """In the legend, in the bars of the hours and of the classes; lines are as light as the system's ground asks."""
    with client_of(server) as client:
        made = client.post("/datasets", files={"file": ("pets.zip", pictures(broken=False))}).json()["id"]
    page = open_page(server.url, forced_colors="active", color_scheme=scheme)
    page.evaluate("document.documentElement.dataset.theme = 'light'")  # chosen before
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    loss = page.get_by_role("group", name="Loss")
    expect(loss).to_be_visible()
    dark = scheme == "dark"
    expect(loss.locator(".line").nth(1)).to_have_css("color", "rgb(240, 144, 60)" if dark else "rgb(195, 79, 0)")
    assert [hues(key) for key in loss.locator(".legend button").all()] == [1, 1, 1]
    page.goto(f"{server.url}/#/system")
    expect(page.locator(".hours")).to_be_visible()
    assert hues(page.locator(".hours")) == 2  # the third is grey
    page.goto(f"{server.url}/#/data/{made}")
    expect(page.locator(".stack").first).to_be_visible()
    assert hues(page.locator(".stack").first) == 2
