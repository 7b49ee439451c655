"""Where the system gives the colours (high contrast): what is chosen is seen, and what colours tell keeps them."""

import io
from typing import Any

import numpy
import pytest
from browsing import Open, client_of, sync_api
from PIL import Image
from sampled import sampled
from serving import Server
from story import pictures
from story_of_faults import Faults
from test_explorer_page import HEADS, known

expect = sync_api.expect


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    return Faults(tmp_path_factory.mktemp("forced") / "home")


def seen(part: Any) -> Image.Image:
    """An element at rest: nothing has the focus or the pointer."""
    part.page.evaluate("document.activeElement.blur()")
    part.page.mouse.move(0, 0)
    return Image.open(io.BytesIO(part.screenshot())).convert("RGB")


def ground(part: Any, at: int = 4) -> Any:
    """The colour so many pixels from its left edge, or from its right one."""
    picture = Image.open(io.BytesIO(part.screenshot())).convert("RGB")
    return picture.getpixel((at % picture.width, picture.height // 2))


def changed(one: Image.Image, other: Image.Image) -> float:
    """The share of pixels that are plainly others."""
    assert one.size == other.size
    pixels = [numpy.asarray(each, dtype=int) for each in (one, other)]
    return float((abs(pixels[0] - pixels[1]).max(axis=-1) > 40).mean())


def hues(part: Any) -> int:
    """How many colours an element has besides black, white and greys."""
    picture = seen(part)
    colours = picture.getcolors(picture.width * picture.height) or []
    return sum(max(colour) - min(colour) > 80 for count, colour in colours if count > 9)


@pytest.mark.parametrize("scheme", sampled(["light", "dark"], ["dark"]))
def test_marks_have_colours_where_the_system_gives_all_others(
    server: Server, story: Faults, open_page: Open, scheme: str
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


def test_what_is_chosen_is_seen(server: Server, story: Faults, open_page: Open) -> None:
    """The page, the part that is shown, a head, and a model among those that are offered."""
    page = open_page("about:blank", forced_colors="active")
    known(page)
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}/attention")
    tiles = page.locator(".tile")
    expect(tiles).to_have_count(HEADS)
    parts, head = page.locator(".segments"), tiles.nth(1)
    before = seen(parts), seen(head)
    page.get_by_text("Content", exact=True).click()
    assert changed(before[0], seen(parts)) > 0.2
    head.click()
    expect(head).to_have_attribute("aria-pressed", "true")
    assert changed(before[1], seen(head)) > 0.1
    link = page.get_by_role("link", name="Convert")
    away = seen(link)
    page.goto(f"{server.url}/#/transform")
    expect(link).to_have_attribute("aria-current", "page")
    assert changed(away, seen(link)) > 0.5
    page.get_by_role("combobox", name="Model").fill("resnet1")
    expect(page.get_by_role("option").nth(1)).to_be_visible()
    page.keyboard.press("ArrowDown")
    first, second = page.get_by_role("option").all()[:2]
    expect(first).to_have_attribute("aria-selected", "true")
    assert ground(first) != ground(second)


def test_what_a_colour_tells_is_told(server: Server, story: Faults, open_page: Open) -> None:
    """How right, how often confused, and how far a job has come."""
    page = open_page(f"{server.url}/#/jobs/{story.compared.job}", forced_colors="active")
    cells = page.get_by_role("region", name="by corruption and severity").get_by_role("row").nth(1).get_by_role("cell")
    assert ground(cells.nth(0)) != ground(cells.nth(2))
    row = page.get_by_role("region", name="Confusions").first.get_by_role("row").nth(1)
    right, wrong = row.get_by_role("cell").all()
    assert ground(right) != ground(wrong)
    page.goto(f"{server.url}/#/")
    done = page.get_by_role("progressbar", name="Progress of resnet18").first  # an eighth
    assert ground(done) != ground(done, -4)
