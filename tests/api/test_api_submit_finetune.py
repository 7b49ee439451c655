"""Which settings, models and data sets a job that fine-tunes may name, how many processes may share it, and which
field a refusal names.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Kind, Status
from tcnn_jobs.model.operation import WorkerInfo

Refusal = Callable[..., dict[str, Any]]


Make = Callable[..., Any]


BIG = {"classes": ["cat", "dog"], "images": 5000, "splits": {"train": 4000, "val": 1000}}


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"lrr": 1}, "config.lrr", "did you mean lr"),
        ({"lr": "fast"}, "config.lr", "valid number"),
        ({"epochs": 0}, "config.epochs", "greater than or equal to 1"),
        ({"epochs": 3, "warmup_epochs": 4}, "config.warmup_epochs", "at most the 3 epochs"),
        ({"conversion": {"strid": "keep"}}, "config.conversion.strid", "did you mean stride"),
        ({"batch_size": 4002}, "config.batch_size", "4000 training images"),
        ({"device": "abacus"}, "config.device", "cuda:N"),
        ({"workers": 1_000}, "config.workers", "at most 16"),
        ({"teacher": "/etc/passwd"}, "config.teacher", "expected a timm name"),
        ({"teacher": "resnet51"}, "config.teacher", "did you mean"),
        ({"clip_grad": 1e999}, "config.clip_grad", "finite"),
        ({"teacher": "\ud800"}, "config.teacher", "lone surrogates"),
        ({"conversion": {"stride": "keep"}}, "config.conversion", "the request's own"),
        ({"convert": False}, "config.convert", "T-CNN already"),
        ({"convert_at": 1}, "config.convert_at", "T-CNN already"),
    ],
)
def test_finetuning_settings_are_checked_at_once(
    config: dict[str, Any], field: str, words: str, alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:

    body = {"model": "test_resnet", "finetune": {"dataset": upload(**BIG), "preset": "quick", "config": config}}
    answer = alice.post("/transform", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert words in refusal(answer, 422, f"finetune.{field}")["detail"]


def test_finetune_of_each_kind_of_model(
    alice: TestClient, upload: Callable[..., str], make: Make, service: Service
) -> None:
    job, checkpoint, data = make(Status.SUCCEEDED).id, upload("checkpoint"), upload(**BIG)
    for model in ({"job": job}, {"checkpoint": checkpoint}, {"model": "resnet18"}):
        answer = alice.post("/finetune", json={**model, "dataset": data})
        assert answer.status_code == 202, answer.text
        assert service.store.get(answer.json()["id"]).kind is Kind.FINETUNE
    answer = alice.post(
        "/finetune", json={"model": "vit_base_patch16_224", "dataset": data, "config": {"convert": False}}
    )
    assert answer.status_code == 202, "a model that is not converted need not be convertible"


def test_models_that_cannot_be_finetuned(
    alice: TestClient, upload: Callable[..., str], make: Make, refusal: Refusal
) -> None:
    data = upload(**BIG)
    failed, bare, theirs = make(Status.FAILED).id, make(Status.SUCCEEDED, content=None).id, make(owner="bob").id
    for model, field, words in (
        ({"job": failed}, "job", "which is failed"),
        ({"job": bare}, "job", "makes no checkpoint"),
        ({"job": theirs}, "job", "no job"),
        ({"job": "nonsense"}, "job", "no job"),
        ({"checkpoint": upload("checkpoint", owner="bob")}, "checkpoint", "POST /checkpoints"),
        ({"checkpoint": data}, "checkpoint", "POST /checkpoints"),
        ({"model": "vit_base_patch16_224"}, "model", "no k×k convolution"),
        ({}, "body", "exactly one of job, checkpoint, model"),
        ({"job": failed, "model": "resnet18"}, "body", "job and model"),
    ):
        found = refusal(alice.post("/finetune", json={**model, "dataset": data}), 422, field)
        assert words in found["detail"]


def test_a_preset_of_content_heads_is_refused_where_it_would_train_a_convolution(
    alice: TestClient, upload: Callable[..., str], make: Make, refusal: Refusal
) -> None:
    """The job trained one to its end, with one line in its log that said so."""
    data, plain = upload(**BIG), make(Status.SUCCEEDED).id
    body = {"job": plain, "dataset": data, "preset": "quick"}
    found = refusal(alice.post("/finetune", json=body), 422, "job")
    assert "the preset quick would leave it a convolution" in found["detail"]
    assert "content_heads 4, or set config.anneal to warmup" in found["detail"]
    training = {"dataset": data, "preset": "cifar"}
    asked = {"model": "resnet18", "pretrained": False, "finetune": training}
    refusal(alice.post("/transform", json={**asked, "content_heads": 0}), 422, "content_heads")
    for route, fine in (
        ("/finetune", {**body, "config": {"anneal": "warmup"}}),
        ("/finetune", {**body, "preset": "paper", "config": {"anneal": "hold"}}),
        ("/transform", asked),
        ("/transform", {**asked, "content_heads": 2}),
        ("/transform", {**asked, "content_heads": 0, "temperature": 1.0}),
    ):
        assert alice.post(route, json=fine).status_code == 202, fine


def test_a_setting_without_effect_is_refused(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    """As `--set` is on the command line."""
    training = {"dataset": upload(**BIG), "preset": "quick", "config": {"gate_temperature": 0.5, "anneal_epochs": None}}
    for route, body, field in (
        ("/finetune", {"model": "resnet18", **training}, "config.gate_temperature"),
        ("/transform", {"model": "resnet18", "finetune": training}, "finetune.config.gate_temperature"),
    ):
        assert "has no effect, because τ is fixed" in refusal(alice.post(route, json=body), 422, field)["detail"]


@pytest.mark.parametrize(
    ("model", "preset", "config", "why"),
    [
        ("resnet18", "quick", {"convert": False, "gating_lr": 5}, "no such weights"),
        ("resnet18", "quick", {"convert": False, "freeze_gpsa": True}, "the model has no GPSA layers"),
        ("convit_tiny", "quick", {"convert": False, "output_lr": 1}, "no such weights"),
        ("resnet18", "paper", {"freeze_gpsa": True, "value_lr": 1}, "frozen with freeze_gpsa=true"),
        ("resnet18", "paper", {"gating": False, "gating_lr": 5}, "fixed at 0 with gating=false"),
        ("resnet18", "quick", {"position_lr": 5}, "fixed with anneal=hold"),
        ("resnet18", "paper", {"content_output_scale": 0.1}, "no content heads"),
        ("resnet18", "paper", {"momentum": 0.5}, "the optimizer has none"),
        ("resnet18", "quick", {"convert": False, "gating": True, "freeze_gpsa": False, "gating_lr": 0.05}, None),
        ("resnet18", "quick", {"convert_at": 1, "freeze_gpsa": True}, None),
        ("resnet18", "quick", {"content_output_scale": 0.1, "output_lr": 1, "gating": False}, None),
        ("resnet18", "paper", {"momentum": 0.5, "opt": "sgd", "gating_lr": 1, "position_lr": 1}, None),
        ("convit_tiny", "quick", {"convert": False, "gating": False, "freeze_gpsa": True}, None),
        ("cordonnier_quadratic", "cifar", {"convert": False, "position_lr": 1}, None),
    ],
)
def test_a_setting_of_what_the_model_lacks_is_refused(
    model: str, preset: str, config: dict[str, Any], why: str | None, alice: TestClient, upload: Callable[..., str],
    refusal: Refusal,
) -> None:  # fmt: skip
    body = {"model": model, "pretrained": False, "dataset": upload(**BIG), "preset": preset, "config": config}
    answer = alice.post("/finetune", json=body)
    if why is None:
        assert answer.status_code == 202, answer.text
    else:
        assert why in refusal(answer, 422, f"config.{list(config)[-1]}")["detail"]


def test_data_sets_that_cannot_be_used(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    for name, words in (
        (upload(owner="bob", **BIG), "POST /datasets"),
        ("ds_0123456789abcdef01234567", "POST /datasets"),
        ("pets/../../secret", "below the directories"),
        ("/etc", "below the directories"),
        ("way-out", "below the directories"),
        ("absent", "below the directories"),
        ("x" * 400, "below the directories"),
        ("hfds/stranger/data", "only hfds/timm/*"),
        ("hfds/timm/../../etc", "only hfds/timm/*"),
        ("wds//shared/../etc", "only wds//shared/*"),
        ("wds/s3://others/a.tar", "only wds//shared/*, wds/s3://data/*"),
        ("wds//shared/s3://data/a.tar", "only wds//shared/*"),
        ("wds/s3://data/../others/a.tar", "only wds//shared/*"),
        ("s3://data/a.tar", "allows no s3:/ names"),
        ("wds//shared/{..,x}/etc", "only wds//shared/*"),
        ("torch/cifar10:/etc", "no torch/ names"),
    ):
        answer = alice.post("/finetune", json={"model": "resnet18", "dataset": name})
        assert words in refusal(answer, 422, "dataset")["detail"], name


def test_data_sets_of_the_server(alice: TestClient, service: Service) -> None:
    pets = str(service.settings.dataset_roots[0] / "pets")
    for name, kept in (
        ("pets", pets),
        (pets, pets),
        ("./pets/.", pets),
        ("hfds/timm/oxford-iiit-pet", "hfds/timm/oxford-iiit-pet"),
        ("wds//shared/train-{000..127}.tar", "wds//shared/train-{000..127}.tar"),
        ("wds/s3://data/train-{000..127}.tar", "wds/s3://data/train-{000..127}.tar"),
    ):
        body = {"model": "resnet18", "dataset": name, "val": name}
        answer = alice.post("/finetune", json=body)
        assert answer.status_code == 202, answer.text
        request = answer.json()["request"]
        assert (request["dataset"], request["val"]) == (kept, kept), "the job opens what was checked"


def test_a_short_path_that_leads_to_one_that_no_worker_reads(
    alice: TestClient, service: Service, refusal: Refusal
) -> None:
    """It passes as a name of ten characters; the job would be given 630."""
    root = service.settings.dataset_roots[0]
    deep = root.joinpath(*["x" * 210] * 3)
    deep.mkdir(parents=True)
    (root / "short-name").symlink_to(deep)
    answer = alice.post("/finetune", json={"model": "resnet18", "dataset": "short-name"})
    assert "characters, 500 at most" in refusal(answer, 422, "dataset")["detail"]


def test_an_uploaded_data_set_must_suffice(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    def ask(dataset: str, status: int = 422, field: str | None = None, **more: Any) -> str:
        config = {"batch_size": 64, **more.pop("config", {})}
        body = {"model": "resnet18", "dataset": dataset, "preset": "quick", "config": config, **more}
        answer = alice.post("/finetune", json=body)
        assert answer.status_code == status, answer.text
        return "" if status == 202 else refusal(answer, 422, field)["detail"]

    undivided = upload(classes=["a", "b"], images=100, splits={})
    ask(undivided, 202)  # a tenth is held out
    assert "90 training images" in ask(undivided, field="config.batch_size", config={"batch_size": 91})
    ask(undivided, 202, config={"val_split": 0.3})
    assert "50 training images" in ask(undivided, field="config.batch_size", config={"val_split": 0.5})
    ask(undivided, 202, val=upload(**BIG))
    assert "no split 'val'" in ask(undivided, field="val", val=upload(images=9, splits={"train": 9}))
    assert "no split 'train'" in ask(upload(images=9, splits={"test": 9}), field="dataset")


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
    assert "at most 3, the slots that this host's largest worker can give to one job (no GPU twice), found 4" in str(
        told
    )
    inside = {"model": "test_resnet", "pretrained": False, "finetune": {"dataset": body["dataset"], "num_workers": 2}}
    assert service.store.get(alice.post("/transform", json=inside).json()["id"]).slots == 2
    service.store.heartbeat(WorkerInfo(name="w", host="here", slots=3, widest=1, version="0"), [])
    told = refusal(alice.post("/transform", json=inside), 422, "finetune.num_workers")
    assert "at most 1, the slots" in str(told), "three jobs share its GPU"
    service.store.forget_worker("w")


def test_a_batch_that_cannot_be_shared(alice: TestClient, upload: Callable[..., str], refusal: Refusal) -> None:
    body = {"model": "test_resnet", "pretrained": False, "dataset": upload(**BIG), "config": {"batch_size": 100}}
    told = refusal(alice.post("/finetune", json=body | {"num_workers": 3}), 422, "num_workers")
    assert "batch_size 100 cannot be shared equally among 3 processes, an even number" in str(told)
    refusal(alice.post("/finetune", json=body | {"num_workers": 0}), 422, "num_workers")
    inside = {"model": "test_resnet", "pretrained": False, "finetune": {"dataset": body["dataset"], "num_workers": 3}}
    refusal(alice.post("/transform", json=inside), 422, "finetune.num_workers")
