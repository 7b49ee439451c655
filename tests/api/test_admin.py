"""The scope `admin`: it sees and cancels what all tenants have, reads the audit log, and changes nothing else."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.access import credentials
from tcnn_api.deps import Service
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Status

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]


@pytest.fixture
def client(alice: TestClient, service: Service) -> Callable[..., TestClient]:
    """A client with a new key of the tenant `operations` with these scopes."""

    def client(*scopes: Scope) -> TestClient:
        _, secret = service.store.create_key(NewKey(tenant="operations", scopes=frozenset(scopes)))
        return TestClient(alice.app, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"})

    return client


@pytest.fixture
def admin(client: Callable[..., TestClient]) -> TestClient:
    return client(Scope.ADMIN)


def test_sees_what_all_tenants_have(admin: TestClient, make: Make, upload: Callable[..., str]) -> None:
    jobs = {make(Status.SUCCEEDED, owner=owner).id: owner for owner in ("alice", "bob")}
    listed = admin.get("/jobs", params={"limit": 100}).json()["data"]
    assert {job["id"]: job["tenant"] for job in listed}.items() >= jobs.items()
    for tenant in ("alice", "bob"):
        found = admin.get("/jobs", params={"limit": 100, "tenant": tenant}).json()["data"]
        assert {job["tenant"] for job in found} == {tenant}
    for job in jobs:
        for path in ("", "/events", "/checkpoint", "/checkpoints", "/files/evaluation.json"):
            assert admin.get(f"/jobs/{job}{path}").status_code == 200, path
        assert admin.get(f"/jobs/{job}/logs").status_code == 404, "there is none, for the job's process was played"
    data, checkpoint = upload(owner="alice"), upload("checkpoint", owner="bob")
    assert admin.get(f"/datasets/{data}").status_code == 200
    assert admin.get(f"/checkpoints/{checkpoint}").status_code == 200
    assert (data, "alice") in [(one["id"], one["tenant"]) for one in admin.get("/datasets?limit=100").json()["data"]]
    for tenant, found in (("alice", 1), ("bob", 0)):
        listed = admin.get("/datasets", params={"limit": 100, "tenant": tenant}).json()["data"]
        assert [one["id"] for one in listed].count(data) == found


def test_cancels_everybodys_jobs(admin: TestClient, make: Make, service: Service) -> None:
    queued, running = make(owner="alice"), make(Status.RUNNING, owner="bob")
    assert admin.post(f"/jobs/{queued.id}/cancel").json()["status"] == "cancelled"
    assert admin.post(f"/jobs/{running.id}/cancel").json()["cancel_requested"]
    assert service.store.get(running.id).cancel_requested


def test_changes_nothing_else(
    admin: TestClient, client: Callable[..., TestClient], make: Make, upload: Callable[..., str], refusal: Refusal
) -> None:
    """Alone it submits nothing; beside `submit` it submits as its own tenant, and others' things stay theirs."""
    job, data = make(Status.CANCELLED, owner="alice").id, upload(owner="alice")
    changes = [
        ("POST", f"/jobs/{job}/resume", 403), ("DELETE", f"/jobs/{job}", 403), ("DELETE", f"/datasets/{data}", 403),
        ("POST", f"/jobs/{job}/attention/images", 403), ("POST", f"/jobs/{job}/predict", 403),
        ("POST", f"/jobs/{job}/shares", 403), ("PATCH", f"/jobs/{job}", 403), ("POST", "/transform", 202),
    ]  # fmt: skip
    both = client(Scope.ADMIN, Scope.SUBMIT)
    for method, path, status in changes:
        body = {"json": {"model": "resnet18", "pretrained": False} if path == "/transform" else {}}
        refusal(admin.request(method, path, **body), 403, "Authorization")
        answer = both.request(method, path, **body)
        assert answer.status_code == status, path
        if status == 403:
            assert "found one of alice: this key may look at it" in refusal(answer, 403, "id")["detail"]
            refusal(client(Scope.READ, Scope.SUBMIT).request(method, path, **body), 404)
    assert answer.json()["tenant"] == "operations"
    refusal(both.delete(f"/jobs/job_{'9' * 24}"), 404)


def test_nobody_else_sees_more_than_before(
    alice: TestClient, client: Callable[..., TestClient], make: Make, refusal: Refusal
) -> None:
    job = make(owner="bob").id
    for other in (alice, client(Scope.READ), client(Scope.READ, Scope.SUBMIT)):
        refusal(other.get(f"/jobs/{job}"), 404)
        told = refusal(other.get("/jobs", params={"tenant": "bob"}), 403, "Authorization")
        assert "expected a key with the scope admin, found one with read" in told["detail"]
        for kind in ("datasets", "checkpoints", "weights"):
            refusal(other.get(f"/{kind}", params={"tenant": "bob"}), 403, "Authorization")
        refusal(other.get("/audit"), 403, "Authorization")
    mine = alice.get("/jobs", params={"tenant": "alice"})
    assert mine.status_code == 200 and {one["tenant"] for one in mine.json()["data"]} <= {"alice"}


def test_the_audit_log_says_who_did_what_with_which_key(
    admin: TestClient, alice: TestClient, client: Callable[..., TestClient], service: Service
) -> None:
    body = {"model": "resnet18", "pretrained": False}
    submitted = alice.post("/transform", json=body, headers={"X-Request-ID": "submitted-1"}).json()["id"]
    admin.post(f"/jobs/{submitted}/cancel", headers={"X-Request-ID": "cancelled-1"})
    alice.delete(f"/jobs/{submitted}")
    (key,) = [one.id for one in service.store.api_keys("operations")][-1:]
    entries = [one for one in admin.get("/audit").json()["data"] if one["resource"] == submitted]
    told = [(one["action"], one["tenant"], one["by"], one["key"], one["request"]) for one in reversed(entries)]
    assert told[:2] == [
        ("job.submit", "alice", "alice", "TCNN_API_KEYS:1", "submitted-1"),
        ("job.cancel", "alice", "operations", key, "cancelled-1"),
    ]
    assert told[2][:4] == ("job.delete", "alice", "alice", "TCNN_API_KEYS:1")
    page = admin.get("/audit", params={"limit": 1, "key": key}).json()
    assert [one["resource"] for one in page["data"]] == [submitted]
    older = admin.get("/audit", params={"after": entries[-1]["number"], "tenant": "alice"}).json()["data"]
    assert submitted not in [one["resource"] for one in older]


def test_a_revoked_admin_sees_nothing(
    client: Callable[..., TestClient], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = client(Scope.ADMIN)
    assert admin.get("/audit").status_code == 200
    service.store.revoke_key(service.store.api_keys("operations")[-1].id)
    now = time.monotonic()
    monkeypatch.setattr(credentials.time, "monotonic", lambda: now + credentials.LIFE + 1)
    assert admin.get("/audit").status_code == 401
