"""The explorer's page on maps that are known: order of the heads, centres, checkpoints side by side, τ, its address."""

import base64
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from browsing import HEBREW, LOOKS, PLACES, Open, inaccessible, sync_api
from served_explorer import served
from serving import Server
from story import Story

import tcnn.explorer
from tcnn.analysis.recorded import Grid

expect = sync_api.expect
SIDE, HEADS, QUERY = 8, 4, (4, 4)
Gates = list[float | None]
GATES: Gates = [0.1, 0.9, 0.5, 0.5]
LEFT_OUT = "left out: conv1, as its map is unknown"
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAP///wAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw=="


def packed(places: list[tuple[int, int]]) -> str:
    """Heads that each look at one pixel."""
    maps = [[float((row, column) == place) for row in range(SIDE) for column in range(SIDE)] for place in places]
    flat = [weight for one in maps for weight in one]
    return base64.b64encode(struct.pack(f"<{len(flat)}f", *flat)).decode()


def answered(asked: dict[str, list[str]], label: str = "cat", gates: Gates = GATES) -> dict[str, Any]:
    """Head k looks k pixels to the right, as training began all do so at the pixel itself."""
    start = asked.get("checkpoint") == ["start"]
    temperature = float(asked.get("temperature", ["0.0217" if start else "1"])[0])
    far = [0] * HEADS if start else range(HEADS)
    content = packed([(QUERY[0], QUERY[1] + by) for by in far])
    layer = {
        "name": "conv2", "size": [SIDE, SIDE], "padding": [0, 0, 0, 0], "query": list(QUERY),
        "gate": gates, "temperature": temperature, "centres": [[0, by] for by in far],
        "radii": [[0.8, 1.5]] * HEADS, "content": content, "positional": content,
    }  # fmt: skip
    return {"layers": [layer], "says": [{"label": "tench" if start else label, "share": 0.9}]}


def explored(
    server: Server, story: Story, open_page: Open, asked: str = "", label: str = "cat", gates: Gates = GATES
) -> Any:
    """The explorer's page on answers that are known."""
    page = open_page("about:blank")
    known(page, label=label, gates=gates)
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}/attention{asked}")
    expect(page.locator(".tile")).to_have_count(HEADS)
    return page


def known(page: Any, alive: Callable[[], bool] = lambda: True, label: str = "cat", gates: Gates = GATES) -> None:
    """Answer in the place of a server that is alive."""
    view = {"name": "conv2", "heads": HEADS, "kernel": [2, 2], "size": [SIDE, SIDE], "queries": [SIDE, SIDE],
            "padding": [0, 0, 0, 0], "first": [0, 0], "stride": [1, 1], "gate": gates,
            "temperature": 1.0}  # fmt: skip
    seen = {"id": "img_0", "width": 1, "height": 1, "picture": DOT, "truth": label, "layers": [view], "says": [],
            "checkpoints": ["start", "last"], "notes": [LEFT_OUT]}  # fmt: skip

    def look(route: Any) -> None:
        route.fulfill(status=201, json=seen) if alive() else route.abort()

    def ask(route: Any) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        route.fulfill(json=answered(asked, label, gates)) if alive() else route.abort()

    page.route(re.compile("/attention/images"), look)
    page.route(re.compile("/attention/img_0"), ask)


def test_heads_and_temperature(server: Server, story: Story, open_page: Open) -> None:
    page = explored(server, story, open_page)
    tiles = page.locator(".tile")
    expect(tiles).to_have_count(HEADS)
    assert [tiles.nth(k).get_attribute("data-head") for k in range(HEADS)] == ["1", "2", "3", "4"]
    expect(page.locator(".layers > :last-child")).to_have_text(f"L{LEFT_OUT[1:]}.")
    expect(tiles.nth(3)).to_have_attribute("aria-label", re.compile("gate 0.5, mean distance 3 pixels"))
    order = page.get_by_label("Heads", exact=True)
    order.select_option("distance")
    expect(tiles.first).to_have_attribute("data-head", "4")
    order.select_option("gate")
    assert [tiles.nth(k).get_attribute("data-head") for k in range(HEADS)] == ["2", "3", "4", "1"]
    tiles.first.click()
    expect(tiles.first).to_have_attribute("aria-pressed", "true")
    main = page.locator(".stage canvas").first
    green = """c => {
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        let sum = 0, count = 0;
        for (let at = 0; at < data.length; at += 4)
            if (data[at] < 20 && Math.abs(data[at + 1] - 122) < 8 && Math.abs(data[at + 2] - 89) < 8)
                (count += 1, sum += (at / 4) % c.width);
        return [count, sum / count / c.width];
    }"""
    assert main.evaluate(green)[0] == 0
    page.get_by_label("Centres, with circles").check()
    count, middle = main.evaluate(green)
    assert count > 100 and middle == pytest.approx(
        (QUERY[1] + 1 + 0.5) / SIDE, abs=0.02
    )  # head 2 looks one to the right
    expect(page.locator(".stage figure:visible")).to_have_count(1)
    page.get_by_label("Compare with").select_option("start")
    expect(page.locator(".stage figcaption").nth(1)).to_contain_text("Before training, τ 0.0217, gate 0.9")
    expect(page.locator(".stage figcaption").nth(1)).to_contain_text("tench 90%")
    _, middle = page.locator(".stage canvas").nth(1).evaluate(green)
    assert middle == pytest.approx((QUERY[1] + 0.5) / SIDE, abs=0.02)
    slider = page.get_by_role("slider", name="Temperature")
    with page.expect_request(re.compile("temperature=")) as asked:
        slider.press("ArrowLeft")
    assert 0.9 < float(parse_qs(urlsplit(asked.value.url).query)["temperature"][0]) < 1
    page.wait_for_url(re.compile("head=2&order=gate&circles=1&beside=start&tau=0[.]9"))
    page.reload()
    expect(tiles.first).to_have_attribute("data-head", "2")
    expect(page.locator(".stage figcaption").first).to_contain_text("τ 0.9")
    expect(page.get_by_label("Compare with")).to_have_value("start")
    page.get_by_role("button", name="As trained").click()
    expect(page.locator(".stage figcaption").first).to_contain_text("τ 1,")


def test_a_content_head_has_no_gate(server: Server, story: Story, open_page: Open) -> None:
    """Nothing is said of it; by gate it comes last."""
    page = explored(server, story, open_page, "?beside=start&order=gate", gates=[0.1, 0.9, 0.5, None])
    tiles, caption = page.locator(".tile"), page.locator(".stage figcaption").nth(1)
    expect(tiles.first).to_have_attribute("data-head", "2")
    assert [tiles.nth(k).get_attribute("data-head") for k in range(HEADS)] == ["2", "3", "1", "4"]
    expect(tiles.nth(2)).to_contain_text("gate 0.1")
    expect(tiles.nth(3)).not_to_contain_text("gate")
    expect(tiles.nth(3)).not_to_have_attribute("aria-label", re.compile("gate"))
    tiles.nth(2).click()
    expect(caption).to_contain_text("τ 0.0217, gate 0.1.")
    tiles.nth(3).click()
    expect(caption).to_contain_text("τ 0.0217.")


PLACED = """([places, taus]) => import("./attention/views.js").then(({ tauAt, placeOf }) =>
    [places.map(tauAt), places.map((place) => Math.round(placeOf(tauAt(place)))), taus.map(placeOf)])"""


def test_the_slider_is_at_the_temperature_that_it_names(server: Server, story: Story, open_page: Open) -> None:
    """Its ends are 1/46 and 4, and 1 is a place of it; what it says, asks for and shows is one number."""
    places = list(range(-166, 61))
    pure = open_page(f"{server.url}/static/dashboard/base.css")  # beside the modules
    taus, back, between = pure.evaluate(PLACED, [places, [0.01, 1, 16]])
    assert (taus[0], taus[166], taus[-1]) == (0.0217, 1, 4) and back == places
    assert all(1.01 < after / before < 1.04 for before, after in pairwise(taus))
    assert between[0] < -166 and between[1:] == [0, 120]
    page = explored(server, story, open_page)
    slider = page.get_by_role("slider", name="Temperature")
    for key, said in (("End", "4"), ("ArrowLeft", "3.91"), ("Home", "0.0217")):
        with page.expect_request(re.compile("temperature=")) as asked:
            slider.press(key)
        assert parse_qs(urlsplit(asked.value.url).query)["temperature"] == [said]
        expect(slider).to_have_attribute("aria-valuetext", said)
        expect(page.locator("#view-tau-said")).to_have_text(f"{said}; overrides the checkpoint’s own")
        expect(page.locator(".stage figcaption").first).to_contain_text(f"τ {said}")


@pytest.mark.slow  # a checkpoint beside the job's model is above
def test_checkpoints_of_a_run(server: Server, story: Story, open_page: Open) -> None:
    page = explored(server, story, open_page, "?head=2&order=gate&circles=1&beside=start")
    run = page.get_by_role("slider", name="Checkpoint")
    expect(run).to_have_attribute("aria-valuetext", "The job’s model")  # between what it began with and its last
    run.press("ArrowRight")
    expect(page.locator(".stage figcaption").first).to_contain_text("After the last epoch")
    with page.expect_request(re.compile("checkpoint=start")):
        run.press("Home")
    expect(run).to_have_attribute("aria-valuetext", "Before training")
    expect(page.get_by_label("Compare with")).to_have_value("")  # nothing stands beside itself
    page.wait_for_url(re.compile("&checkpoint=start&"))
    run.press("ArrowRight")
    page.get_by_label("Compare with").select_option("start")
    expect(page.locator(".stage figure:visible")).to_have_count(2)
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")  # on a phone: the picture stays in view
    tops = page.evaluate("['.stage', 'header.bar'].map(one => document.querySelector(one).getBoundingClientRect())")
    assert tops[0]["top"] >= tops[1]["bottom"] - 1 and tops[0]["bottom"] < 860, tops  # and below the bar
    slow = page.evaluate("performance.getEntriesByName('tcnn: a place is shown').map(one => one.duration)")
    assert slow


def test_in_a_low_window_it_is_seen_that_the_card_scrolls(server: Server, story: Story, open_page: Open) -> None:
    """What is below fades out; at the end, and where all is in view, nothing is covered."""
    page = explored(server, story, open_page)
    card = page.locator(".explorer > .card")
    for height, scrolls in ((760, True), (1800, False)):
        page.set_viewport_size({"width": 1280, "height": height})
        for down in (0, 200):
            page.evaluate("down => scrollTo(0, down)", down)
            page.wait_for_function(
                "() => document.querySelector('.explorer > .card').getBoundingClientRect().bottom <= innerHeight"
            )
        below = card.evaluate("card => card.scrollHeight - card.clientHeight")
        assert (below > 20) == scrolls
        edge, ground = card.evaluate(
            "card => [getComputedStyle(card, '::after').backgroundImage, getComputedStyle(card).backgroundColor]"
        )
        assert ground in edge
        card.evaluate("card => card.scrollTo(0, card.scrollHeight)")
        last = card.evaluate("""card => {
            const last = card.lastElementChild.getBoundingClientRect(), whole = card.getBoundingClientRect();
            return whole.bottom - last.bottom;
        }""")
        assert last > 44, "the fade has a place of its own"
        card.get_by_label("Your own picture").focus()
        assert inaccessible(page, ".explorer") == []


@pytest.mark.parametrize(
    "label", [HEBREW, pytest.param("a" * 180, marks=pytest.mark.slow)], ids=["right-to-left", "long"]
)
def test_classes_in_any_letters_and_of_any_length(server: Server, story: Story, open_page: Open, label: str) -> None:
    """A number is beside the class that it is of, and on a phone no page is wider than the window."""
    page = explored(server, story, open_page, "?beside=start", label)
    expect(page.locator("p.says")).to_contain_text(label)
    if label != HEBREW:
        for width in (1280, 320):
            page.set_viewport_size({"width": width, "height": 860})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        return
    words = ["The model says", HEBREW, "90%"]
    assert page.locator(".stage figcaption").first.evaluate(PLACES, words) == words


NEAREST = """async ([grids, shares]) => {
  const { nearest } = await import("./maps.js");
  return grids.map((grid) => shares.map((share) => nearest(grid, [share, share])));
}"""


def test_the_page_asks_the_queries_that_python_asks(open_page: Open) -> None:
    """At strides 1 to 3 on odd and even maps, at the edges of pixels, too."""
    grids = [
        Grid((n + 2, n + 3), (1, 2, 1, 1), (first, 1), (stride, 2), ((n + 1) // stride, n // 2))
        for stride in (1, 2, 3) for n in (8, 9, 13) for first in (0, 1, 2)
    ]  # fmt: skip
    shares = [*(n / 52 for n in range(53)), *(n / 32 for n in range(33)), *torch.rand(50).double().tolist()]
    with served(Path(tcnn.explorer.__file__).parent / "page") as url:
        found = open_page(f"{url}icon.svg").evaluate(NEAREST, [[vars(grid) for grid in grids], shares])
    assert found == [[list(grid.nearest(share, share)) for share in shares] for grid in grids]
