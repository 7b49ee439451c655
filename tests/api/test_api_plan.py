"""`POST /plan`: what a job would take, computed in a process of its own, and by what ran before."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from serving import ask_here
from starlette.testclient import TestClient

from tcnn.planning import plan as planned
from tcnn_api.deps import Service
from tcnn_api.routes import plan as route
from tcnn_jobs.model.jobs import Claim, Job, Kind, NewJob, Result, Status
from tcnn_jobs.model.operation import WorkerInfo

Refusal = Callable[..., dict[str, Any]]
Upload = Callable[..., str]
TINY = {
    "batch_size": 4,
    "size": 32,
    "val_split": 0.2,
    "workers": 0,
    "epochs": 3,
    "warmup_epochs": 0,
    "anneal": "warmup",
    "anneal_epochs": 1,
}
MADE = {
    "model": "m", "device": "cpu", "size": [32, 32], "classes": 2, "train_images": 7, "val_images": 2, "epochs": 3,
    "updates": 6, "batch_size": 4, "source": None,
    "result": {"parameters": 1, "trained_parameters": 1, "layers": 2, "flops": None},
    "memory": {"micro_batch": 4, "configured": 4, "computed": 1, "waiting": 0, "expected": 1, "measured": None,
               "free": None},
    "phases": [], "epoch_seconds": [], "disk": {"checkpoint": 1, "resume_point": 1, "total": 1, "free": 1},
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], str, int]]:
    """What reaches the process that computes, its checkpoint and its memory; it says nothing of interest."""
    found: list[tuple[dict[str, Any], str, int]] = []

    async def ask(module: str, function: str, text: str, file: str, *, memory: int, seconds: int) -> dict[str, Any]:
        found.append((json.loads(text), file, memory))
        return MADE

    monkeypatch.setattr(route, "ask", ask)
    return found


@pytest.mark.parametrize("where", ["here", pytest.param("in a process", marks=pytest.mark.slow)])
def test_it_is_what_the_command_says(
    alice: TestClient, upload: Upload, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Really computed: with counts of images alone, for none of them is there.

    Here without the memory of a step, which takes seconds: `tests/planning` has that.
    """
    if where == "here":
        monkeypatch.setattr(route, "ask", ask_here)
        monkeypatch.setattr(planned, "step_bytes", lambda model, made, shape, *others: shape[0] << 20)
    data = upload(images=50)
    body = {"model": "test_resnet", "dataset": data, "config": TINY, "pretrained": False, "baseline": True}
    answer = alice.post("/plan", json={"finetune": body})
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert (made["train_images"], made["val_images"], made["updates"], made["classes"]) == (40, 10, 30, 2)
    assert made["source"]["layers"] == 0
    assert made["result"]["layers"] == 2
    assert made["result"]["parameters"] > made["source"]["parameters"] == made["baseline"]["result"]["parameters"]
    assert made["memory"]["free"] > made["memory"]["computed"] > 0
    assert made["expected"] is None
    assert alice.get("/jobs?limit=1").json()["data"] == []


@pytest.mark.slow  # a second process that loads torch; others refuse in tests/api/uploads
def test_what_the_process_refuses(alice: TestClient, upload: Upload, refusal: Refusal) -> None:
    body = {"model": "test_resnet", "config": TINY, "pretrained": False}
    body |= {"dataset": upload(images=4, classes=list("abcd")), "config": TINY | {"batch_size": 2}}
    refused = refusal(alice.post("/plan", json={"finetune": body}), 422, "finetune")
    assert "so none can be held out; give a validation set with val" in refused["detail"]


def test_a_conversion_and_its_training(alice: TestClient, upload: Upload, asked: list[Any]) -> None:
    data = upload(images=50, splits={"train": 400, "val": 6})
    body = {"model": "resnet18", "stride": "remove", "finetune": {"dataset": data, "preset": "quick"}}
    answer = alice.post("/plan", json={"transform": body})
    assert answer.status_code == 200, answer.text
    ((told, file, memory),) = asked
    assert (told["model"], file, told["config"]["conversion"]["stride"]) == ("resnet18", "", "remove")
    assert told["config"]["conversion"]["content_heads"] == 4, "the preset's own"
    assert told["data"] == {"classes": ["a", "b"], "images": 400}
    assert told["val"] == {"classes": ["a", "b"], "images": 6}
    assert memory > 3 << 30


def test_a_jobs_model_is_its_file(
    alice: TestClient, upload: Upload, asked: list[Any], make: Callable[..., Job]
) -> None:
    job = make(Status.SUCCEEDED)
    body = {"job": job.id, "dataset": upload(), "config": TINY}
    assert alice.post("/plan", json={"finetune": body}).status_code == 200
    ((told, file, _),) = asked
    assert told["model"] == job.id
    assert file.endswith(f"{job.id}/1/converted.safetensors")


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "", "exactly one of transform, finetune"),
        ({"transform": {"model": "resnet18"}}, "transform.finetune", "a conversion alone takes what GET /models tells"),
        ({"finetune": {"model": "reznet", "dataset": "DATA"}}, "finetune.model", "no timm model of this name"),
        ({"finetune": {"model": "resnet18", "dataset": "DATA", "config": {"lr": -1}}}, "finetune.config.lr", "-1"),
        ({"finetune": {"job": "QUEUED", "dataset": "DATA", "config": TINY}}, "finetune.job", "it is queued"),
        ({"finetune": {"model": "resnet18", "dataset": "/etc"}}, "finetune.dataset", "/etc"),
        ({"finetune": {"model": "resnet18", "dataset": "DATA", "confg": 1}}, "finetune.confg", ""),
    ],
)  # fmt: skip
def test_what_could_not_be_submitted_cannot_be_planned(
    alice: TestClient, upload: Upload, asked: list[Any], refusal: Refusal, make: Callable[..., Job], body: Any,
    field: str, words: str,
) -> None:  # fmt: skip
    for part in body.values():
        part |= {name: upload() for name in ("dataset",) if part.get(name) == "DATA"}
        part |= {name: make().id for name in ("job",) if part.get(name) == "QUEUED"}
    assert words in refusal(alice.post("/plan", json=body), 422, field or None)["detail"]
    assert asked == []


def test_it_is_planned_for_the_workers_gpu(
    alice: TestClient, upload: Upload, asked: list[Any], service: Service
) -> None:
    body = {"finetune": {"model": "resnet18", "dataset": upload(images=50), "config": TINY}}
    for device, expected in (("auto", ("cuda", 80 << 30)), ("cpu", ("cpu", None)), ("cuda:1", ("cuda", 80 << 30))):
        service.store.heartbeat(_worker("elsewhere", 80 << 30), ())
        body["finetune"]["config"] = TINY | {"device": device}
        assert alice.post("/plan", json=body).status_code == 200
        told = asked[-1][0]
        assert (told["device"], told["free"]) == expected
        assert told["config"]["device"] == expected[0]
    service.store.forget_worker("elsewhere")


def _worker(name: str, memory: int) -> WorkerInfo:
    gpu = {"index": 0, "name": "H100", "memory_used": 0, "memory_total": memory}
    return WorkerInfo(name=name, host="other", slots=1, version="0", gpus=(gpu, {"index": 1, "name": "unknown"}))


def test_time_is_that_of_a_job_that_did_the_same(
    alice: TestClient, upload: Upload, asked: list[Any], service: Service
) -> None:
    first = {"model": "resnet26d", "dataset": upload(), "config": TINY, "preset": "quick"}
    job = service.store.enqueue(NewJob(owner="alice", kind=Kind.FINETUNE, request=first, priority=100))
    taken = service.store.claim("w")
    assert taken is not None
    done = Result(metrics={"seconds": 30.0, "updates": 60})
    service.store.finish(Claim(job=job.id, worker="w", number=taken.claim), done)
    again = {"finetune": first | {"dataset": upload(images=50), "config": TINY | {"epochs": 9, "lr": 0.1}}}
    found = alice.post("/plan", json=again).json()
    assert found["expected"] == {"job": job.id, "seconds_per_update": 0.5, "seconds": 3.0}
    for other in ({"model": "resnet34d"}, {"config": TINY | {"size": 64}}, {"baseline": True}, {"preset": "cifar"}):
        assert alice.post("/plan", json={"finetune": again["finetune"] | other}).json()["expected"] is None, other


def test_a_plan_of_another_tenants_data_is_refused(
    bob: TestClient, upload: Upload, refusal: Refusal, asked: list[Any]
) -> None:
    refusal(bob.post("/plan", json={"finetune": {"model": "resnet18", "dataset": upload()}}), 422, "finetune.dataset")
