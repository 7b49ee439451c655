"""Where the user is: how far down a page was read, what has the focus, files that are dropped beside their place; and
that nothing is kept of pages that were left.
"""

from typing import Any

import pytest
from browsing import Open, sync_api, until
from sampled import sampled
from serving import Server
from story import Story

expect = sync_api.expect
HIDDEN = """() => {
  const focused = document.activeElement;
  if (focused === document.body || focused.closest("header, .skip")) return null;
  const { left, top, height } = focused.getBoundingClientRect();
  const seen = document.elementFromPoint(left + 5, top + height / 2);
  return height > 400 || !seen || focused === seen || focused.contains(seen) || seen.contains(focused)
    ? null : `${focused.textContent || focused.id} behind ${seen.className || seen.textContent}`;
}"""
"""What has the focus and cannot be seen, since something lies over it."""
DROPPED = """([selector, kind]) => {
  const data = new DataTransfer();
  data.items.add(new File(["x"], "pets.zip"));
  const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
  document.querySelector(selector).dispatchEvent(event);
  return event.defaultPrevented;
}"""
"""Whether a file that is dropped there is kept from what the browser does with it."""

VISITS = 6
SPARE = 200
"""Nodes by which two counts may differ; every one of these pages has more."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    story = Story(tmp_path_factory.mktemp("places") / "home")
    for number in range(60):
        story.house.store.cancel(story.house.submit(request={"model": f"resnet{number}"}).id)
    return story


def scrolled(page: Any, down: int) -> None:
    """As far down as this, and kept so."""
    page.mouse.move(600, 400)
    page.mouse.wheel(0, down)
    page.wait_for_function("down => history.state?.scroll === down", arg=down)


def far_down_and_away(server: Server, open_page: Open) -> Any:
    """The page of a run that was opened from far down in the list."""
    page = open_page(f"{server.url}/#/runs")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    scrolled(page, 1500)
    rows.nth(30).get_by_role("link").first.click()
    expect(page.locator(".titled .badge")).to_be_visible()
    return page


def test_who_comes_back_finds_the_place(server: Server, open_page: Open) -> None:
    """As soon as what is loaded is long enough; another page begins at its beginning."""
    page = far_down_and_away(server, open_page)
    assert page.evaluate("scrollY") == 0
    page.go_back()
    page.wait_for_function("() => scrollY === 1500")
    expect(page.locator("main")).to_be_focused()
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.wait_for_function("() => scrollY === 1500")
    page.go_forward()
    expect(page.locator(".titled .badge")).to_be_visible()
    assert page.evaluate("scrollY") == 0


def test_a_place_is_kept_while_its_page_is_loaded(server: Server, open_page: Open) -> None:
    """Back within 150 ms, and away again: the place that the page between was about to keep took that of this one."""
    page = far_down_and_away(server, open_page)
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/jobs?*", hold)
    page.evaluate("() => { dispatchEvent(new Event('scroll')); history.back(); }")
    page.wait_for_timeout(500)
    assert page.evaluate("[scrollY, history.state.scroll]") == [0, 1500]
    page.reload()
    page.wait_for_timeout(500)
    assert page.evaluate("[scrollY, history.state.scroll]") == [0, 1500]
    assert len(held) >= 2, "nothing was loaded so far"
    page.unroute_all()
    page.reload()
    page.wait_for_function("() => scrollY === 1500")


def test_back_from_what_was_deleted_leads_past_it(server: Server, story: Story, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/runs")
    page.get_by_role("table").get_by_role("link", name="resnet59").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    expect(page.get_by_role("table").get_by_role("link", name="resnet58")).to_be_visible()


def test_who_moves_while_a_page_is_loaded_is_left_alone(server: Server, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/runs")
    expect(page.locator("tbody tr")).to_have_count(50)
    scrolled(page, 1500)
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("heading", name="Versions of this server")).to_be_visible()
    held: list[Any] = []

    def hold(route: Any) -> None:
        if held:
            return route.fallback()
        return held.append(route)

    page.route("**/jobs?*", hold)
    page.go_back()
    expect(page.get_by_text("Loading runs…")).to_be_visible()
    page.keyboard.press("Tab")
    until(page, lambda: held)
    held[0].continue_()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.wait_for_function("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("address", ["#/runs", pytest.param("#/finetune", marks=pytest.mark.slow)])
def test_what_has_the_focus_is_not_behind_the_bar(server: Server, open_page: Open, address: str) -> None:
    """Which takes three lines of a phone; by the keyboard forwards and backwards."""
    page = open_page(f"{server.url}/{address}", viewport={"width": 375, "height": 667})
    expect(page.locator("main :is(tbody tr, select)").nth(2)).to_be_attached()
    hidden = []
    for key in ["Tab"] * 70 + ["Shift+Tab"] * 50:
        page.keyboard.press(key)
        hidden.append(page.evaluate(HIDDEN))
    assert [one for one in hidden if one] == []


def test_a_file_beside_its_place_takes_no_page_away(server: Server, open_page: Open) -> None:
    """The browser would open it in the place of the page, and what was written or is on its way would be lost."""
    page = open_page(f"{server.url}/#/data")
    expect(page.get_by_text("None uploaded yet.")).to_be_visible()
    for kind in ("dragover", "drop"):
        assert page.evaluate(DROPPED, ["h1", kind])
        assert page.evaluate(DROPPED, ["header.bar", kind])
        assert page.evaluate(DROPPED, [".uploads", kind])
    expect(page.locator(".sending li")).to_have_count(1)
    page.goto(f"{server.url}/#/finetune")
    expect(page.get_by_label("Upload a data set")).to_be_visible()
    assert not page.evaluate(DROPPED, ["input[type=file]", "drop"]), "a field takes files by itself"


def test_what_never_was_a_link_is_not_tried_again(server: Server, open_page: Open) -> None:
    """Of a server without keys, which lets everybody in: it shows no one job, however often it is asked."""
    page = open_page(f"{server.url}/#/shared/nothing")
    expect(page.get_by_role("heading", level=1, name="This link does not work")).to_be_visible()
    expect(page.locator("main p")).to_have_text("It is not a link to a job. Ask the sender for another.")
    expect(page.locator("main").get_by_role("button")).to_have_count(0)


def counted(session: Any) -> dict[str, int]:
    """Documents, nodes and listeners, with those of pages that were left but are still held."""
    for _ in range(3):  # what a finalizer lets go of is collected by the next
        session.send("HeapProfiler.collectGarbage")
    found: dict[str, int] = session.send("Memory.getDOMCounters")
    return found


@pytest.mark.parametrize("place", sampled(["job", "finetune", "evaluate", "data", "attention"], ["job"]))
def test_nothing_holds_a_page_that_was_left(server: Server, story: Story, open_page: Open, place: str) -> None:
    """The page of a job with a model listens for what is pasted, forms and lists for what is uploaded."""
    job = story.succeeded.job
    addresses = {"job": f"jobs/{job}", "attention": f"jobs/{job}/attention"}
    shown = {"job": ".try-it", "attention": ".explorer", "data": ".uploads"}
    page = open_page(f"{server.url}/#/system")
    session = page.context.new_cdp_session(page)

    def visit() -> None:
        page.evaluate("address => { location.hash = `#/${address}`; }", addresses.get(place, place))
        expect(page.locator(shown.get(place, "form.submit")).first).to_be_visible()
        page.evaluate("location.hash = '#/system'")
        expect(page.get_by_role("heading", name="Workers")).to_be_visible()

    visit()
    visit()
    before = counted(session)
    for _ in range(VISITS):
        visit()
    after = counted(session)
    assert after["nodes"] < before["nodes"] + SPARE, (before, after)
    assert after["jsEventListeners"] < before["jsEventListeners"] + VISITS, (before, after)
