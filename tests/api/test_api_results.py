"""Downloads: ranges, validators, digests; metrics while they grow; and `POST /jobs/{id}/predict`: which
models are asked for an image, and within which bounds.
"""

import base64
import csv
import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import update
from starlette.requests import Request
from starlette.testclient import TestClient

from tcnn_api.deps import Service
from tcnn_api.responses.download import Share, download
from tcnn_api.routes.jobs.files import table
from tcnn_api.schemas import safe_name
from tcnn_jobs.database.schema import jobs
from tcnn_jobs.model.jobs import Artifact, Kind, Status

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]
CONTENT = bytes(range(256)) * 40
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'


@pytest.fixture
def url(make: Make) -> str:
    return f"/jobs/{make(Status.SUCCEEDED, content=CONTENT).id}/checkpoint"


def test_a_whole_download(alice: TestClient, url: str) -> None:
    answer = alice.get(url)
    assert answer.content == CONTENT
    digest = base64.b64encode(hashlib.sha256(CONTENT).digest()).decode()
    expected = {
        "etag": ETAG,
        "repr-digest": f"sha-256=:{digest}:",
        "content-length": str(len(CONTENT)),
        "accept-ranges": "bytes",
        "content-type": "application/octet-stream",
        "content-disposition": 'attachment; filename="t_resnet50d.safetensors"',
        "x-content-type-options": "nosniff",
    }
    assert {name: answer.headers[name] for name in expected} == expected
    head = alice.head(url)
    assert head.content == b""
    assert {name: head.headers[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "media"),
    [
        ("a.json", "application/json"), ("a.jsonl", "application/jsonl"), ("a.csv", "text/csv"),
        ("a.txt", "text/plain"),
        *((f"a.{run}", "application/octet-stream") for run in ("html", "svg", "js", "xml", "pdf", "safetensors")),
        ("a", "application/octet-stream"),
    ],
)  # fmt: skip
def test_no_file_is_called_what_a_browser_would_run(
    name: str, media: str, alice: TestClient, service: Service, make: Make
) -> None:
    file = Artifact(name=name, path=name, size=4, sha256="0" * 64)
    (service.home.jobs / name).write_bytes(b"here")
    request = Request({"type": "http", "method": "GET", "headers": []})
    answer = download(request, service.artifacts, file, name, Share(None, None))  # type: ignore[arg-type]
    assert answer.media_type == media


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=0-99", 0, 100), ("bytes=100-", 100, 10240), ("bytes=-5", 10235, 10240), ("bytes=5-999999", 5, 10240)],
)
def test_ranges(asked: str, start: int, stop: int, alice: TestClient, url: str) -> None:
    answer = alice.get(url, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/10240"
    assert answer.content == CONTENT[start:stop]
    assert answer.headers["etag"] == ETAG


def test_a_download_that_broke_off_goes_on(alice: TestClient, url: str) -> None:
    same = alice.get(url, headers={"Range": "bytes=4000-", "If-Range": ETAG})
    assert (same.status_code, CONTENT[:4000] + same.content) == (206, CONTENT)
    other = alice.get(url, headers={"Range": "bytes=4000-", "If-Range": '"another file"'})
    assert (other.status_code, other.content) == (200, CONTENT)


@pytest.mark.parametrize("asked", ["bytes=10240-", "bytes=99999-100000", "bytes=x-y", "bytes"])
def test_ranges_that_cannot_be(asked: str, alice: TestClient, url: str, refusal: Refusal) -> None:
    answer = alice.get(url, headers={"Range": asked})
    assert "10240 bytes" in refusal(answer, 416)["detail"]


@pytest.mark.parametrize("asked", ["items=0-5", "lines=1-2", "nonsense"])
def test_a_range_in_an_unknown_unit_is_ignored(asked: str, alice: TestClient, url: str) -> None:
    answer = alice.get(url, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, CONTENT)
    assert alice.get(url, headers={"Range": "Bytes=0-5"}).content == CONTENT[:6]


@pytest.mark.parametrize("given", [ETAG, f'"x", W/{ETAG}', "*"])
def test_what_the_client_has_is_not_sent_again(given: str, alice: TestClient, url: str) -> None:
    answer = alice.get(url, headers={"If-None-Match": given})
    assert (answer.status_code, answer.content) == (304, b"")
    assert answer.headers["etag"] == ETAG
    assert alice.get(url, headers={"If-None-Match": '"x"'}).content == CONTENT


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.FAILED, Status.CANCELLED])
def test_there_is_no_checkpoint_before_success(status: Status, alice: TestClient, make: Make, refusal: Refusal) -> None:
    job = make(status).id
    for path in ("checkpoint", "files/converted.safetensors"):
        assert status in refusal(alice.get(f"/jobs/{job}/{path}"), 409, "status")["detail"]
    assert alice.get(f"/jobs/{job}/checkpoints").json()["data"] == []


def test_what_is_not_there_is_404(alice: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    bare = make(Status.SUCCEEDED, content=None).id
    assert "made no checkpoint" in refusal(alice.get(f"/jobs/{bare}/checkpoint"), 404)["detail"]
    job = make(Status.SUCCEEDED)
    for name in ("best.safetensors", "..%2f..%2ftcnn.db", "log.txt"):
        assert alice.get(f"/jobs/{job.id}/files/{name}").status_code == 404
    (service.home.attempt(job.id, 1) / "evaluation.json").unlink()
    answer = alice.get(f"/jobs/{job.id}/files/evaluation.json")
    assert "no longer on the server" in refusal(answer, 404)["detail"]


@pytest.mark.parametrize("found", [CONTENT[:4000], CONTENT + b"more", b""])
def test_a_file_of_another_size_is_no_result(
    found: bytes, alice: TestClient, service: Service, make: Make, refusal: Refusal
) -> None:
    """As one that is gone: its digest would be another's. Whoever has the whole of it keeps it."""
    job = make(Status.SUCCEEDED, content=CONTENT)
    (service.home.jobs / job.checkpoint.path).write_bytes(found)
    url = f"/jobs/{job.id}/checkpoint"
    for name in ("checkpoint", "files/converted.safetensors", "archive"):
        detail = refusal(alice.get(f"/jobs/{job.id}/{name}"), 404)["detail"]
        assert f"expected 10,240 bytes, found {len(found):,}" in detail
    assert alice.get(url, headers={"Range": "bytes=0-9"}).status_code == alice.head(url).status_code == 404
    assert alice.get(url, headers={"If-None-Match": ETAG}).status_code == 304


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        ({"model": "hf-hub:timm/resnet18.a1_in1k"}, "t_resnet18.safetensors"),
        ({"model": "t_resnet18"}, "t_resnet18.safetensors"),
        ({"job": "job_0"}, None),
        ({"model": 'x"\r\n; y/../é'}, "t__.safetensors"),
    ],
)
def test_names_of_downloads(request_: dict[str, Any], name: str | None, alice: TestClient, make: Make) -> None:
    job = make(Status.SUCCEEDED, request=request_, kind=Kind.FINETUNE).id
    header = alice.head(f"/jobs/{job}/checkpoint").headers["content-disposition"]
    assert header == f'attachment; filename="{name or f"{job}.safetensors"}"'


@pytest.mark.parametrize(
    ("given", "safe"), [("a-b_c.1.csv", "a-b_c.1.csv"), ("../../é t", "_.._t"), ("..", "file"), (".ssh", "ssh")]
)
def test_safe_names(given: str, safe: str) -> None:
    assert safe_name(given) == safe


def test_metrics_are_all_rows_flattened(alice: TestClient, service: Service, make: Make, refusal: Refusal) -> None:
    job = make(Status.RUNNING)
    url = f"/jobs/{job.id}/metrics.csv"
    assert "measured" in refusal(alice.get(url), 404)["detail"]
    run = service.home.attempt(job.id, job.claim) / "run"
    run.mkdir(parents=True)
    rows = [
        {"kind": "train", "updates": 20, "loss": 2.5},
        {"kind": "epoch", "epoch": 0, "val": {"top1": 0.5, "loss": None}, "gates": {"layer4.0": [0.7, 0.8]}},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"kind": "tra')
    answer = alice.get(url)
    assert answer.headers["content-type"].startswith("text/csv")
    found = list(csv.DictReader(io.StringIO(answer.text)))
    assert list(found[0]) == [
        "kind", "updates", "loss", "epoch", "val.top1", "val.loss", "gates.layer4.0.0", "gates.layer4.0.1",
    ]  # fmt: skip
    assert [{name: value for name, value in row.items() if value} for row in found] == [
        {"kind": "train", "updates": "20", "loss": "2.5"},
        {"kind": "epoch", "epoch": "0", "val.top1": "0.5", "gates.layer4.0.0": "0.7", "gates.layer4.0.1": "0.8"},
    ]


def test_a_table_of_nothing() -> None:
    assert table([]).strip() == ""


GONE = {"role": "cnn", "missing": "what this job began with is no longer on the server"}


@pytest.fixture
def questions(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What reaches the process that answers; it says nothing of interest."""
    found: list[Any] = []

    async def ask(job: str, checkpoint: Any, questions: Any, content: bytes = b"", tenant: str = "") -> bytes:
        found.append((job, questions, content, service.pools.pictures.held("alice")))
        return json.dumps({"models": [], "same_first_guess": None}).encode()

    monkeypatch.setattr(service.explorers, "ask", ask)
    return found


def test_the_models_beside_a_jobs_own(
    alice: TestClient, make: Make, upload: Callable[..., str], questions: list[Any], service: Service
) -> None:
    begun = make(Status.SUCCEEDED)
    data = {"dataset": "ds_000000000000000000000000"}
    theirs = make(Status.SUCCEEDED, owner="bob").id
    assert alice.post(f"/jobs/{begun.id}/predict", content=b"image").status_code == 200
    assert questions.pop()[1]["others"][0]["path"].endswith(begun.result.checkpoint.path)
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
        job = make(Status.SUCCEEDED, kind=Kind.FINETUNE).id
        with service.store.writing() as connection:  # some of what it names is gone since
            named = update(jobs).where(jobs.c.id == job).values(request=request | data)
            connection.execute(named)
        assert alice.post(f"/jobs/{job}/predict?top=3", content=b"image").status_code == 200
        name, said, content, held = questions.pop()
        assert (name, content, held, said["top"]) == (job, b"image", 1, 3)
        (beside,) = said["others"]
        assert beside.keys() == expected.keys()
        assert beside.get("path", "").endswith(expected.pop("path", "")), beside
        assert expected.items() <= beside.items()
    assert service.pools.pictures.held("alice") == 0


def test_what_has_no_model_says_nothing(
    alice: TestClient, bob: TestClient, make: Make, questions: list[Any], refusal: Refusal
) -> None:
    job = make(Status.SUCCEEDED).id
    refusal(alice.post(f"/jobs/{job}/predict"), 422, "body")
    refusal(alice.post(f"/jobs/{job}/predict?top=101", content=b"x"), 422, "top")
    refusal(bob.post(f"/jobs/{job}/predict", content=b"x"), 404)
    refusal(alice.post(f"/jobs/{make(Status.FAILED).id}/predict", content=b"x"), 409)
    refusal(alice.post(f"/jobs/{make(Status.SUCCEEDED, content=None).id}/predict", content=b"x"), 404)
    refusal(alice.post(f"/jobs/{job}/predict", headers={"Content-Length": str(33 << 20)}), 413)
    assert not questions


def test_what_is_asked_about_a_picture_of_a_data_set(
    alice: TestClient, service: Service, make: Make, upload: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
) -> None:  # fmt: skip
    """By the folder of the set, if it is the own; then for a place, at a temperature. All on the share of who asks."""
    seen, shares, run = list[dict[str, Any]](), set[str](), service.pools.storage.run

    async def noted(tenant: str, call: Callable[..., Any], *given: Any) -> Any:
        shares.add(tenant)
        return await run(tenant, call, *given)

    async def ask(job: str, checkpoint: Any, asked: dict[str, Any], content: bytes = b"", tenant: str = "") -> bytes:
        seen.append(asked)
        return b'{"id": "img"}'

    monkeypatch.setattr(service.explorers, "ask", ask)
    monkeypatch.setattr(service.pools.storage, "run", noted)
    job, data = make(Status.SUCCEEDED).id, upload()
    place = f"/jobs/{job}/attention"
    answer = alice.post(f"{place}/images", params={"dataset": data, "number": 3})
    assert (answer.status_code, answer.json()) == (201, {"id": "img", "checkpoints": []})
    assert alice.get(f"{place}/img", params={"y": 0.25, "x": 1, "temperature": 0.5}).status_code == 200
    assert seen == [
        {"do": "open", "folder": str(service.home.dataset(data)), "number": 3, "file": None},
        {"do": "at", "image": "img", "y": 0.25, "x": 1.0, "checkpoint": None, "temperature": 0.5},
    ]
    for other in (f"ds_{'0' * 24}", upload(owner="bob")):
        refusal(alice.post(f"{place}/images", params={"dataset": other}), 422, "dataset")
    refusal(alice.get(f"{place}/img", params={"checkpoint": "last"}), 422, "checkpoint")
    assert len(seen) == 2 and shares == {"alice"}


def test_nobody_keeps_what_is_sent_to_one(alice: TestClient, make: Make) -> None:
    """Weights may be kept by who has a key, and are asked for again; a zip is made anew each time."""
    job = make(Status.SUCCEEDED).id
    for name, kept in (("checkpoint", "private, no-cache"), ("archive", "private, no-store"), ("events", "no-store")):
        assert alice.get(f"/jobs/{job}/{name}").headers["cache-control"] == kept
