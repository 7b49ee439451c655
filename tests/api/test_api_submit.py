"""What is accepted and what is not: everything is known before the 202, and a refusal names the field to change."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.errors import Refused
from tcnn_api.settings import ApiSettings
from tcnn_api.submission.body import Submission, read
from tcnn_jobs.model.jobs import Status
from tcnn_jobs.model.requests import KINDS

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]
BIG = {"classes": ["cat", "dog"], "images": 5000, "splits": {"train": 4000, "val": 1000}}


def test_an_accepted_job_is_queued_and_kept(alice: TestClient, service: Service) -> None:
    body = {"model": "resnet50d", "stride": "remove", "priority": 7, "max_attempts": 2}
    answer = alice.post("/transform", json=body)
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert job | {"id": "", "created_at": "", "queue_position": 0} == {
        "id": "", "tenant": "alice", "kind": "transform", "status": "queued", "created_at": "", "started_at": None,
        "finished_at": None, "name": None, "tags": [], "note": None, "metrics": {},
        "attempt": 0, "max_attempts": 2, "max_runtime": 7200.0, "stall_minutes": 60.0, "priority": 7,
        "queue_position": 0, "waiting_for": "no worker is there", "retry_at": None,
        "cancel_requested": False, "progress": None, "request": body, "result": None, "error": None,
    }  # fmt: skip
    kept = service.store.get(job["id"])
    assert (kept.owner, kept.priority, kept.request) == ("alice", 7, body)
    assert KINDS["transform"](**kept.request).model == "resnet50d"


def test_weights_of_ones_own(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    """They take the place of timm's, also where timm has none; what has weights of its own takes none."""
    own, others = upload("weights"), upload("weights", owner="bob")
    for route, more in (
        ("/transform", {}),
        ("/finetune", {"dataset": upload(images=5000, splits={"train": 4000, "val": 1000})}),
    ):
        body = {"model": "test_resnet", "weights": own, **more}
        assert alice.post(route, json=body).json()["request"] == body
        assert "no weights" in refusal(alice.post(route, json=body | {"weights": others}), 422, "weights")["detail"]
        assert "no effect" in refusal(alice.post(route, json=body | {"pretrained": False}), 422, "pretrained")["detail"]
        bare = body | {"model": "resnet18d_none"}
        refusal(alice.post(route, json=bare), 422, "model")
    job = alice.post("/transform", json={"model": "test_resnet"}).json()["id"]
    body = {"job": job, "dataset": more["dataset"], "weights": own}
    for route in ("/finetune", "/evaluate"):
        assert "brings weights of its own" in refusal(alice.post(route, json=body), 422, "weights")["detail"]
    random = {"job": job, "dataset": more["dataset"], "pretrained": False}
    assert "brings weights of its own" in refusal(alice.post("/finetune", json=random), 422, "pretrained")["detail"]


def test_an_evaluation_of_weights_of_ones_own(
    alice: TestClient, service: Service, upload: Callable[..., str], refusal: Refusal
) -> None:
    """Of the model or of one beside it, also where timm has none; workers of the release before leave it alone."""
    own, others = upload("weights"), upload("weights", owner="bob")
    data = upload(images=5000, splits={"train": 4000, "val": 1000})
    body = {"model": "test_resnet", "dataset": data}
    beside = [{"model": "convnext_atto_rms", "weights": own}]
    for named, field in ((body | {"weights": own}, ""), (body | {"against": beside}, "against.0.")):
        made = alice.post("/evaluate", json=named)
        assert made.json()["request"] == named, made.text
        assert service.store.get(made.json()["id"]).request_version == 2
        wrong = json.loads(json.dumps(named).replace(own, others))
        assert "no weights" in refusal(alice.post("/evaluate", json=wrong), 422, f"{field}weights")["detail"]
        assert alice.delete(f"/weights/{own}").status_code == 409  # it is needed
        alice.post(f"/jobs/{made.json()['id']}/cancel")
    wrong = body | {"against": [{"job": made.json()["id"], "weights": own}]}
    assert "brings weights" in refusal(alice.post("/evaluate", json=wrong), 422, "against.0.weights")["detail"]
    refused = refusal(alice.post("/evaluate", json=body | {"model": "convnext_atto_rms"}), 422, "model")
    assert "upload your own" in refused["detail"]
    assert service.store.get(alice.post("/evaluate", json=body).json()["id"]).request_version == 1


def test_a_job_may_ask_for_less_than_the_servers_limits(alice: TestClient, service: Service) -> None:
    body = {"model": "resnet50d", "max_runtime": 600, "stall_minutes": 5}
    job = alice.post("/transform", json=body).json()
    assert (job["max_runtime"], job["stall_minutes"]) == (600, 5)
    kept = service.store.get(job["id"])
    assert (kept.max_runtime, kept.stall_minutes) == (600, 5)


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "model", "required"),
        ({"model": "resnet51"}, "model", "did you mean"),
        ({"model": "resnet50.imaginary"}, "model", "ra_in1k"),
        ({"model": "vit_base_patch16_224"}, "model", "no k×k convolution"),
        ({"model": "test_resnet", "stirde": "keep"}, "stirde", "did you mean stride"),
        ({"model": "test_resnet", "stride": "both"}, "stride", "'keep', 'remove' or 'dilate'"),
        ({"model": "test_resnet", "priority": 101}, "priority", "less than or equal to 100"),
        ({"model": "test_resnet", "max_runtime": 0}, "max_runtime", "greater than or equal to 1"),
        ({"model": "test_resnet", "max_runtime": 7201}, "max_runtime", "at most 7200 s on this server, found 7201"),
        ({"model": "test_resnet", "stall_minutes": 0}, "stall_minutes", "greater than or equal to 1"),
        ({"model": "test_resnet", "target": "("}, "target", "not a regular expression"),
        ({"model": "test_resnet", "target": "layer4.*", "stage": 3}, "target", "stage 3 has no effect"),
        ({"model": "t_vit_tiny_patch16_224"}, "model", "no timm model"),
        ({"model": f"job_{'0' * 24}"}, "model", "the id of a job; POST /finetune takes it as `job`"),
        ({"model": f"ckpt_{'0' * 24}"}, "model", "the id of a checkpoint; POST /finetune takes it as `checkpoint`"),
        ({"model": f"wts_{'0' * 24}"}, "model", "the id of weights, which stand beside their model's name"),
        ({"model": f"ds_{'0' * 24}"}, "model", "the id of a data set"),
        ({"model": "https://evil.example/x"}, "model", "expected a timm name"),
        ({"model": "local-dir:/etc"}, "model", "expected a timm name"),
        ({"model": "../../etc/passwd"}, "model", "expected a timm name"),
        ({"model": "hf-hub:stranger/model"}, "model", "only hf-hub:timm/*"),
        ({"model": "hf-hub:timm/../../x"}, "model", "only hf-hub:timm/*"),
        ({"model": "resnet50\n"}, "model", "expected a timm name"),
        ({"model": "resnet50\x00"}, "model", "NUL"),
        ({"model": "x" * 501}, "model", "at most 500"),
        ({"model": 3}, "model", "valid string"),
        ({"model": None}, "model", "found null"),
        ({"model": "test_resnet", "tags": "a"}, "tags", "a valid list, found 'a'"),
        ({"model": "test_resnet", "finetune": True}, "finetune", "an object with fields, found true"),
        ({"model": "test_resnet", "webhook": "https://10.0.0.1/"}, "webhook", "hooks.example.org"),
        ({"model": "test_resnet", "webhook": "file:///etc/passwd"}, "webhook", "http://"),
        ({"model": "test_resnet", "webhook": "https://u:p@hooks.example.org/"}, "webhook", "no user"),
        ({"model": "test_resnet", "webhook": "http://hooks.example.org@evil.example/"}, "webhook", "no user"),
        ({"model": "test_resnet", "webhook": "http://hooks.example.org:port/"}, "webhook", "http://"),
    ],
)
def test_transform_refuses(body: dict[str, Any], field: str, words: str, alice: TestClient, refusal: Refusal) -> None:
    found = refusal(alice.post("/transform", json=body), 422, field)
    assert words in found["errors"][0]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "resnet50d.ra2_in1k"},
        {"model": "test_vit", "pretrained": False, "target": "patch_embed.proj"},
        {"model": "hf-hub:timm/resnet50.a1_in1k"},
        {"model": "test_resnet", "webhook": "https://hooks.example.org:8443/x?y=1"},
        {"model": "test_resnet", "webhook": "http://a.good.example/"},
        {"model": "test_resnet", "temperature": 1, "head_dim": 16, "input_size": [96, 128], "num_classes": 5},
    ],
)
def test_transform_accepts(body: dict[str, Any], alice: TestClient) -> None:
    answer = alice.post("/transform", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["request"] == body


def test_weights_and_strides_are_known_from_the_catalogue(alice: TestClient, refusal: Refusal) -> None:
    from tcnn.zoo import catalogue

    bare = next(entry for entry in catalogue.entries().values() if entry.convertible and not entry.weights)
    fixed = next(
        entry
        for entry in catalogue.entries().values()
        if entry.convertible and entry.weights and not entry.stride_removable
    )
    found = refusal(alice.post("/transform", json={"model": bare.name}), 422, "pretrained")
    assert "set pretrained to false" in found["detail"]
    assert alice.post("/transform", json={"model": bare.name, "pretrained": False}).status_code == 202
    found = refusal(alice.post("/transform", json={"model": fixed.name, "stride": "remove"}), 422, "stride")
    assert "use keep" in found["detail"]


def test_evaluate(alice: TestClient, upload: Callable[..., str], make: Make, refusal: Refusal) -> None:
    job, data = make(Status.SUCCEEDED).id, upload(**BIG)
    body = {"job": job, "dataset": data, "against": [{"model": "resnet50d.ra2_in1k"}, {"checkpoint": "ckpt_x"}]}
    refusal(alice.post("/evaluate", json=body), 422, "against.1.checkpoint")
    body["against"] = [{"model": "vit_base_patch16_224"}]
    for config, field in (
        ({"split": "test"}, "config.split"),
        ({"severities": [6]}, "config.severities"),
        ({"device": "/dev/null"}, "config.device"),
        ({"epochs": 3}, "config.epochs"),
    ):
        refusal(alice.post("/evaluate", json=body | {"config": config}), 422, field)
    for config, field in (({"severities": [1]}, "severities"), ({"baseline": job}, "baseline"), ({"seed": 1}, "seed")):
        found = refusal(alice.post("/evaluate", json=body | {"config": config}), 422, f"config.{field}")
        assert "nothing is corrupted; give corruptions as well" in found["detail"]
    for config in (
        {"split": "validation", "corruptions": ["fog"], "severities": [1], "seed": 1},
        {"severities": [5, 4, 3, 2, 1], "baseline": None, "seed": 0},
        {"layout": "imagenet-c", "severities": [1]},
    ):
        answer = alice.post("/evaluate", json=body | {"config": config})
        assert answer.status_code == 202, answer.text
    stored = upload(classes=("fog", "snow"), images=2000)
    answer = alice.post("/evaluate", json=body | {"dataset": stored, "config": {"severities": [1]}})
    assert answer.status_code == 202, "ImageNet-C, perhaps"


def test_the_same_key_makes_one_job(alice: TestClient, bob: TestClient, refusal: Refusal) -> None:
    headers, body = {"Idempotency-Key": "monday-1"}, {"model": "resnet18"}
    first = alice.post("/transform", json=body, headers=headers)
    again = alice.post("/transform", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert again.headers["location"] == first.headers["location"]
    other = alice.post("/transform", json=body | {"seed": 1}, headers=headers)
    assert "another request" in refusal(other, 422, "Idempotency-Key")["detail"]
    refusal(
        alice.post("/evaluate", json={"model": "resnet18", "dataset": "pets"}, headers=headers), 422, "Idempotency-Key"
    )
    assert bob.post("/transform", json=body, headers=headers).json()["id"] != first.json()["id"]
    for bad in ("", "x" * 256, "a b"):
        refusal(alice.post("/transform", json=body, headers={"Idempotency-Key": bad}), 422, "Idempotency-Key")


def test_a_replay_is_answered_even_if_the_request_would_be_refused_by_now(
    alice: TestClient, service: Service, upload: Callable[..., str]
) -> None:
    data = upload(**BIG)
    body, headers = {"model": "resnet18", "dataset": data}, {"Idempotency-Key": "tuesday"}
    first = alice.post("/finetune", json=body, headers=headers)
    service.store.cancel(first.json()["id"])
    service.store.remove_upload(data, "alice")
    assert alice.post("/finetune", json=body).status_code == 422
    assert alice.post("/finetune", json=body, headers=headers).json()["id"] == first.json()["id"]


def asked(kind: str, **body: Any) -> Submission:
    """Read without a server."""
    return read(KINDS[kind](**body), ApiSettings(webhook_hosts=("hooks.example.org",), max_loader_workers=4))


@pytest.mark.parametrize(
    ("kind", "body", "field"),
    [
        ("transform", {"webhook": "https://evil.example/"}, "webhook"),
        ("transform", {"model": "a\0"}, "model"),
        ("transform", {"finetune": {"dataset": "x", "preset": "slow"}}, "finetune.preset"),
        ("transform", {"finetune": {"dataset": "x", "config": {"convert": False}}}, "finetune.config.convert"),
        ("finetune", {"config": {"convert": False}}, None),
        ("finetune", {"config": {"workers": 5}}, "config.workers"),
        ("finetune", {"config": {"a": [{"b\0": 1}]}}, r"'config.a.0.b\x00'"),
        ("finetune", {"num_workers": 3, "config": {"batch_size": 4}}, "num_workers"),
        ("evaluate", {"config": {"device": "abacus"}}, "config.device"),
        ("evaluate", {"config": {"limit": 0}}, "config.limit"),
    ],
)
def test_what_a_body_says_by_itself_asks_nobody(kind: str, body: Any, field: str | None) -> None:
    given = {"model": "resnet18"} | ({} if kind == "transform" else {"dataset": "x"}) | body
    if field is None:
        assert asked(kind, **given).finetuning is not None
        return
    with pytest.raises(Refused) as caught:
        asked(kind, **given)
    assert caught.value.field == field


def test_a_checkpoint_is_converted_already() -> None:
    """Settings of a conversion would have no effect on it; a preset's own are for CNNs and T-CNNs alike."""
    given = {"checkpoint": "ckpt_1", "dataset": "x"}
    assert asked("finetune", **given, preset="quick").finetuning is not None
    with pytest.raises(Refused, match="T-CNN already") as caught:
        asked("finetune", **given, config={"conversion": {"stride": "remove"}})
    assert caught.value.field == "config.conversion"
