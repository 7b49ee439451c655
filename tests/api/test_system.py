"""`GET /system`: all of it for an operator, a tenant's own part for a tenant; `GET /workers`: for admins, and for
anybody on a machine without keys.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text
from starlette.testclient import TestClient

from tcnn_api.app import create_app
from tcnn_api.deps import Service
from tcnn_api.routes.operation.system import WORKER, WorkerView
from tcnn_api.settings import load
from tcnn_jobs.model.accounts import NewKey, Scope
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store.fleet import HOUSE

Make = Callable[..., Any]


def test_an_admin_sees_all_of_it_and_a_tenant_its_own_part(
    alice: TestClient, bob: TestClient, service: Service, make: Make
) -> None:
    store = service.store
    done, failed, _ = make(Status.SUCCEEDED, owner="bob"), make(Status.FAILED), make(Status.RUNNING)
    first, _ = make(owner="bob"), make(owner="bob")
    waiting = make(owner="bob", request={"job": first.id, "dataset": "ds_none"})
    assert waiting.waiting_for
    with store.writing() as connection:
        connection.execute(text("UPDATE jobs SET not_before = not_before - 50 WHERE id = :id"), {"id": first.id})
        connection.execute(text("UPDATE jobs SET finished_at = finished_at - 7300 WHERE id = :id"), {"id": done.id})
    store.heartbeat(WorkerInfo(name="w", host="a", slots=2, version="0.1"), [])
    store.set_quotas("bob", queued=9)
    _, secret = store.create_key(NewKey(tenant="operations", scopes=frozenset({Scope.ADMIN})))
    admin = TestClient(alice.app, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"})

    own = bob.get("/system").json()
    assert (own["whole"], own["tenant"], own["workers"], own["disk"]) == (False, "bob", None, None)
    (load_,) = own["tenants"]
    assert load_.items() >= {"tenant": "bob", "queued": 3, "blocked": 1, "running": 0, "stored": 1002}.items()
    assert 50 <= load_["oldest_seconds"] < 600
    assert own["quotas"]["queued"] == 9
    assert [one["succeeded"] for one in own["ended"][:4]] == [0, 0, 1, 0]
    assert len(own["ended"]) == 24

    found = admin.get("/system").json()
    assert found["whole"]
    assert {"alice", "bob"} <= {one["tenant"] for one in found["tenants"]}
    assert next(one for one in found["tenants"] if one["tenant"] == "bob") | {"oldest_seconds": 0} == load_ | {
        "oldest_seconds": 0
    }
    assert found["ended"][0]["failed"] >= 1, failed
    assert [one["name"] for one in found["workers"] if one["name"] == "w"] == ["w"]
    assert 0 < found["disk"]["free"] <= found["disk"]["total"]
    assert found["versions"]["database"] == "sqlite"


def test_without_keys_this_machine_sees_all_of_it(tmp_path: Path) -> None:
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as client:
        found = client.get("/system").json()
    assert (found["whole"], found["tenants"], found["workers"]) == (True, [], [])


GPU = {"index": 0, "name": "H200", "memory_used": 10, "memory_total": 100}


def test_an_admin_sees_who_works(
    alice: TestClient, service: Service, make: Callable[..., Any], refusal: Callable[..., dict[str, Any]]
) -> None:
    running = make(Status.RUNNING)
    tell = service.store.heartbeat
    tell(WorkerInfo(name=running.worker, host="a", slots=2, version="0.1", gpus=(GPU,), lease=90), [])
    tell(WorkerInfo(name="frozen", host="b", slots=1, version="0.1"), [])
    with service.store.writing() as connection:
        connection.execute(text("UPDATE workers SET heartbeat_at = heartbeat_at - 100 WHERE name = 'frozen'"))
    _, secret = service.store.create_key(NewKey(tenant="operations", scopes=frozenset({Scope.ADMIN})))
    admin = TestClient(alice.app, base_url="http://localhost", headers={"Authorization": f"Bearer {secret}"})
    assert service.store.hold(HOUSE, running.worker, 60).mine
    page = admin.get("/workers").json()
    assert (page["object"], page["has_more"]) == ("list", False)
    found = {one["name"]: one for one in page["data"]}
    first, second = found[running.worker], found["frozen"]
    assert first.items() >= {
        "host": "a", "slots": 2, "busy": 1, "present": True, "keeps_house": True, "version": "0.1", "lease": 90,
        "gpus": [GPU],
    }.items()  # fmt: skip
    assert first["started_at"] <= first["heartbeat_at"]
    assert (second["busy"], second["present"], second["keeps_house"]) == (0, False, False)
    refusal(alice.get("/workers"), 403, "Authorization")


def test_without_keys_this_machine_sees_them(tmp_path: Path) -> None:
    with TestClient(create_app(load(home=tmp_path)), base_url="http://localhost") as client:
        assert client.get("/workers").json() == {"object": "list", "data": [], "has_more": False}


def test_the_example_is_one() -> None:
    assert WorkerView(**WORKER).model_dump(mode="json") == WORKER
