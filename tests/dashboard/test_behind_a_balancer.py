"""Several servers behind a load balancer, each of which knows only the pictures that were sent to itself."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from answering import Here, balanced, converted_in
from browsing import Open, sync_api
from houses import House
from serving import hosted
from tiny_runs import colours

from tcnn_jobs.confined import explorers

expect = sync_api.expect
SLOW = 120_000
"""Milliseconds that two models may take to be loaded where others use the processors, too."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("balanced") / "home")
    yield house
    house.store.close()


@pytest.fixture(scope="module")
def servers(house: House) -> Iterator[tuple[str, str]]:
    with (
        pytest.MonkeyPatch.context() as patch,
        hosted(house.home.root) as first,
        hosted(house.home.root) as second,
    ):
        patch.setattr(explorers, "_Child", Here)
        yield first.url, second.url


@pytest.fixture(scope="module")
def converted(house: House) -> str:
    return converted_in(house)


@pytest.mark.slow  # as the picture below
def test_the_explorer_shows_maps_though_every_request_reaches_another_server(
    servers: tuple[str, str], converted: str, open_page: Open, tmp_path: Path
) -> None:
    """It sent the picture again and again, without a pause or a word."""
    first, second = servers
    with balanced(first, second) as (url, passed):
        page = open_page(f"{url}/#/jobs/{converted}/attention")
        tiles = page.locator("[data-layer='layer4.0.conv2'] .tile")
        expect(tiles).to_have_count(9, timeout=SLOW)
        expect(
            page.get_by_text("Every request reaches another server, so the picture is sent with each")
        ).to_be_visible(timeout=SLOW)
        expect(page.locator("#place")).to_contain_text("row 3 of 5, column 3 of 5", timeout=SLOW)
        assert passed == [
            ("POST", first, 201), ("GET", second, 404), ("POST", first, 201), ("GET", second, 404),  # lost twice
            ("POST", first, 201),  # with its maps
        ]  # fmt: skip
        stage = page.get_by_role("application")
        stage.focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#place")).to_contain_text("row 2 of 5, column 3 of 5")
        assert passed[5:] == [("POST", second, 201)]
        with page.expect_response(re.compile("maps=true")):
            page.get_by_label("Your own picture").set_input_files(colours(tmp_path) / "red" / "0.png")
        stage.click(position={"x": 3, "y": 3})
        expect(page.locator("#place")).to_contain_text("row 1 of 5, column 1 of 5")
        assert {status for _, _, status in passed[5:]} == {201}
        expect(page.get_by_role("alert")).to_have_count(0)


def test_a_picture_that_is_forgotten_once_is_sent_once_more(
    servers: tuple[str, str], converted: str, open_page: Open
) -> None:
    """As when its process has left for lack of questions."""
    first, second = servers
    with balanced(first, second, second, second, second) as (url, passed):
        page = open_page(f"{url}/#/jobs/{converted}/attention")
        expect(page.locator("#place")).to_contain_text("row 3 of 5, column 3 of 5", timeout=SLOW)
        assert passed == [
            ("POST", first, 201), ("GET", second, 404), ("POST", second, 201), ("GET", second, 200),
        ]  # fmt: skip
        expect(page.get_by_text("Every request reaches another server")).to_have_count(0)
