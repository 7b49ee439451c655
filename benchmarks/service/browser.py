"""What measurements of the dashboard share: a server and jobs on it, Debian's Chromium, a file of numbers."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Playwright

from benchmarks.reporting import processor

BROWSERS = ("chromium", "chromium-headless-shell")
"""The first that is there is used."""


@contextmanager
def serving(home: Path, *arguments: str, **more: str) -> Iterator[str]:
    """The address of a server on a home directory."""
    environment = {**os.environ, "TCNN_HOME": str(home), "PYTHONUNBUFFERED": "1", **more}
    server = subprocess.Popen(
        [sys.executable, "-m", "tcnn", "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, text=True,
        env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        found = re.search(r"http://[\w.:]+", next(line for line in server.stdout if "tcnn is at" in line))
        assert found is not None
        yield found[0]
    finally:
        server.terminate()
        server.wait()


def submit(client: httpx.Client, asked: dict[str, Any], route: str = "/transform") -> str:
    answer = client.post(route, json=asked)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait(client: httpx.Client, job: str) -> None:
    until(partial(ended, client, job))
    now = client.get(f"/jobs/{job}").json()
    assert now["status"] == "succeeded", now["error"]


def ended(client: httpx.Client, job: str) -> bool:
    return client.get(f"/jobs/{job}").json()["status"] in ("succeeded", "failed", "cancelled")


def until(reached: Callable[[], bool], seconds: float = 7200) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(1)


def chromium(playwright: Playwright) -> Browser:
    """The browser; as root without its sandbox, which refuses to run there."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])


def spread(values: list[float], digits: int = 0) -> dict[str, float]:
    """Median and slowest of some durations."""
    return {"median": round(statistics.median(values), digits), "slowest": round(max(values), digits)}


def keep(file: Path, browser: Browser, load: float, **found: Any) -> None:
    """Write and print the numbers, with machine, versions, and the load before and after."""
    circumstances = {
        "processor": processor(), "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "chromium": browser.version, "playwright": version("playwright"),
    }  # fmt: skip
    text = json.dumps(circumstances | found, indent=1)
    file.write_text(f"{text}\n")
    print(text)
