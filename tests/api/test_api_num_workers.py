"""Jobs that several processes share: what is refused before the 202, and what a queued one says."""

from collections.abc import Callable
from typing import Any

from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.operation import WorkerInfo

Refusal = Callable[..., dict[str, Any]]
BIG = {"classes": ["cat", "dog"], "images": 5000, "splits": {"train": 4000, "val": 1000}}


def test_as_many_slots_as_processes(
    alice: TestClient, service: Service, upload: Callable[..., str], refusal: Refusal
) -> None:
    body = {"model": "test_resnet", "pretrained": False, "dataset": upload(**BIG), "num_workers": 4}
    accepted = alice.post("/finetune", json=body)
    assert accepted.status_code == 202, "no worker is known, so none is known to be too small"
    job = accepted.json()
    assert service.store.get(job["id"]).slots == 4
    assert job["waiting_for"] == "needs 4 slots of one worker at once; no worker is there"
    service.store.heartbeat(WorkerInfo(name="w", host="here", slots=3, version="0"), [])
    told = refusal(alice.post("/finetune", json=body), 422, "num_workers")
    assert "expected at most 3, the slots of this host's largest worker, found 4" in str(told)
    inside = {"model": "test_resnet", "pretrained": False, "finetune": {"dataset": body["dataset"], "num_workers": 2}}
    assert service.store.get(alice.post("/transform", json=inside).json()["id"]).slots == 2
    service.store.forget_worker("w")


def test_a_batch_that_cannot_be_shared(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    body = {"model": "test_resnet", "pretrained": False, "dataset": upload(**BIG), "config": {"batch_size": 100}}
    told = refusal(alice.post("/finetune", json=body | {"num_workers": 3}), 422, "num_workers")
    assert "batch_size 100 cannot be shared equally among 3 processes, an even number" in str(told)
    refusal(alice.post("/finetune", json=body | {"num_workers": 0}), 422, "num_workers")
    inside = {"model": "test_resnet", "pretrained": False, "finetune": {"dataset": body["dataset"], "num_workers": 3}}
    refusal(alice.post("/transform", json=inside), 422, "finetune.num_workers")
