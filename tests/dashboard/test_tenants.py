"""Keys that see what all tenants have, and keys that may look alone: whose everything is, and that nothing is offered
which the server would refuse. No worker.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browsing import Open, inaccessible, sync_api
from serving import Server, hosted
from story import Story

from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Upload

expect = sync_api.expect
Enter = Callable[..., Any]
OTHER = Upload(
    id="ds_" + "7" * 24, owner="beta", kind="dataset", name="of beta.zip", path="x", size=1, sha256="0" * 64,
    details={"classes": ["cat", "dog"], "images": 60, "splits": {}},
)  # fmt: skip
"""Of another tenant than those whose keys look."""


@pytest.fixture(scope="module")
def server(story: Story) -> Iterator[Server]:
    """A queued job of beta's beside the story, which is local's."""
    story.house.submit(owner="beta", request={"model": "resnet26"})
    story.house.store.add_upload(OTHER)
    with hosted(story.house.home.root, api_keys="local:secret-of-this") as running:
        yield running


@pytest.fixture
def enter(server: Server, story: Story, open_page: Open) -> Enter:
    """A page of the dashboard, with a key of a tenant's that has these scopes."""

    def enter(address: str, *scopes: Scope, tenant: str = "local", **options: Any) -> Any:
        _, secret = story.house.store.create_key(NewKey(tenant=tenant, scopes=frozenset(scopes)))
        page = open_page("about:blank", **options)
        page.add_init_script(f"sessionStorage.setItem('tcnn-key', '{secret}')")
        page.goto(f"{server.url}/#/{address}")
        expect(page.get_by_role("button", name=f"Key of {tenant}")).to_be_visible()
        return page

    return enter


ALL = (Scope.READ, Scope.SUBMIT, Scope.ADMIN)


def test_lists_say_whose_everything_is(enter: Enter) -> None:
    page = enter("", *ALL, tenant="operations")
    rows = page.locator(".jobs li")
    expect(rows.filter(has_text="resnet26")).to_contain_text("beta · Convert")
    expect(rows).to_have_count(6)
    assert inaccessible(page) == []
    page.get_by_label("Tenant").fill("beta")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    expect(page.get_by_label("Tenant")).to_be_focused()
    page.get_by_role("link", name="Runs").click()
    table = page.get_by_role("table")
    expect(table.locator("tbody tr")).to_have_count(6)
    expect(table.get_by_role("columnheader").nth(1)).to_have_text("Tenant")
    expect(table.locator("tbody tr", has_text="resnet26").locator("td").nth(1)).to_have_text("beta")
    expect(page.get_by_role("button", name="Edit the name of resnet26")).to_be_hidden()
    page.get_by_label("Tenant").fill("local")
    page.keyboard.press("Enter")
    expect(table.locator("tbody tr")).to_have_count(5)
    assert page.url.endswith("?tenant=local")
    for name, number in (("test_resnet", 0), ("convnext_tiny", 1)):  # one of local's data sets is in the first
        page.get_by_role("checkbox", name=f"Select {name}").check()
        expect(page.locator(".selection")).to_contain_text("1 selected")
        expect(page.locator(".selection").get_by_role("link", name="Clone and edit")).to_have_count(number)
        page.get_by_role("button", name="Clear").click()
    page.get_by_role("link", name="Data").click()
    expect(page.get_by_role("row", name="of beta.zip")).to_contain_text("beta")


def test_what_is_another_tenants_is_looked_at_and_cancelled(enter: Enter, story: Story) -> None:
    page = enter(f"jobs/{story.queued.id}", *ALL, tenant="operations")
    expect(page.locator(".head")).to_contain_text("tenant local")
    expect(page.get_by_text("This job is local’s. Your key may look at it and cancel it")).to_be_visible()
    expect(page.locator(".head .actions").locator("a, button")).to_have_text(["Clone and edit", "Cancel", "Notify me"])
    expect(page.get_by_role("button", name="Edit the name")).to_be_hidden()
    page.goto(f"{page.url.partition('#')[0]}#/jobs/{story.succeeded.job}")
    # It names a data set of local's, with which no other tenant can submit it.
    expect(page.get_by_text("This job is local’s.")).to_be_visible()
    expect(page.locator(".head .actions").locator("a, button")).to_have_count(0)
    expect(page.get_by_role("region", name="Try it")).to_be_hidden()
    assert inaccessible(page) == []
    page.goto(f"{page.url.partition('#')[0]}#/data/{OTHER.id}")
    expect(page.get_by_text("This data set is beta’s.")).to_be_visible()
    expect(page.get_by_role("button", name="Delete")).to_be_hidden()


def test_forms_offer_what_is_the_keys_own(enter: Enter, story: Story) -> None:
    page = enter("finetune", *ALL, tenant="operations")
    expect(page.get_by_label("Job", exact=True)).to_contain_text("No job has produced a model yet")
    expect(page.get_by_label("Data set", exact=True)).to_contain_text("None uploaded yet")
    page = enter("finetune", *ALL)
    expect(page.get_by_label("Job", exact=True)).to_have_value(story.succeeded.job)


def test_a_key_that_may_look_alone_is_offered_nothing_else(enter: Enter, story: Story) -> None:
    page = enter(f"jobs/{story.succeeded.job}", Scope.READ)
    expect(page.get_by_text("Your key may look at jobs and change nothing.")).to_be_visible()
    expect(page.locator(".head .actions").locator("a, button")).to_have_count(0)
    expect(page.get_by_role("button", name="Edit the name")).to_be_hidden()
    assert inaccessible(page) == []
    home = page.url.partition("#")[0]
    page.goto(f"{home}#/jobs/{story.running.job}")
    expect(page.locator(".head .actions").locator("a, button")).to_have_text(["Notify me"])
    for form in ("finetune", "transform", "evaluate"):
        page.goto(f"{home}#/{form}")
        expect(page.get_by_text("Your key may look and submit nothing.")).to_be_visible()
        expect(page.locator("form.submit .actions")).to_be_hidden()
    page.goto(f"{home}#/data")
    expect(page.get_by_text("Your key may look and upload nothing.")).to_be_visible()
    expect(page.get_by_label("Files")).to_be_hidden()
    expect(page.get_by_label("Tenant")).to_be_hidden()
    page.goto(f"{home}#/")
    expect(page.get_by_role("link", name="Convert a model")).to_be_hidden()


def test_the_scope_admin_alone_cancels(enter: Enter, story: Story) -> None:
    page = enter(f"jobs/{story.running.job}", Scope.ADMIN)
    expect(page.get_by_text("Your key may look at jobs, cancel them, and change nothing else.")).to_be_visible()
    expect(page.locator(".head .actions").locator("a, button")).to_have_text(["Cancel", "Notify me"])
