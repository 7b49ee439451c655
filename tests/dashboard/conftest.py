"""Debian's Chromium on a real server. No page may write an error to its console. The pages of a test that fails are
photographed into test-pictures/ (ignored by git); with TCNN_TEST_PICTURES=1 those of every test.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import browsing
import pytest
from browsing import Open, sync_api
from serving import Server, hosted, look_here, serving
from story import Story

from tcnn_api.responses import stream
from tcnn_api.routes.uploads import datasets, gallery

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first that is there is used; the shell draws the same pages in a third of the others' time."""
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
LATENCY = int(os.environ.get("TCNN_TEST_LATENCY", "0"))
"""Milliseconds that an answer takes at most, drawn anew for each: what a slow network would show is seen here, too."""
HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "test-pictures"
FAILED = pytest.StashKey[bool]()
SLOWLY = """{
  const ask = window.fetch.bind(window);
  window.fetch = async (...asked) => {
    await new Promise((done) => setTimeout(done, Math.random() * LATENCY));
    return ask(...asked);
  };
}"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if CHROMIUM is None:
        skip = pytest.mark.skip(reason="NOT TESTED: the dashboard, for lack of Chromium; apt-get install chromium")
        for item in items:
            if "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """What servers start computes with one thread, and asks no hub. Streams look for news five times a second.

    Data sets are looked at by servers' threads: a process for each takes a quarter of a second, and `tests/api/uploads`
    has those.
    """
    with pytest.MonkeyPatch.context() as patch:
        look_here(patch, datasets, gallery)
        patch.setattr(stream, "POLL", 0.2)
        patch.setattr(stream, "SHARE", 2.0)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    module = getattr(nextitem, "module", None)
    if module is None or Path(module.__file__).parent != HERE or hasattr(module, "asyncio"):
        _browser.close()


_browser = ExitStack()
_started: list[Any] = []
"""The browser, while there is one."""


@pytest.fixture
def browser() -> Any:
    """One for all tests that follow each other, whatever their file: to start it takes a second.

    And no longer: until it ends its process has an event loop, which those that start another would stumble over.
    """
    if not _started:
        playwright = _browser.enter_context(sync_api.sync_playwright())
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses to run as root
        _started.append(playwright.chromium.launch(executable_path=CHROMIUM, args=arguments))
        _browser.callback(_started.clear)
        _browser.callback(_started[0].close)
    return _started[0]


@pytest.fixture
def open_page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens pages; keywords are the browser context's. Nothing outside of the server may be asked for."""
    sync_api.expect.set_options(timeout=40_000)
    contexts: list[Any] = []
    said: list[str] = []

    def open_page(url: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, "locale": "en-GB", **options})
        contexts.append(context)
        if LATENCY:
            context.add_init_script(SLOWLY.replace("LATENCY", str(LATENCY)))
        page = context.new_page()
        page.set_default_timeout(40_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: message.type == "error" and said.append(message.text))
        own = ("http://127.0.0.1:", "data:", "blob:")
        page.on("request", lambda asked: asked.url.startswith(own) or said.append(f"asked for {asked.url}"))
        page.goto(url)
        return page

    yield open_page
    wanted = request.node.stash[FAILED] or "TCNN_TEST_PICTURES" in os.environ
    if wanted:
        PICTURES.mkdir(exist_ok=True)
    for number, context in enumerate(contexts):
        for page in context.pages if wanted else ():
            name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
            page.screenshot(path=PICTURES / f"{name}-{number}.png", full_page=True)
        context.close()
    # What a test provokes (a 404, a server that is away) the browser itself reports; anything else is a mistake.
    mistakes = [text for text in said if not text.startswith("Failed to load resource")]
    assert not mistakes


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """What `server` has to show; some files tell more."""
    return Story(tmp_path_factory.mktemp("story") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    """In this process, on the file's story, without workers and keys."""
    with hosted(story.house.home.root) as running:
        yield running


@pytest.fixture(scope="module")
def working_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A process, with a worker, without keys, on nothing."""
    with serving(tmp_path_factory.mktemp("dashboard") / "home", TCNN_POLL="0.1", TCNN_GRACE="5") as running:
        yield running


@pytest.fixture(autouse=True)
def contrasts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow test measures them, too."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.setattr(browsing, "CONTRAST", True)
