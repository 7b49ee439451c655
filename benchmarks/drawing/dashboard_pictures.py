"""The pictures of docs/dashboard.md: a real server, a real job on the demo's digits, and Debian's Chromium.

python -m benchmarks.drawing.dashboard_pictures       # a few minutes; needs the extras `dev` and chromium
"""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import sync_playwright

from tcnn.demo.digits import write_digits

IMAGES = Path(__file__).parents[2] / "docs" / "img"
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 800}
CONFIG = {
    "epochs": 6, "warmup_epochs": 1, "anneal_epochs": 3, "batch_size": 64, "size": 96, "workers": 0, "device": "cpu",
    "log_steps": 2, "lr": 1e-3,
}  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TCNN_HOME": folder, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(
            [sys.executable, "-m", "tcnn", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert server.stdout is not None
            found = re.search(r"http://[\w.:]+", next(line for line in server.stdout if "tcnn is at" in line))
            assert found is not None
            photograph(found[0])
        finally:
            server.terminate()
            server.wait()


def photograph(url: str) -> None:
    with httpx.Client(base_url=url, timeout=600, trust_env=False) as client, sync_playwright() as playwright:
        data = client.post("/datasets", files={"file": ("digits.zip", digits())}).json()["id"]
        training = {"dataset": data, "preset": "quick", "config": CONFIG}
        jobs = [
            submit(client, {"model": "resnet18", "pretrained": False}),
            submit(client, {"model": "test_resnet", "pretrained": False, "stride": "remove", "finetune": training}),
        ]
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)

        def shoot(name: str, address: str, look: Any, whole: bool = False, **context: Any) -> None:
            page = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **context}).new_page()
            page.set_default_timeout(120_000)
            page.goto(f"{url}/{address}")
            look(page)
            page.wait_for_timeout(500)
            page.screenshot(path=IMAGES / f"dashboard-{name}.png", full_page=whole)
            page.context.close()

        wait(client, jobs[0], "succeeded")
        until(lambda: ((client.get(f"/jobs/{jobs[1]}").json()["progress"] or {}).get("epoch") or 0) > 2)
        jobs += [submit(client, {"model": name, "pretrained": False}) for name in ("regnety_016", "resnet50d")]
        shoot("jobs", "", lambda page: page.locator("progress:visible").wait_for())
        shoot("convert", "#/transform", choose)
        wait(client, jobs[1], "succeeded")
        job = f"#/jobs/{jobs[1]}"
        shoot("job", job, lambda page: page.get_by_role("img", name=re.compile("^Spans")).wait_for(), whole=True)
        shoot("attention", f"{job}/attention", lambda page: page.locator(".tile").nth(17).wait_for())
        shoot("phone", job, lambda page: page.locator(".verdict").wait_for(), color_scheme="dark", viewport=PHONE)
        browser.close()


def digits() -> bytes:
    """A zip of the demo's data set."""
    out = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(out, "w") as packed:
        write_digits(Path(folder))
        for file in sorted(Path(folder).rglob("*.png")):
            packed.write(file, file.relative_to(folder))
    return out.getvalue()


def submit(client: httpx.Client, request: dict[str, Any]) -> str:
    answer = client.post("/transform", json=request)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def choose(page: Any) -> None:
    """A model, half typed."""
    page.get_by_role("combobox", name="Model").fill("resnet50")
    page.get_by_role("option").first.wait_for()


def wait(client: httpx.Client, job: str, status: str) -> None:
    until(lambda: client.get(f"/jobs/{job}").json()["status"] == status)


def until(reached: Any, seconds: float = 1200) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.5)


if __name__ == "__main__":
    main()
