"""A conversion, a fine-tuning and an evaluation submitted in one go: each waits for the one that it needs."""

from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Status

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]


def _chain(alice: TestClient, data: str) -> list[str]:
    first = alice.post("/transform", json={"model": "resnet18", "pretrained": False}).json()["id"]
    body = {"dataset": data, "config": {"val_split": 0.2, "batch_size": 2}}
    second = alice.post("/finetune", json={"job": first, **body})
    assert second.status_code == 202, second.text
    third = alice.post("/evaluate", json={"job": second.json()["id"], "dataset": data, "against": [{"job": first}]})
    assert third.status_code == 202, third.text
    last = alice.post("/transform", json={"model": "resnet18", "pretrained": False, "depends_on": [third.json()["id"]]})
    assert last.status_code == 202, last.text
    return [first, *(answer.json()["id"] for answer in (second, third, last))]


def test_each_waits_for_the_one_before_and_ends_with_it(
    alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:
    first, second, third, last = _chain(alice, upload())
    told = {job: alice.get(f"/jobs/{job}").json()["waiting_for"] for job in (first, second, third, last)}
    both = " and ".join(sorted((first, second)))
    assert told == {
        first: "no worker is there",
        second: f"waits for {first}",
        third: f"waits for {both}",
        last: f"waits for {third}",
    }
    refusal(alice.delete(f"/jobs/{first}"), 409)
    assert alice.post(f"/jobs/{second}/cancel").json()["status"] == "cancelled"
    assert alice.get(f"/jobs/{first}").json()["status"] == "queued"
    for job, source in ((third, second), (last, third)):
        found = alice.get(f"/jobs/{job}").json()
        assert (found["status"], found["error"]["code"]) == ("failed", "source_failed")
        assert source in found["error"]["message"]
    assert "resume that one first" in refusal(alice.post(f"/jobs/{last}/resume"), 409)["detail"]
    for job in (second, third, last):
        assert alice.post(f"/jobs/{job}/resume").json()["status"] == "queued"
    alice.post(f"/jobs/{first}/cancel")
    assert {alice.get(f"/jobs/{job}").json()["status"] for job in (second, third, last)} == {"failed"}


def test_what_cannot_be_waited_for(
    alice: TestClient, upload: Callable[..., str], make: Make, service: Service, refusal: Refusal
) -> None:
    measuring = alice.post("/evaluate", json={"model": "resnet18.a1_in1k", "dataset": upload()}).json()["id"]
    data, theirs, gone = upload(), make(owner="bob").id, make(Status.CANCELLED).id
    for body, field, words in (
        ({"job": measuring}, "job", "makes no checkpoint"),
        ({"model": "resnet18", "depends_on": [theirs]}, "depends_on.0", "no job"),
        ({"model": "resnet18", "depends_on": [measuring, gone]}, "depends_on.1", "which is cancelled"),
        ({"model": "resnet18", "depends_on": [measuring] * 17}, "depends_on", "at most 16"),
    ):
        assert words in refusal(alice.post("/finetune", json={**body, "dataset": data}), 422, field)["detail"]
    alice.post(f"/jobs/{measuring}/cancel")


def test_a_source_that_ends_while_it_is_named_is_told(
    alice: TestClient, upload: Callable[..., str], service: Service, monkeypatch: Any, refusal: Refusal
) -> None:
    """Between the check and the row."""
    source = alice.post("/transform", json={"model": "resnet18", "pretrained": False}).json()["id"]
    enqueue = service.store.enqueue

    def late(*given: Any) -> Any:
        service.store.cancel(source)
        return enqueue(*given)

    monkeypatch.setattr(service.store, "enqueue", late)
    body = {"job": source, "dataset": upload(), "config": {"val_split": 0.2, "batch_size": 2}}
    assert f"{source}: was cancelled" in refusal(alice.post("/finetune", json=body), 409)["detail"]


def test_what_is_needed_and_was_deleted_is_named(
    alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:
    """A job that was to wait for it, and one that was to train on it, stay as they are."""
    first, data = alice.post("/transform", json={"model": "resnet18"}).json()["id"], upload(images=1000)
    waits = alice.post("/transform", json={"model": "resnet18", "depends_on": [first]}).json()["id"]
    body = {"model": "resnet18", "dataset": data, "config": {"batch_size": 2}}
    trains = alice.post("/finetune", json=body).json()["id"]
    for job in (first, trains):
        alice.post(f"/jobs/{job}/cancel")
    assert alice.get(f"/jobs/{waits}").json()["error"]["code"] == "source_failed"
    assert alice.delete(f"/jobs/{first}").status_code == alice.delete(f"/datasets/{data}").status_code == 204
    for job, gone in ((waits, first), (trains, data)):
        before = alice.get(f"/jobs/{job}").json()
        assert f"{gone}: is no longer there" in refusal(alice.post(f"/jobs/{job}/resume"), 409, "status")["detail"]
        assert alice.get(f"/jobs/{job}").json() == before
