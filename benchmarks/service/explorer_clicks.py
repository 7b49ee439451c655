"""How long a click in the attention explorer takes until all heads are drawn from the place that was clicked.

    python -m benchmarks.service.explorer_clicks [--model resnet50d] [--clicks 60]

A real server with a worker converts the model (random weights, which cost what others do), and Debian's Chromium at
1280×860 opens its explorer on the drawing. Every click is on another place; the page itself measures from the question
to the last head's picture (`tcnn: a place is shown`). Besides: the same beside another temperature, which costs a pass
through the model when it is first asked for. Idle processors are assumed; the load before and after is told.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import httpx
from playwright.sync_api import Page, sync_playwright

from benchmarks.service.browser import chromium, keep, serving, spread, submit, wait

RESULTS = Path(__file__).parents[1] / "results" / "explorer_clicks.json"
SHOWN = "performance.getEntriesByName('tcnn: a place is shown').map(one => one.duration)"


def converted(client: httpx.Client, model: str) -> str:
    """A job that has converted the model."""
    job = submit(client, {"model": model, "pretrained": False})
    wait(client, job)
    return job


def shown(page: Page, count: int) -> list[float]:
    """The durations in milliseconds of all that was shown, once there are so many."""
    while len(found := page.evaluate(SHOWN)) < count:  # the page's policy allows no eval, so nothing waits there
        time.sleep(0.02)
    return [float(each) for each in found]


def clicks(page: Page, count: int) -> list[float]:
    """Click so many places of the picture, one after the other has been shown."""
    before = len(page.evaluate(SHOWN))
    box = page.get_by_role("application").locator("canvas").first.bounding_box()
    assert box is not None
    for number in range(count):
        across, down = 0.05 + 0.9 * (number * 0.382 % 1), 0.05 + 0.9 * (number * 0.618 % 1)
        page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])
        found = shown(page, before + number + 1)
    return found[before:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50d")
    parser.add_argument("--clicks", type=int, default=60)
    parser.add_argument("--json", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with (
            serving(home) as url,
            httpx.Client(base_url=url, timeout=120, trust_env=False) as client,
            sync_playwright() as playwright,
        ):
            job = converted(client, given.model)
            before = os.getloadavg()[0]
            browser = chromium(playwright)
            page = browser.new_page(viewport={"width": 1280, "height": 860}, locale="en-GB")
            page.set_default_timeout(120_000)
            page.goto(f"{url}/#/jobs/{job}/attention")
            first = shown(page, 1)[0]
            heads = page.locator(".tile").count()
            at_place = clicks(page, given.clicks)
            page.get_by_role("slider", name="Temperature").press("ArrowRight")  # a conversion stands at the left
            turned = shown(page, given.clicks + 2)[-1]
            keep(
                given.json, browser, before, model=given.model, heads=heads, clicks=given.clicks,
                click_ms=spread(at_place), first_place_ms=round(first), another_temperature_ms=round(turned),
            )  # fmt: skip
            browser.close()


if __name__ == "__main__":
    main()
