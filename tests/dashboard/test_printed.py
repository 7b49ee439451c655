"""Pages and reports on paper: everything that a window shows by scrolling is there, in light colours, and nothing that
can only be clicked.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import Open, sync_api
from serving import Server
from story import SET, Story, before_and_after

from tcnn.analysis.pages.report import report

expect = sync_api.expect
A4 = {"width": 718, "height": 1040}
"""Pixels of a sheet within margins of a centimetre."""
CUT = """() => {
    const end = (one) => one.getBoundingClientRect().right;
    const kept = (cell) => {
        for (let box = cell.parentElement; box; box = box.parentElement)
            if (getComputedStyle(box).overflowX !== 'visible' && end(box) + 1 < end(cell)) return false;
        return end(cell) <= innerWidth + 1;
    };
    const cells = [...document.querySelectorAll('th, td')].filter((cell) => cell.checkVisibility());
    return [cells.length, cells.filter((cell) => !kept(cell)).map((cell) => cell.innerText)];
}"""
"""How many cells of tables are seen, and those that end beyond their box or the sheet."""
GROUND = "getComputedStyle(document.documentElement).getPropertyValue('color-scheme')"


class Wide(Story):
    """The story; a run on classes with names that are longer than a line."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        long = before_and_after(tuple(f"Old_English_sheepdog_{number}_" * 3 for number in range(12)))
        request = {"model": "test_resnet", "finetune": {"dataset": SET, "config": {"mixup": 0.2, "sizes": [32, 64]}}}
        self.second = self._succeed(long, priority=100, request=request)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    return Wide(tmp_path_factory.mktemp("printed") / "home")


def printed(page: Any) -> list[str]:
    """The cells that a sheet lacks."""
    page.set_viewport_size(A4)
    page.emulate_media(media="print", color_scheme="dark")
    count, lost = page.evaluate(CUT)
    assert count > 10
    assert page.evaluate(GROUND) == "light"
    return list(lost)


def test_a_job(server: Server, story: Wide, open_page: Open) -> None:
    page = open_page(server.url)
    page.evaluate("localStorage.setItem('tcnn-theme', 'dark')")
    page.goto(f"{server.url}/#/runs")
    page.reload()
    page.goto(f"{server.url}/#/jobs/{story.second.job}")
    page.get_by_text("Class by class").click()
    expect(page.get_by_role("region", name="Accuracy by class").get_by_role("row")).to_have_count(13)
    assert page.evaluate(GROUND) == "dark"
    assert printed(page) == []
    for name in ("Delete", "Choose File", "Save Loss as PNG"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
    expect(page.get_by_role("navigation")).to_be_hidden()
    expect(page.locator(".legend button").first).to_be_visible()


def test_a_report(open_page: Open, tmp_path: Path) -> None:
    """What is folded is printed, too."""
    severe = {str(level): {"images": 9, "top1": 0.9 - 0.1 * level} for level in (1, 3, 5)}
    measured = [
        {"model": f"networks/number_{number}/best.safetensors", "height": 64, "width": 64,
         "clean": {"images": 9, "top1": 0.5, "top5": 1.0, "loss": 0.5}, "corruption_top1": 0.4,
         "corruptions": {kind: {"top1": 0.6, "severities": severe} for kind in ("fog", "snow")}}
        for number in range(7)
    ]  # fmt: skip
    (tmp_path / "evaluation.json").write_text(json.dumps({"data": "pets", "images": 9, "rows": measured}))
    page = open_page("about:blank", color_scheme="dark")
    page.route("http://127.0.0.1:1/report", lambda route: route.fulfill(
        body=report(tmp_path), content_type="text/html; charset=utf-8"))  # fmt: skip
    page.goto("http://127.0.0.1:1/report")
    fog = page.get_by_role("cell", name="fog")
    expect(fog).to_be_hidden()
    assert printed(page) == []
    expect(fog).to_be_visible()
    expect(page.get_by_role("navigation")).to_be_hidden()
