"""What a tenant hears whose quota is used up."""

import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image
from serving import look_here
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.routes.uploads import datasets

Refusal = Callable[..., dict[str, Any]]
MODEL = {"model": "resnet18", "pretrained": False}


@pytest.fixture(autouse=True)
def any_amount(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server is that of other tests, too. What is uploaded is looked at by a thread: `uploads/` has processes."""
    look_here(monkeypatch, datasets)
    yield
    service.store.set_quotas("alice", queued=None, running=None, gpu_hours=None, stored=None)


def _photos() -> dict[str, tuple[str, bytes]]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for label in ("cat", "dog"):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8)).save(picture, "png")
            archive.writestr(zipfile.ZipInfo(f"{label}/1.png"), picture.getvalue())  # the same bytes at any time
    return {"file": ("photos.zip", packed.getvalue())}


def test_a_full_queue(alice: TestClient, bob: TestClient, service: Service, refusal: Refusal) -> None:
    service.store.set_quotas("alice", queued=0)
    answer = alice.post("/transform", json=MODEL)
    told = refusal(answer, 429)
    assert told["type"] == "urn:tcnn:problem:quota-exceeded"
    assert "expected at most 0 queued jobs of yours, found" in told["detail"]
    assert int(answer.headers["retry-after"]) == 60
    assert bob.post("/transform", json=MODEL).status_code == 202


def test_used_hours(alice: TestClient, service: Service, refusal: Refusal) -> None:
    service.store.set_quotas("alice", gpu_hours=0)
    assert "GPU hours in 30 days" in refusal(alice.post("/transform", json=MODEL), 429)["detail"]


def test_no_room(alice: TestClient, bob: TestClient, service: Service, refusal: Refusal) -> None:
    """An upload is refused before it has come, unless it was accepted before."""
    key = {"Idempotency-Key": "photos"}
    before = alice.post("/datasets", files=_photos(), headers=key)
    assert before.status_code == 201
    service.store.set_quotas("alice", stored=1)
    assert refusal(alice.post("/datasets", files=_photos()), 403)["type"] == "urn:tcnn:problem:bytes-exceeded"
    refusal(alice.post("/transform", json=MODEL), 403)
    assert alice.post("/datasets", files=_photos(), headers=key).json() == before.json()
    assert bob.post("/datasets", files=_photos()).status_code == 201


def test_an_upload_that_is_larger_than_the_room(alice: TestClient, service: Service, refusal: Refusal) -> None:
    """Nothing of it remains."""
    (tenant,) = service.store.tenants("alice")
    before = sorted(service.home.datasets.iterdir())
    service.store.set_quotas("alice", stored=tenant.use.stored + 10)
    assert "and these are" in refusal(alice.post("/datasets", files=_photos()), 403)["detail"]
    assert sorted(service.home.datasets.iterdir()) == before


def test_why_a_job_waits(alice: TestClient, service: Service) -> None:
    service.store.set_quotas("alice", running=0)
    job = alice.post("/transform", json=MODEL).json()
    assert job["waiting_for"] == "as many of your jobs run as may: 0"
