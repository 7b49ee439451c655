"""Back in the middle of a page, and what another window has deleted meanwhile. One server, no worker."""

from collections.abc import Iterator

import pytest
from browsing import Open, inaccessible, sync_api
from hosting import hosted
from serving import Server
from story import Story

expect = sync_api.expect


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return Story(tmp_path_factory.mktemp("moving") / "home")


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    with hosted(story.house.home.root) as running:
        yield running


def test_a_question_goes_with_its_page(server: Server, story: Story, open_page: Open) -> None:
    """Or it would be answered over another one."""
    page = open_page(server.url)
    page.get_by_role("link", name="convnext_tiny").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog", name="Delete this job?")).to_be_visible()
    page.go_back()
    expect(page.locator(".jobs li")).to_have_count(5)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.go_forward()
    expect(page.get_by_role("button", name="Delete")).to_be_enabled()


@pytest.mark.parametrize(
    ("address", "first"),
    [
        ("?after=job_{}", "#/"), ("?status=failed&after=job_{}", "#/?status=failed"),
        ("runs?q=a&after=job_{}", "#/runs?q=a"), ("data?after=ds_{}", "#/data"),
        ("checkpoints?weights=wts_{}", "#/checkpoints"),
    ],
)  # fmt: skip
def test_a_page_of_a_list_after_something_that_was_deleted(
    server: Server, open_page: Open, address: str, first: str
) -> None:
    page = open_page(f"{server.url}/#/{address.format('9' * 24)}")
    expect(page.get_by_text("was deleted")).to_be_visible()
    assert inaccessible(page) == []
    page.get_by_role("link", name="Newest").click()
    expect(page.get_by_text("was deleted")).to_be_hidden()
    assert page.url.rpartition("/#")[2].rstrip("?") == first.removeprefix("#")
