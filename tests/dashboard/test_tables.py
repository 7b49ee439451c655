"""Tables on pages of any width: all rows of a short one, a hint where there is more, names whole, and nothing twice."""

import io
import re
import zipfile
from typing import Any

import pytest
from browsing import HOSTILE, Open, inaccessible, sync_api
from PIL import Image
from serving import Server
from story import Story, before_and_after

from tcnn_jobs.model.jobs import Claim

expect = sync_api.expect
BREEDS = (HOSTILE, *(f"Old_English_sheepdog_{number}" for number in range(9)))


class Measured(Story):
    """The story; a run of one timed pass and ten classes, and one of thirty."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.ten = self._of(BREEDS)
        self.thirty = self._of((*BREEDS, *(f"breed {number}" for number in range(20))))

    def _of(self, names: tuple[str, ...]) -> Claim:
        return self._succeed(before_and_after(names, guesses=False, rate=(63.2, 63.2)), priority=100)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return Measured(tmp_path_factory.mktemp("tables") / "home")


def classes(page: Any) -> Any:
    page.get_by_text("Class by class").click()
    return page.get_by_role("region", name="Accuracy by class")


def test_before_and_after_in_few_words_and_a_short_table_whole(
    server: Server, story: Measured, open_page: Open
) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.ten.job}")
    lines = page.locator(".before-after > .differences li")
    expect(lines).to_have_count(3)  # of six: the conversion stands for the CNN
    assert [re.sub(r":.*", "", line) for line in lines.all_inner_texts()] == [
        "T-CNN, fine-tuned, vs. CNN, fine-tuned the same way",
        "T-CNN, fine-tuned, vs. CNN",
        "CNN, fine-tuned the same way, vs. CNN",
    ]
    row = page.get_by_role("region", name="Models before and after").get_by_role("row").nth(1)
    assert row.get_by_role("cell").nth(4).inner_text() == "63.2"  # one pass has no interval
    assert row.get_by_role("cell").nth(3).inner_text() == "3.6\u00a0G"
    expect(page.locator(".before-after")).not_to_contain_text("slowest to fastest")
    region = classes(page)
    expect(region.locator("tbody tr")).to_have_count(10)
    expect(region).to_have_attribute("data-more", "")
    assert region.evaluate("one => one.scrollHeight - one.clientHeight") <= 1
    page.goto(f"{server.url}/#/jobs/{story.succeeded.job}")
    expect(page.get_by_role("region", name="Models before and after")).to_contain_text("790 to 821")
    expect(page.locator(".before-after")).to_contain_text("slowest to fastest")


def test_a_long_table_says_that_it_goes_on(server: Server, story: Measured, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.thirty.job}")
    region = classes(page)
    expect(region).to_have_attribute("data-more", "bottom")
    expect(region).to_have_css("mask-image", re.compile("gradient"))
    region.evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(region).to_have_attribute("data-more", "top")
    page.keyboard.press("Tab")
    region.focus()
    expect(region).to_have_css("mask-image", "none")  # or its outline would fade, too


@pytest.mark.slow  # axe looks at every cell; a table of three classes is looked at in test_frame.py
def test_a_long_table_is_accessible(server: Server, story: Measured, open_page: Open) -> None:
    page = open_page(f"{server.url}/#/jobs/{story.thirty.job}")
    region = classes(page)
    region.evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(region).to_have_attribute("data-more", "top")
    assert inaccessible(page) == []


@pytest.fixture
def uploaded(server: Server) -> str:
    """A data set of the breeds with an image each."""
    out, image = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "PNG")
    with zipfile.ZipFile(out, "w") as packed:
        for part in ("train", "val"):
            for name in BREEDS[1:]:
                packed.writestr(f"{part}/{name}/0.png", image.getvalue())
    with server.client(None) as client:
        made = client.post("/datasets", files={"file": ("breeds.zip", out.getvalue())})
    return str(made.json()["id"])


@pytest.mark.slow
def test_on_a_phone_tables_fade_where_they_go_on(
    server: Server, story: Measured, open_page: Open, uploaded: str
) -> None:
    page = open_page(f"{server.url}/#/runs", viewport={"width": 390, "height": 860})
    runs = page.get_by_role("region", name="Runs", exact=True)
    expect(runs).to_have_attribute("data-more", "right")
    runs.evaluate("one => one.scrollTo(40, 0)")
    expect(runs).to_have_attribute("data-more", "left right")
    runs.evaluate("one => one.scrollTo(one.scrollWidth, 0)")
    expect(runs).to_have_attribute("data-more", "left")
    page.set_viewport_size({"width": 1280, "height": 860})
    expect(runs).to_have_attribute("data-more", "")
    page.set_viewport_size({"width": 390, "height": 860})
    page.goto(f"{server.url}/#/jobs/{story.ten.job}")
    expect(page.get_by_role("region", name="Models before and after")).to_have_attribute("data-more", "right")
    name = classes(page).get_by_role("rowheader", name=BREEDS[1], exact=True)
    broken = """one => { const range = document.createRange(); range.selectNodeContents(one);
        const lines = new Map();
        for (const text of [...one.childNodes].filter((node) => node.nodeType === 3)) {
            range.selectNodeContents(text);
            lines.set(text.data, range.getClientRects().length);
        }
        return [...lines]; }"""
    assert name.evaluate(broken) == [["Old_", 1], ["English_", 1], ["sheepdog_", 1], ["0", 1]]  # no word is broken
    page.goto(f"{server.url}/#/data/{uploaded}")
    by_class = page.get_by_role("region", name="Images by class")
    expect(by_class.locator("tbody tr")).to_have_count(9)
    expect(by_class).to_have_attribute("data-more", "")  # it fits
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], scheme
