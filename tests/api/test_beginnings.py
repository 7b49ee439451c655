"""`config.init` of a request: what begins anew is random, and of a family that can begin so."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
from starlette.testclient import TestClient
from timm.models.convmixer import ConvMixer
from torch import nn

import tcnn
from tcnn.errors import RequestError
from tcnn.zoo.catalogue import TAKEN_BY
from tcnn_jobs.model.jobs import Status

Refusal = Callable[..., dict[str, Any]]
SMALL: dict[str, Callable[[], nn.Module]] = {
    "vision_transformer": partial(timm.create_model, "test_vit"),
    "deit": partial(timm.create_model, "deit_tiny_patch16_224", img_size=32, depth=1),
    "convit": partial(timm.create_model, "convit_tiny", img_size=32, depth=2, local_up_to_layer=1),
    "convmixer": partial(ConvMixer, dim=64, depth=2),
}


@pytest.mark.parametrize("family", TAKEN_BY)
def test_the_table_says_what_models_take(family: str) -> None:
    for init in ("impulse", "mimetic", "convolution", "random"):
        model = SMALL[family]()
        if init in TAKEN_BY[family]:
            assert tcnn.initialise(model, init).initialisation == init
        else:
            with pytest.raises(RequestError, match="init: "):
                tcnn.initialise(model, init)


@pytest.fixture
def ask(alice: TestClient, upload: Callable[..., str]) -> Callable[..., Any]:
    data = upload(classes=["a", "b"], images=900, splits={})

    def ask(init: str, **body: Any) -> Any:
        config = {"init": init, "batch_size": 64} | ({"convert": False} if "model" in body else {})
        return alice.post("/finetune", json={"dataset": data, "preset": "quick", "config": config, **body})

    return ask


@pytest.mark.parametrize(
    ("model", "init"), [("convit_tiny", "random"), ("vit_tiny_patch16_224", "impulse"), ("convmixer_768_32", "impulse")]
)
def test_random_weights_of_its_families(ask: Callable[..., Any], model: str, init: str) -> None:
    assert ask(init, model=model, pretrained=False).status_code == 202


def test_what_has_weights_or_is_no_transformer(
    ask: Callable[..., Any], make: Callable[..., Any], upload: Callable[..., str], refusal: Refusal
) -> None:
    def detail(*given: Any, **body: Any) -> str:
        return str(refusal(ask(*given, **body), 422, "config.init")["detail"])

    assert "takes convolution or random, found impulse" in detail("impulse", model="convit_tiny", pretrained=False)
    assert "resnet18 is no vision transformer" in detail("impulse", model="resnet18", pretrained=False)
    for body in (
        {"model": "convit_tiny"}, {"job": make(Status.SUCCEEDED).id}, {"checkpoint": upload("checkpoint")},
        {"model": "convit_tiny", "weights": upload("weights")},
    ):  # fmt: skip
        assert "has weights" in detail("random", **body)


def test_a_transformer_that_is_to_be_converted(ask: Callable[..., Any], refusal: Refusal, alice: TestClient) -> None:
    body = ask("default", model="vit_tiny_patch16_224", pretrained=False).json()["request"]
    answer = alice.post("/finetune", json=body | {"config": {}})
    assert "; to train it as it is, set config.convert to false" in refusal(answer, 422, "model")["detail"]


def test_a_model_that_is_converted_begins_as_its_cnn(
    alice: TestClient, upload: Callable[..., str], refusal: Refusal
) -> None:
    finetune = {"dataset": upload(images=900), "preset": "quick", "config": {"init": "impulse"}}
    answer = alice.post("/transform", json={"model": "resnet18", "pretrained": False, "finetune": finetune})
    assert "resnet18 is no vision transformer" in refusal(answer, 422, "finetune.config.init")["detail"]
