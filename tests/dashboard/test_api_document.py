"""The page of the API's document: by eye and by axe, on a phone and in the dark, with an operation tried."""

from collections.abc import Iterator
from typing import Any

import pytest
from browsing import ALL_LOOKS, Open, inaccessible, sync_api
from serving import Server, hosted

expect = sync_api.expect


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with hosted(tmp_path_factory.mktemp("document") / "home") as running:
        yield running


def opened(url: str, open_page: Open, width: int, scheme: str, paths: str = "/") -> Any:
    """The page of the paths that begin so, with an operation opened by the keyboard."""
    page = open_page("about:blank", viewport={"width": width, "height": 860}, color_scheme=scheme)
    page.route("**/openapi.json", lambda route: route.fulfill(json=_some(route.fetch().json(), paths)))
    page.goto(f"{url}/docs")
    page.locator("#operations-models-models_models_get").get_by_role("button").first.press("Enter")
    expect(page).to_have_url(f"{url}/docs#/models/models_models_get")
    expect(page.locator(".microlight").first).to_be_visible()
    return page


def _some(document: dict[str, Any], paths: str) -> dict[str, Any]:
    return document | {"paths": {name: one for name, one in document["paths"].items() if name.startswith(paths)}}


@pytest.mark.slow  # as long as ten pages of ours; that it is there, and whole, `tests/api/test_api_problems.py` has
def test_an_operation_is_opened_with_the_keyboard(server: Server, open_page: Open) -> None:
    page = opened(server.url, open_page, 1280, "light", "/models")  # all fifty take it ten seconds
    expect(page.get_by_role("button", name="Try it out")).to_be_visible()


@pytest.mark.slow
def test_it_is_read_on_a_phone_in_the_dark(server: Server, open_page: Open) -> None:
    page = opened(server.url, open_page, 390, "dark")
    expect(page.locator("#docs")).to_have_css("filter", "invert(0.92) hue-rotate(180deg)")
    assert inaccessible(page) == []


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), ALL_LOOKS)
def test_an_operation_is_tried(server: Server, open_page: Open, width: int, scheme: str) -> None:
    page = opened(server.url, open_page, width, scheme)
    assert inaccessible(page) == []
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table").first).to_contain_text("200")
    assert inaccessible(page) == []
    page.get_by_role("button", name="Authorize").first.click()
    expect(page.get_by_role("button", name="Close").first).to_be_visible()
    assert inaccessible(page) == []
