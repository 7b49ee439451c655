"""`POST /jobs/{id}/predict`: which models are asked for an image, and within which bounds."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_jobs.model.jobs import Kind, Status

Make = Callable[..., Any]
Refusal = Callable[..., dict[str, Any]]
GONE = {"role": "cnn", "missing": "what this job began with is no longer on the server"}


@pytest.fixture
def asked(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches the process that answers; it says nothing of interest."""
    found: list[Any] = []

    async def ask(job: str, checkpoint: Any, asked: Any, content: bytes = b"") -> bytes:
        found.append((job, asked, content, service.pools.pictures.held))
        return json.dumps({"models": [], "same_first_guess": None}).encode()

    monkeypatch.setattr(service.explorers, "ask", ask)
    return found


def test_the_models_beside_a_jobs_own(
    alice: TestClient, make: Make, upload: Callable[..., str], asked: list[Any], service: Service
) -> None:
    begun = make(Status.SUCCEEDED)
    data = {"dataset": "ds_000000000000000000000000"}
    theirs = make(Status.SUCCEEDED, owner="bob").id
    assert alice.post(f"/jobs/{begun.id}/predict", content=b"image").status_code == 200
    assert asked.pop()[1]["others"][0]["path"].endswith(begun.result.checkpoint.path)
    given = upload("checkpoint")
    for request, expected in (
        ({"job": begun.id}, {"role": "cnn", "path": begun.result.checkpoint.path}),
        ({"checkpoint": given}, {"role": "cnn", "path": f"{given}.safetensors"}),
        ({"model": "resnet18"}, {"role": "cnn", "name": "resnet18"}),
        ({"model": "resnet18", "pretrained": False}, GONE),
        ({"job": "job_000000000000000000000000"}, GONE),
        ({"job": theirs}, GONE),
        ({"checkpoint": "ckpt_000000000000000000000000"}, GONE),
    ):
        job = make(Status.SUCCEEDED, kind=Kind.FINETUNE, request=request | data).id
        assert alice.post(f"/jobs/{job}/predict?top=3", content=b"image").status_code == 200
        name, said, content, held = asked.pop()
        assert (name, content, held, said["top"]) == (job, b"image", 5, 3)
        (beside,) = said["others"]
        assert beside.keys() == expected.keys()
        assert beside.get("path", "").endswith(expected.pop("path", "")), beside
        assert expected.items() <= beside.items()
    assert service.pools.pictures.held == 0


def test_what_has_no_model_says_nothing(
    alice: TestClient, bob: TestClient, make: Make, asked: list[Any], refusal: Refusal
) -> None:
    job = make(Status.SUCCEEDED).id
    refusal(alice.post(f"/jobs/{job}/predict"), 422, "body")
    refusal(alice.post(f"/jobs/{job}/predict?top=101", content=b"x"), 422, "top")
    refusal(bob.post(f"/jobs/{job}/predict", content=b"x"), 404)
    refusal(alice.post(f"/jobs/{make(Status.FAILED).id}/predict", content=b"x"), 409)
    refusal(alice.post(f"/jobs/{make(Status.SUCCEEDED, content=None).id}/predict", content=b"x"), 404)
    refusal(alice.post(f"/jobs/{job}/predict", headers={"Content-Length": str(33 << 20)}), 413)
    assert not asked
