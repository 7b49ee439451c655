"""Links that show one job: what they open and what they do not, their end, and who is told of it."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from houses import wait_for
from sqlalchemy import text
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from tcnn_api.access.authenticate import MOST_WRONG
from tcnn_api.access.credentials import LIFE
from tcnn_api.app import create_app
from tcnn_api.deps import Service
from tcnn_api.routes.jobs.shares import MADE, ShareMade
from tcnn_api.settings import load
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.store.shares import MOST

Make = Callable[..., Any]
Refusal = Callable[..., dict[str, Any]]
_addresses = itertools.count(1)


@pytest.fixture(autouse=True)
def _seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcnn_api.access.credentials.LIFE", -1.0)


def holder(alice: TestClient, job: str, **body: Any) -> tuple[TestClient, dict[str, Any]]:
    """Somebody who has a link, and what its maker was told."""
    made = alice.post(f"/jobs/{job}/shares", json=body)
    assert made.status_code == 201, made.text
    secret = made.json()["secret"]
    client = TestClient(alice.app, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"})
    return client, made.json()


def test_a_link_shows_one_job_and_nothing_else(alice: TestClient, make: Make, refusal: Refusal) -> None:
    request = {"model": "resnet18", "webhook": "https://hooks.example.org/secret"}
    job, other = make(Status.SUCCEEDED, request=request).id, make(Status.SUCCEEDED).id
    guest, made = holder(alice, job)
    assert guest.get("/me").json() == {"tenant": "alice", "key": made["id"], "scopes": ["read"], "job": job}
    shown = guest.get(f"/jobs/{job}").json()
    assert shown["status"] == "succeeded"
    assert shown["request"] == {"model": "resnet18", "webhook": None}  # whose address may be a secret
    assert "hooks" not in guest.get(f"/jobs/{job}/archive").text
    for part in ("events", "checkpoint", "checkpoints", "files/evaluation.json", "archive"):
        assert guest.get(f"/jobs/{job}/{part}").status_code == 200, part
    assert guest.head(f"/jobs/{job}/checkpoint").status_code == 200
    for method, path in (
        ("GET", f"/jobs/{other}"), ("GET", f"/jobs/{other}/checkpoint"), ("GET", "/jobs"),
        ("GET", f"/jobs/{job}/shares"),
        ("GET", "/datasets"), ("GET", "/system"), ("GET", "/metrics"), ("GET", "/audit"), ("DELETE", f"/jobs/{job}"),
        ("POST", f"/jobs/{job}/cancel"), ("PATCH", f"/jobs/{job}"), ("POST", f"/jobs/{job}/predict"),
        ("POST", f"/jobs/{job}/shares"), ("POST", "/transform"), ("GET", f"/jobs/{job}/../{other}"),
        ("GET", f"/jobs/{job}%2f..%2f{other}"), ("GET", f"/jobs/{job}/attention/img_1"),
    ):  # fmt: skip
        refusal(guest.request(method, path), 403, "Authorization")


def test_it_ends(alice: TestClient, bob: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    job = make(Status.SUCCEEDED).id
    first, made = holder(alice, job)
    second, late = holder(alice, job, days=0.5)
    third, _ = holder(alice, job)
    listed = alice.get(f"/jobs/{job}/shares").json()["data"]
    assert [one["id"] for one in listed][:2] == [made["id"], late["id"]]
    assert "secret" not in listed[0]
    refusal(bob.get(f"/jobs/{job}/shares"), 404, "id")
    refusal(bob.post(f"/jobs/{job}/shares", json={}), 404, "id")
    refusal(bob.delete(f"/jobs/{job}/shares/{made['id']}"), 404, "id")
    refusal(alice.delete(f"/jobs/{job}/shares/share_none"), 404, "share")
    assert first.get(f"/jobs/{job}").status_code == 200
    assert alice.delete(f"/jobs/{job}/shares/{made['id']}").status_code == 204
    assert alice.delete(f"/jobs/{job}/shares/{made['id']}").status_code == 204
    refusal(first.get(f"/jobs/{job}"), 401, "Authorization")
    with service.store.writing() as connection:
        connection.execute(text("UPDATE shares SET expires_at = expires_at - 43201 WHERE id = :id"), {"id": late["id"]})
    refusal(second.get(f"/jobs/{job}"), 401, "Authorization")
    assert third.get(f"/jobs/{job}").status_code == 200
    assert alice.delete(f"/jobs/{job}").status_code == 204
    refusal(third.get(f"/jobs/{job}"), 401, "Authorization")
    with service.store.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM shares WHERE job = :job"), {"job": job}) == 0


def test_what_is_stored_and_what_is_told(alice: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    job = make(Status.SUCCEEDED).id
    headers = {"Idempotency-Key": f"share of {job}".replace(" ", "-")}
    made = alice.post(f"/jobs/{job}/shares", json={"days": 1}, headers=headers).json()
    again = alice.post(f"/jobs/{job}/shares", json={"days": 1}, headers=headers).json()
    assert again == made | {"secret": None, "page": None}
    assert made["page"] == f"/#/shared/{made['secret']}"
    with service.store.reading() as connection:
        rows = connection.execute(text("SELECT * FROM shares WHERE job = :job"), {"job": job}).all()
    assert len(rows) == 1
    assert made["secret"].removeprefix("tcnnshare_") not in str(rows)
    alice.delete(f"/jobs/{job}/shares/{made['id']}")
    refusal(alice.post(f"/jobs/{job}/shares", json={"days": 1}, headers=headers), 422, "Idempotency-Key")
    told, _ = service.store.audit(tenant="alice", limit=1000)
    assert [(one.action, one.details) for one in told if one.resource == made["id"]] == [
        ("share.revoke", {"job": job}), ("share.create", {"job": job}),
    ]  # fmt: skip
    for body, field in (({"days": 0}, "days"), ({"days": 366}, "days"), ({"forever": True}, "forever")):
        refusal(alice.post(f"/jobs/{job}/shares", json=body), 422, field)
    for _ in range(MOST):
        service.store.create_share(job, "alice", 60)
    assert "revoke one" in refusal(alice.post(f"/jobs/{job}/shares", json={}), 409, "status")["detail"]


def test_who_may_make_one(alice: TestClient, service: Service, make: Make, refusal: Refusal, tmp_path: Path) -> None:
    job = make().id
    _, secret = service.store.create_key(NewKey(tenant="alice", scopes=frozenset({Scope.READ})))
    reader = TestClient(alice.app, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"})
    refusal(reader.post(f"/jobs/{job}/shares", json={}), 403, "Authorization")
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as open_:
        job = open_.post("/transform", json={"model": "resnet18"}).json()["id"]
        assert "has no keys" in refusal(open_.post(f"/jobs/{job}/shares", json={}), 422, "id")["detail"]


def test_all_links_of_a_tenant_have_one_share(
    alice: TestClient, bob: TestClient, url: str, service: Service, make: Make, refusal: Refusal
) -> None:
    """Of streams and downloads, beside the tenant's own: however many there are, those who have one shut nobody out."""
    job, other, theirs = make(Status.RUNNING).id, make(Status.SUCCEEDED).id, make(Status.RUNNING, owner="bob").id
    guests = [holder(alice, job)[0] for _ in range(service.settings.max_streams + 1)]

    def listen(client: TestClient, job: str) -> AbstractContextManager[httpx.Response]:
        headers = {"Accept": "text/event-stream", "Authorization": client.headers["Authorization"]}
        return httpx.stream("GET", f"{url}/jobs/{job}/events", headers=headers, trust_env=False)

    with ExitStack() as opened:
        for guest in guests[1:]:
            assert opened.enter_context(listen(guest, job)).status_code == 200
        told = refusal(guests[0].get(f"/jobs/{job}/events", headers={"Accept": "text/event-stream"}), 429)
        assert told["type"] == "urn:tcnn:problem:too-many-streams"
        for client, wanted in ((alice, job), (alice, other), (bob, theirs)):
            assert opened.enter_context(listen(client, wanted)).status_code == 200
    with ExitStack() as held:
        for _ in range(32):
            held.enter_context(service.pools.downloads.hold("links of alice"))
        refusal(holder(alice, other)[0].get(f"/jobs/{other}/checkpoint"), 429)
        assert alice.get(f"/jobs/{other}/checkpoint").status_code == 200
    wait_for(lambda: not service.streams.open("links of alice"))


def test_the_log_says_which_link_it_was(alice: TestClient, make: Make) -> None:
    job = make().id
    guest, made = holder(alice, job)
    with capture_logs() as logged:
        guest.get(f"/jobs/{job}")
    (line,) = (line for line in logged if line["event"] == "request")
    assert (line["tenant"], line["key"], line["path"]) == ("links of alice", made["id"], f"/jobs/{job}")


@pytest.fixture
def same_address(alice: TestClient) -> Callable[[str, str], Any]:
    """Asks for a job with a secret, always from one address."""
    address = f"192.0.2.{next(_addresses)}"

    def ask(secret: str, job: str) -> Any:
        web = TestClient(alice.app, base_url="http://localhost", client=(address, 1))
        return web.get(f"/jobs/{job}", headers={"Authorization": f"Bearer {secret}"})

    return ask


def test_a_link_in_use_goes_on_where_somebody_guesses(
    alice: TestClient, make: Make, refusal: Refusal, same_address: Callable[[str, str], Any]
) -> None:
    job = make(Status.SUCCEEDED).id
    (_, used), (_, unused) = holder(alice, job), holder(alice, job)
    assert same_address(used["secret"], job).status_code == 200
    for number in range(MOST_WRONG):
        refusal(same_address(f"tcnnshare_{number}", job), 401, "Authorization")
    for _ in range(3):
        assert same_address(used["secret"], job).status_code == 200
    for secret in (unused["secret"], "tcnnshare_0", f"{used['secret']}x"):
        refusal(same_address(secret, job), 429)


@pytest.mark.parametrize("end", ["revoked", "expired", "revoked before it was used", "deleted"])
def test_a_link_that_has_ended_is_no_guess(
    end: str, alice: TestClient, service: Service, make: Make, refusal: Refusal, same_address: Callable[[str, str], Any]
) -> None:
    """A page that was left open asks for ever; whoever works beside it has keys that were never used there."""
    job, other = make(Status.SUCCEEDED).id, make(Status.SUCCEEDED).id
    (_, made), (_, unused) = holder(alice, job), holder(alice, other)
    if "before" not in end:
        assert same_address(made["secret"], job).status_code == 200
    if end == "expired":
        with service.store.writing() as connection:
            connection.execute(text("UPDATE shares SET expires_at = 0 WHERE id = :id"), {"id": made["id"]})
    elif end == "deleted":
        assert alice.delete(f"/jobs/{job}").status_code == 204
    else:
        assert alice.delete(f"/jobs/{job}/shares/{made['id']}").status_code == 204
    told = "expected a link that is valid, found one that was revoked or has expired; ask for another"
    for _ in range(MOST_WRONG + 5):
        assert refusal(same_address(made["secret"], job), 401, "Authorization")["detail"] == told
    assert same_address(unused["secret"], other).status_code == 200


def test_the_example_is_one() -> None:
    assert ShareMade(**MADE).model_dump(mode="json") == MADE
    assert LIFE == 3.0, "what the documentation says"
