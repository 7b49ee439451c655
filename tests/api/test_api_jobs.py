"""The life of a job as its owner sees it: lists, cancel, resume, delete, in every state."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.routes.jobs import report
from tcnn_jobs.artifacts.bucket import BucketError
from tcnn_jobs.housekeeping import janitor
from tcnn_jobs.model.jobs import Beat, Claim, Progress, Status
from tcnn_jobs.model.operation import WorkerInfo

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]


def test_a_succeeded_job_shows_its_result(alice: TestClient, make: Make) -> None:
    job = make(Status.SUCCEEDED)
    shown = alice.get(f"/jobs/{job.id}").json()
    file = job.result.files[0]
    told = {"size": file.size, "sha256": file.sha256}
    assert shown["status"] == "succeeded"
    assert shown["result"]["checkpoint"] == {"url": f"/jobs/{job.id}/checkpoint", **told}
    assert shown["result"]["verification"] == {"passed": True}
    assert shown["result"]["metrics"] == {"seconds": 1.5}
    listed = alice.get(f"/jobs/{job.id}/checkpoints").json()
    assert listed["data"] == shown["result"]["files"]
    assert [one["name"] for one in listed["data"]] == ["converted.safetensors", "evaluation.json"]
    for one in listed["data"]:
        assert len(alice.get(one["url"]).content) == one["size"]
    times = [shown[name] for name in ("created_at", "started_at", "finished_at")]
    assert times == sorted(times)
    assert all(time.endswith("Z") and len(time) == 24 for time in times)


def test_progress_is_the_workers_own(alice: TestClient, service: Service, make: Make) -> None:
    job = make(Status.RUNNING)
    progress = Progress(phase="training", epoch=2, epochs=5, step=7, steps=9, percent=31.5, eta_seconds=12.0, loss=0.5)
    beat = Beat(claim=Claim(job=job.id, worker=job.worker, number=job.claim), progress=progress)
    service.store.heartbeat(WorkerInfo(name=job.worker, host="here", slots=1, version="0"), [beat])
    assert alice.get(f"/jobs/{job.id}").json()["progress"] == progress.model_dump()


def test_a_failed_job_says_why(alice: TestClient, make: Make) -> None:
    shown = alice.get(f"/jobs/{make(Status.FAILED).id}").json()
    assert shown["error"] == {"code": "diverged", "message": "the loss is no longer finite"}


def test_pages_hold_every_job_once(bob: TestClient, make: Make) -> None:
    made = [make(owner="bob").id for _ in range(5)] + [make(Status.FAILED, owner="bob").id]
    found, after = [], None
    while True:
        page = bob.get("/jobs", params={"limit": 2} | ({"after": after} if after else {})).json()
        assert page["object"] == "list" and page["has_more"] is (page["next"] is not None)
        found += [job["id"] for job in page["data"]]
        if not page["has_more"]:
            break
        after = page["next"] if len(found) == 2 else found[-1]
    assert found[:6] == made[::-1]
    assert [job["id"] for job in bob.get("/jobs", params={"status": "failed"}).json()["data"]] == made[-1:]
    none = bob.get("/jobs", params={"kind": "evaluate"}).json()
    assert none == {"object": "list", "has_more": False, "next": None, "data": []}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("status=lost", "status"),
        ("kind=x", "kind"),
        ("after=job_x", "id"),
        ("after=next_x", "after"),
    ],
)
def test_lists_refuse(query: str, field: str, alice: TestClient, refusal: Refusal) -> None:
    refusal(alice.get(f"/jobs?{query}"), 404 if field == "id" else 422, field)


def test_an_id_that_opens_nothing_is_told_in_the_same_words(
    alice: TestClient, bob: TestClient, make: Make, refusal: Refusal
) -> None:
    """Whether it is another tenant's, nobody's, or could not be an id at all."""
    for id in (make(Status.QUEUED).id, "job_" + "0" * 24, "nonsense"):
        assert refusal(bob.get(f"/jobs/{id}"), 404, "id")["detail"] == f"{id}: no such job; GET /jobs lists yours"
    for route, noun in (("datasets", "dataset"), ("checkpoints", "checkpoint"), ("weights", "weights")):
        for id in ("ds_" + "0" * 24, "nonsense"):
            told = refusal(alice.get(f"/{route}/{id}"), 404, "id")["detail"]
            assert told == f"{id}: no such {noun}; GET /{route} lists yours"
    assert len(refusal(alice.get(f"/jobs/{'x' * 4000}"), 404, "id")["detail"]) < 200


@pytest.mark.parametrize(
    ("status", "cancel", "resume", "delete"),
    [
        (Status.QUEUED, 200, 409, 409),
        (Status.RUNNING, 200, 409, 409),
        (Status.SUCCEEDED, 409, 409, 204),
        (Status.FAILED, 409, 200, 204),
        (Status.CANCELLED, 200, 200, 204),
    ],
)
def test_what_each_status_allows(
    status: Status, cancel: int, resume: int, delete: int, alice: TestClient, make: Make, refusal: Refusal
) -> None:
    for method, action, expected in (("POST", "/cancel", cancel), ("POST", "/resume", resume), ("DELETE", "", delete)):
        job = make(status).id
        answer = alice.request(method, f"/jobs/{job}{action}")
        assert answer.status_code == expected, action
        if expected == 409:
            assert status in refusal(answer, 409, "status")["detail"]


def test_cancelling_a_running_job_asks_its_worker(alice: TestClient, make: Make) -> None:
    job = make(Status.RUNNING).id
    for _ in range(2):
        shown = alice.post(f"/jobs/{job}/cancel").json()
        assert (shown["status"], shown["cancel_requested"]) == ("running", True)


def test_deleting_removes_the_files(alice: TestClient, service: Service, make: Make) -> None:
    job = make(Status.SUCCEEDED).id
    assert service.home.job(job).is_dir()
    answer = alice.delete(f"/jobs/{job}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not service.home.job(job).exists()
    for path in ("", "/events", "/checkpoint", "/checkpoints", "/logs", "/metrics.csv", "/files/evaluation.json"):
        assert alice.get(f"/jobs/{job}{path}").status_code == 404


def test_resuming_twice_with_one_key_resumes_once(alice: TestClient, service: Service, make: Make) -> None:
    job, headers = make(Status.CANCELLED).id, {"Idempotency-Key": "again"}
    assert alice.post(f"/jobs/{job}/resume", headers=headers).json()["status"] == "queued"
    service.store.cancel(job)
    assert alice.post(f"/jobs/{job}/resume", headers=headers).json()["status"] == "cancelled", "that was the first one"
    assert alice.post(f"/jobs/{job}/resume").json()["status"] == "queued"


def test_models(alice: TestClient, refusal: Refusal) -> None:
    page = alice.get("/models", params={"query": "resnet50d*"}).json()
    assert page["has_more"] is False
    row = page["data"][0]
    assert (row["name"], row["registered_as"], row["layers"]) == ("resnet50d", "t_resnet50d", 3)
    assert row["converted_parameters"] > row["parameters"]
    some = alice.get("/models", params={"query": "vit*", "limit": 3, "convertible": False}).json()
    assert (len(some["data"]), some["has_more"]) == (3, True)
    assert all(row["reason"] and row["registered_as"] is None for row in some["data"])
    refusal(alice.get("/models", params={"limit": 0}), 422, "limit")
    refusal(alice.get("/models", params={"query": "*" * 101}), 422, "query")


def test_a_job_is_named(alice: TestClient, bob: TestClient, make: Make, refusal: Refusal) -> None:
    job = make()
    url, key = f"/jobs/{job.id}", {"Idempotency-Key": f"name-{job.id}"}
    named = alice.patch(url, json={"name": "á", "tags": ["one", "two", "one"], "note": "n"}, headers=key).json()
    assert (named["name"], named["tags"], named["note"]) == ("á", ["one", "two"], "n")
    assert alice.patch(url, json={}).json() == alice.patch(url, json={"name": "á"}).json() == named
    assert alice.patch(url, json={"tags": None, "note": None}).json() == named | {"tags": [], "note": None}
    repeated = {"name": "á", "tags": ["one", "two", "one"], "note": "n"}
    assert alice.patch(url, json=repeated, headers=key).json()["tags"] == []  # it was done before, and then undone
    refusal(alice.patch(url, json={"name": "b"}, headers=key), 422, "Idempotency-Key")
    refusal(bob.patch(url, json={"name": "mine"}), 404, "id")
    for body, field in (
        ({"name": "x" * 201}, "name"), ({"name": "a\nb"}, "name"), ({"tags": ["a,b"]}, "tags.0"),
        ({"tags": "a"}, "tags"),
        ({"note": "\0"}, "note"), ({"title": "a"}, "title"), ({"tags": [str(n) for n in range(21)]}, "tags"),
    ):  # fmt: skip
        refusal(alice.patch(url, json=body), 422, field)
    refusal(alice.patch(url, content=b"{", headers={"Content-Type": "application/json"}), 400, "body")
    assert alice.get(url).json()["name"] == "á"


def test_a_job_is_named_when_it_is_submitted(alice: TestClient, service: Service) -> None:
    body = {"model": "resnet18", "pretrained": False, "name": "first", "tags": ["a"], "note": ""}
    job = alice.post("/transform", json=body).json()
    assert (job["name"], job["tags"], job["note"]) == ("first", ["a"], None)
    assert job["request"] == {"model": "resnet18", "pretrained": False}  # which a worker of an older release reads
    assert service.store.get(job["id"]).request_version == 1


def test_lists_are_searched_and_sorted(bob: TestClient, make: Make, service: Service, refusal: Refusal) -> None:
    none = make(Status.SUCCEEDED, owner="bob", request={"model": "test_vgg"}).id
    half = make(Status.SUCCEEDED, owner="bob", request={"model": "test_vgg", "config": {"lr": 2}}, content=None).id
    bob.patch(f"/jobs/{half}", json={"tags": ["kept", "best"], "name": "Größte"})

    def found(**query: Any) -> list[str]:
        answer = bob.get("/jobs", params={"q": "test_vgg", **query})
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    assert found() == found(sort="-settings.lr") == found(sort="metrics.top1") == [half, none]
    assert found(sort="created") == found(sort="metrics.seconds") == found(sort="finished") == [none, half]
    assert found(tag=["kept", "best"]) == found(q="grösste") == found(sort="created", after=none) == [half]
    assert found(tag=["kept", "worst"]) == found(q="grösste x") == []
    lines = bob.get("/jobs", params={"q": "test_vgg", "results": False}).json()
    assert [job["metrics"] for job in lines["data"]] == [{"top1": 0.5}, {"seconds": 1.5}]
    assert "result" not in lines["data"][0] and lines["object"] == "list"
    refusal(bob.get("/jobs", params={"sort": "-colour"}), 422, "sort")
    refusal(bob.get("/jobs", params={"q": "x" * 201}), 422, "q")
    refusal(bob.get("/jobs", params={"q": "\0"}), 422, "q")


def test_what_is_deleted_is_gone_however_many_are_deleted_at_once(
    alice: TestClient, service: Service, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files are removed a few at a time, also where that takes long, and nobody is refused half way."""
    made, begun, go_on = [make(Status.SUCCEEDED).id for _ in range(20)], threading.Semaphore(0), threading.Event()
    remove = service.artifacts.remove_job

    def slow(job: str) -> None:
        begun.release()
        assert go_on.wait(60)
        remove(job)

    monkeypatch.setattr(service.artifacts, "remove_job", slow)
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(alice.delete, f"/jobs/{job}") for job in made]
        for _ in range(4):
            assert begun.acquire(timeout=60)
        while service.pools.removals.held("alice") < 20:
            assert all(answer.result().status_code == 204 for answer in answers if answer.done())
            time.sleep(0.01)
        go_on.set()
        assert [answer.result(60).status_code for answer in answers] == [204] * 20
    assert service.store.known(made) == set()
    assert not any(service.home.job(job).exists() for job in made)


@pytest.mark.parametrize("problem", ["slow", "away", "refused"])
def test_what_is_deleted_is_gone_though_its_files_are_not(
    alice: TestClient, service: Service, make: Make, upload: Callable[..., str], problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The store of results gives no answer, or an error: the sweep finds the files without a row after an hour."""
    job, data, go_on = make(Status.SUCCEEDED).id, upload(), threading.Event()
    places = [service.home.job(job), service.home.dataset(data)]
    places[1].mkdir()

    def fail(what: object) -> None:
        assert problem != "slow" or go_on.wait(60)
        if problem == "refused":
            raise PermissionError(errno.EACCES, "Permission denied")
        raise BucketError("the store of results: cannot remove it", again=True)

    for name in ("remove_job", "remove_upload"):
        monkeypatch.setattr(service.artifacts, name, fail)
    if problem == "slow":
        monkeypatch.setattr(service.pools.removals, "_seconds", 0.05)
    for path in (f"/jobs/{job}", f"/datasets/{data}"):
        assert (alice.delete(path).status_code, alice.get(path).status_code) == (204, 404)
    go_on.set()
    assert all(path.exists() for path in places)
    for path in places:
        os.utime(path, (0, 0))
    janitor.sweep_home(service.home, service.store, service.artifacts)
    assert not any(path.exists() for path in places)


def test_a_report_is_made_once_with_the_names_and_pictures_of_its_owner(
    alice: TestClient, service: Service, make: Any, upload: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that makes it is not started here; and everything takes the share of the tenant who asks."""
    data, asked, shares = upload(), list[tuple[str, ...]](), set[str]()
    service.home.dataset(data).mkdir(parents=True)
    run = service.pools.storage.run

    async def write(module: str, function: str, *given: str, memory: int, seconds: float) -> None:
        asked.append(given)
        Path(given[2]).parent.mkdir(parents=True, exist_ok=True)
        Path(given[2]).write_text("<!doctype html>")

    async def noted(tenant: str, call: Callable[..., Any], *given: Any) -> Any:
        shares.add(tenant)
        return await run(tenant, call, *given)

    monkeypatch.setattr(report, "ask", write)
    monkeypatch.setattr(service.pools.storage, "run", noted)
    job = make(Status.SUCCEEDED, request={"model": "resnet18", "finetune": {"dataset": data}}).id
    alice.patch(f"/jobs/{job}", json={"name": "the best"})
    for _ in range(2):
        answer = alice.get(f"/jobs/{job}/report")
        assert (answer.status_code, answer.text) == (200, "<!doctype html>")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["content-disposition"] == f'inline; filename="{job}.html"'
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    ((_, name, _, _, names, images),) = asked
    assert (name, images) == (job, str(service.home.dataset(data)))
    assert json.loads(names) == {job: "the best", data: "pets.zip"}
    assert shares == {"alice"}
