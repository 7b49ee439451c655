"""The pictures of docs/dashboard.md and README: a real server, a real run on photographs, and Debian's Chromium.

    python -m benchmarks.drawing.dashboard_pictures --weights tiny-darknet.safetensors --images imagewoof160.tar

Tiny Darknet's last stage, made attention, learns ten breeds of dogs beside the CNN (`dogs`): a quarter of an hour on
two cores. `--home DIR` keeps the server's files there; photographs are made anew from a run that is there already.
Needs the extras `dev` and chromium.
"""

import argparse
import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from benchmarks.drawing import dogs
from benchmarks.service.browser import chromium, ended, serving, submit, until, wait
from tcnn.data.decode import open_image

IMAGES = dogs.ROOT / "docs" / "img"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 800}
TALL = {"width": 1280, "height": 1080}
NAME, PLAIN = "Ten breeds of dogs", "Before any training"
EXPLORED = "#/jobs/{job}/attention?dataset={data}&number=8&layer=conv13&head=1&circles=1&beside=start&y=0.45&x=0.5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--home", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        home = given.home or Path(scratch) / "home"
        home.mkdir(parents=True, exist_ok=True)
        known = {
            "HF_HUB_OFFLINE": "1",
            **dogs.environment(Path(scratch)),
        }  # its processes know Tiny Darknet by its name
        with serving(home, **known) as url, httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
            job = trained(client) or train(client, given.weights, given.images, Path(scratch))
            photograph(url, client, job)


def trained(client: httpx.Client) -> str | None:
    """The run of a kept home."""
    there = client.get("/jobs", params={"status": "succeeded", "kind": "transform"}).json()["data"]
    return next((str(job["id"]) for job in there if job["name"] == NAME), None)


def train(client: httpx.Client, weights: Path, images: Path, scratch: Path) -> str:
    breeds = dogs.names(images)
    data = client.post("/datasets", files={"file": ("dogs.zip", dogs.zipped(images, breeds))}).json()["id"]
    own = client.post(
        "/weights", files={"file": ("tiny-darknet-dogs.safetensors", dogs.weights(weights, breeds))}
    ).json()["id"]
    conversion = {"model": "tiny_darknet", "weights": own, "target": dogs.TARGET}
    training = {"dataset": data, "preset": "cifar", "config": dogs.RECIPE, "baseline": True}
    wait(client, submit(client, {**conversion, "name": PLAIN}))
    job = submit(client, {**conversion, "finetune": training, "name": NAME, "tags": ["dogs", "last stage"]})
    wait(client, job)
    return job


def photograph(url: str, client: httpx.Client, job: str) -> None:
    request = client.get(f"/jobs/{job}").json()["request"]
    data = request["finetune"]["dataset"]
    longer = {**request["finetune"], "config": {**request["finetune"]["config"], "epochs": 16}, "baseline": False}
    running = submit(client, {**request, "name": "Ten breeds, for longer", "tags": ["dogs"], "finetune": longer})
    until(lambda: ((client.get(f"/jobs/{running}").json()["progress"] or {}).get("percent") or 0) > 1)
    waiting = [submit(client, {"model": name, "pretrained": False}) for name in ("regnety_016", "resnet50d")]
    with sync_playwright() as playwright:
        browser = chromium(playwright)

        def shoot(name: str, address: str, look: Callable[[Page], None], **context: Any) -> None:
            page = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **context}).new_page()
            page.set_default_timeout(120_000)
            page.goto(f"{url}/{address}")
            look(page)
            page.wait_for_timeout(800)
            keep(page.screenshot(), IMAGES / f"dashboard-{name}.png")
            page.context.close()

        shoot("jobs", "", lambda page: page.locator("progress:visible").wait_for())
        shoot("system", "#/system", lambda page: page.get_by_text("Workers").first.wait_for(), color_scheme="dark")
        shoot("convert", "#/transform", choose)
        for one in (running, *waiting):
            client.post(f"/jobs/{one}/cancel")
            until(partial(ended, client, one))
            client.delete(f"/jobs/{one}")
        shoot("job", f"#/jobs/{job}", lambda page: page.locator(".verdict").first.wait_for(), viewport=TALL)
        shoot("phone", f"#/jobs/{job}", lambda page: page.locator(".verdict").first.wait_for(), viewport=PHONE,
              color_scheme="dark")  # fmt: skip
        shoot("attention", EXPLORED.format(job=job, data=data), lambda page: page.locator(".tile").nth(17).wait_for(),
              viewport=TALL)  # fmt: skip
        shoot("runs", "#/runs", lambda page: page.locator(".runs tbody tr").first.wait_for())
        shoot("dataset", f"#/data/{data}", lambda page: page.locator("main img").nth(20).wait_for(), viewport=TALL,
              color_scheme="dark")  # fmt: skip
        browser.close()


def keep(shot: bytes, file: Path) -> None:
    """With 256 colours, which is a quarter of the bytes."""
    with open_image(io.BytesIO(shot)) as image:
        image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE).save(file, optimize=True)


def choose(page: Page) -> None:
    """A model, half typed."""
    page.get_by_role("combobox", name="Model").fill("resnet50")
    page.get_by_role("option").first.wait_for()


if __name__ == "__main__":
    main()
