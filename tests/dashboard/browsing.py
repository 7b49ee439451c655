"""What the tests of the dashboard share: a data set with names of one's choice, and waiting for a job's end."""

import io
import os
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from houses import wait_for
from serving import Server
from tiny_runs import colours

Axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="NOT TESTED: accessibility").Axe
sync_api = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: the dashboard, for lack of playwright")

HOSTILE = "<img src=x onerror=document.title='owned'>"
"""As the name of a class and of a data set: one that runs if it is ever taken for markup."""
HEBREW = "תמונות"
"""As a name: letters that run from right to left."""
TINY = {
    "epochs": 2, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2,
    "device": "cpu", "log_steps": 1,
}  # fmt: skip

Open = Callable[..., Any]


@contextmanager
def client_of(server: Server) -> Iterator[httpx.Client]:
    with server.client(None) as client:
        yield client


def archive(folder: Path, classes: tuple[str, ...] = ("blue", "green", "red")) -> bytes:
    """A zip of class folders; the classes may have other names than their colours."""
    made = colours(folder / "made")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for colour, name in zip(("blue", "green", "red"), classes, strict=True):
            for image in sorted((made / colour).iterdir()):
                packed.write(image, f"{name}/{image.name}")
    return out.getvalue()


def ended(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job, when it has ended."""

    def look() -> dict[str, Any] | None:
        now: dict[str, Any] = client.get(f"/jobs/{job}").json()
        return now if now["status"] in ("succeeded", "failed", "cancelled") else None

    found: dict[str, Any] = wait_for(look, 240)
    return found


def with_key(open_page: Open, address: str, key: str) -> Any:
    """A page of somebody who has given the key."""
    page = open_page("about:blank")
    page.add_init_script(f"sessionStorage.setItem('tcnn-key', '{key}')")
    page.goto(address)
    return page


def until(page: Any, true: Callable[[], object], seconds: float = 40) -> None:
    """Wait in a way in which the page's own events are heard."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        page.wait_for_timeout(50)


def open_log(page: Any) -> None:
    """Unfold a job's log by the keyboard: charts that appear above it would move it from under the pointer."""
    page.get_by_text("Log", exact=True).press("Enter")


PLACES = """(element, words) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const found = {};
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const word of words.filter((one) => !(one in found) && node.data.includes(one))) {
            const range = document.createRange();
            range.setStart(node, node.data.indexOf(word));
            range.setEnd(node, node.data.indexOf(word) + word.length);
            const { left, bottom } = range.getBoundingClientRect();
            found[word] = 10000 * Math.round(bottom / 8) + left;
        }
    }
    return words.filter((one) => one in found).toSorted((one, other) => found[one] - found[other]);
}"""
"""Those of the words that an element has, as they are seen, line by line from left to right."""
ALL_LOOKS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
LOOKS = ALL_LOOKS if "TCNN_TEST_LATENCY" in os.environ else [(390, "dark")]
"""Pages are wide and light where nothing is said; `make test-latency` looks at all four. axe takes a second a look."""


LOOK = """([part, contrast]) => axe.run(part, {
    resultTypes: ['violations'], rules: { 'color-contrast': { enabled: contrast } },
}).then(({ violations }) => violations)"""


CONTRAST = LOOKS == ALL_LOOKS
"""Whether contrasts are measured where nothing is said. Of slow tests they are."""


def inaccessible(page: Any, part: str = ":root", contrast: bool = False) -> list[str]:
    """What axe-core finds wrong with a page as it is, however little, and whether it is wider than the window.

    Or with a part of it, where another test looks at such a page as a whole. Contrasts, three quarters of the time of a
    look, are measured by slow tests, where all looks are taken, and where it is said: all pages have the same colours.
    """
    axe = Axe()
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(axe.axe_script)
    found = page.evaluate(LOOK, [part, contrast or CONTRAST])
    lines = [f"{each['id']}: {node['target']} {node['failureSummary']}" for each in found for node in each["nodes"]]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        lines.append("the page is wider than the window")
    return lines
