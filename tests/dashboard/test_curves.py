"""What a curve says was measured: at the place that is pointed at, in its file, and in the height of its peaks, however
many points there are.
"""

import csv
import io
import re
from typing import Any

import pytest
from browsing import Open, sync_api
from serving import Server
from story import Story
from test_charts import saved

from tcnn_api.routes.jobs.files import table
from tcnn_jobs.model.jobs import Kind

expect = sync_api.expect
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


def test_gates_have_a_temperature_of_their_own(server: Server, story: Story, open_page: Open) -> None:
    """Where it is another than that of the positions; where it is not there is one line."""
    page, job = open_page(server.url), story.succeeded.job
    rows: list[dict[str, Any]] = []
    page.route("**/metrics.csv", lambda route: route.fulfill(body=table(rows), content_type="text/csv"))
    for gate in (3.0, 0.25):
        rows[:] = ({**row, "temperature": 0.25, "gate_temperature": gate} for row in PEAK[1190:1210])
        for place in (f"jobs/{job}", f"compare?jobs={job}"):
            page.goto(f"{server.url}/#/runs")
            page.goto(f"{server.url}/#/{place}")
            drawn = page.get_by_role("img", name=re.compile("^Temperature τ"))
            expect(drawn.first).to_be_visible()
            told = [one.get_attribute("aria-label").partition(": ")[2] for one in drawn.all()]
            if place.startswith("jobs"):
                both = "positions from 0.25 to 0.25; gates from 3 to 3"
                assert told == [both if gate == 3 else "τ from 0.25 to 0.25"]
                page.get_by_text("Numbers by epoch").click()
                numbers = page.get_by_role("region", name="Epochs")
                taus = ["τ of positions", "τ of gates"] if gate == 3 else ["τ"]
                assert numbers.get_by_role("columnheader").all_inner_texts()[4:] == [*taus, "Learning rate"]
                cells = numbers.get_by_role("row").nth(1).get_by_role("cell").all_inner_texts()
                assert cells[3:-1] == (["0.25", "3"] if gate == 3 else ["0.25"])
            else:
                run = "test_resnet from"
                assert told == [f"{run} 0.25 to 0.25", *([f"{run} 3 to 3"] if gate == 3 else [])]


@pytest.mark.parametrize("pages", ["job", pytest.param("compare", marks=pytest.mark.slow)])
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


DIVERGED = {"middle": [1.0, None, 0.6, 0.5], "end": [1.0, 0.5, None, None]}
"""Losses of validation by epoch, which are null where they were not finite."""


@pytest.mark.parametrize("where", DIVERGED)
@pytest.mark.parametrize("pages", ["job", "compare"])
def test_a_loss_that_is_not_finite_is_a_gap(
    server: Server, story: Story, open_page: Open, pages: str, where: str
) -> None:
    """Of the line, and told as such, as is the latest; and `nan` in its file."""
    page, job = open_page(server.url, accept_downloads=True), story.succeeded.job
    rows = [{"kind": "epoch", "epoch": at, "updates": 10 * at + 10, "train_loss": 1.0, "val": {"loss": loss}}
            for at, loss in enumerate(DIVERGED[where])]  # fmt: skip
    page.route("**/metrics.csv", lambda route: route.fulfill(body=table(rows), content_type="text/csv"))
    page.goto(f"{server.url}/#/jobs/{job}" if pages == "job" else f"{server.url}/#/compare?jobs={job}")
    chart = page.get_by_role("group", name="Loss" if pages == "job" else "Validation loss")
    name = "validation" if pages == "job" else "test_resnet"
    path = chart.locator(".line").last.locator("path")
    expect(path).to_have_attribute(
        "d", re.compile("^M[^M]*M[^M]*L[^M]*$" if where == "middle" else "^M[^ML]* [^ML]*L[^ML]*$")
    )
    latest = "0.5" if where == "middle" else "not finite"
    key = chart.get_by_role("button", name=re.compile(f"^{name}")).locator("bdi").last
    expect(chart.locator(".reading > span")).to_have_text("latest")
    expect(key).to_have_text(latest)
    expect(chart.get_by_role("img")).to_have_attribute("aria-label", re.compile(f"{name} from 1 to {latest}"))
    gap = 1 if where == "middle" else 2
    assert f"{name} not finite" in reading(page, chart, *["ArrowRight"] * gap)
    found = [row.split(",")[-1] for row in saved(page, chart, "CSV").decode().splitlines()[1:]]
    assert found == [str(loss or "nan").removesuffix(".0") for loss in DIVERGED[where]]
    if pages == "job":
        page.get_by_text("Numbers by epoch").click()
        cells = page.get_by_role("region", name="Epochs").locator("tbody tr td:nth-child(3)").all_inner_texts()
        assert cells == [str(loss or "not finite").removesuffix(".0") for loss in DIVERGED[where]]


def test_jobs_that_cannot_have_measured_anything_are_not_asked(server: Server, story: Story, open_page: Open) -> None:
    """A browser reports what is not there as a failed request. One that has measured is drawn all the same."""
    data = f"ds_{'0' * 24}"
    waiting = story.house.submit(kind=Kind.FINETUNE, request={"model": "resnet18", "dataset": data}).id
    measuring = story._taken(kind=Kind.EVALUATE, priority=100, request={"model": "resnet18", "dataset": data}).job
    page = open_page("about:blank")
    failed: list[str] = []
    page.on(
        "response", lambda answer: "/metrics.csv" in answer.url and answer.status == 404 and failed.append(answer.url)
    )
    for job in (waiting, measuring, story.failed.job):
        page.goto(f"{server.url}/#/jobs/{job}")
        expect(page.locator(".crumb code")).to_have_text(job)
        page.wait_for_timeout(600)  # it asks again when the stream falls silent
    page.goto(f"{server.url}/#/compare?jobs={waiting},{measuring},{story.failed.job},{story.succeeded.job}")
    expect(page.get_by_role("img", name=re.compile("^Training loss"))).to_be_visible()
    assert failed == []
    story.house.store.cancel(waiting)


PIECES = """async () => {
  const [{ points }, { extent, pieces }] = await Promise.all([import('./curves.js'), import('./points.js')]);
  const rows = (said) => said.map((loss, at) => ({ updates: at, loss }));
  const said = [["", "2", "nan", "inf", "1", "", "3"], ["", "nan"], ["nan", "1"], [null, 4, null]];
  const found = said.map((one) => points(rows(one), "loss"));
  const told = found.map((one) => one.map(([x, y]) => [x, Number.isFinite(y) ? y : "gap"]));
  return { found: told, pieces: pieces(found[0]), none: pieces([]), extent: extent([{ points: found[0] }]) };
}"""


def test_points_begin_where_something_was_measured(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    found = page.evaluate(PIECES)
    assert found["found"] == [[[1, 2], [2, "gap"], [3, "gap"], [4, 1], [5, "gap"], [6, 3]], [], [[0, "gap"], [1, 1]],
                              [[1, 4], [2, "gap"]]]  # fmt: skip
    assert (found["pieces"], found["none"], found["extent"]) == ([[[1, 2]], [[4, 1]], [[6, 3]]], [], [1, 3])


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


def test_what_stands_below_a_chart_does_not_move_with_the_pointer(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/system", viewport={"width": 340, "height": 800})
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    page.evaluate(ENDED, ["./static/dashboard/chart.js", None])
    chart = page.get_by_role("group", name="Loss")
    place = chart.locator(".reading")
    low = place.bounding_box()["height"]
    reading(page, chart, *["ArrowRight"] * 3)  # words that need another line
    high = place.bounding_box()["height"]
    assert high > low
    page.keyboard.press("ArrowRight")
    assert place.bounding_box()["height"] == high
    page.set_viewport_size({"width": 900, "height": 800})
    expect(place).not_to_have_css("height", f"{high}px")
