"""API replicas and a worker on hosts of their own: what one took or made, the others give out."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from apart import URL, Host
from PIL import Image
from s3 import Gate, read_only
from serving import ask_here
from starlette.testclient import TestClient

from tcnn_api.app import create_app
from tcnn_api.routes.uploads import datasets
from tcnn_api.settings import ApiSettings
from tcnn_jobs.housekeeping.ownership import bucket_of, check
from tcnn_jobs.model.jobs import Status


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in ("blue", "red"):
            picture = io.BytesIO()
            Image.new("RGB", (8, 8), name).save(picture, "PNG")
            for number in range(4):
                file.writestr(f"{name}/{number}.png", picture.getvalue())
    return buffer.getvalue()


@pytest.fixture
def replicas(hosts: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[TestClient]]:
    """Two of them; what is uploaded is looked at by a thread."""
    monkeypatch.setattr(datasets, "ask", ask_here)
    with ExitStack() as stack:
        clients = []
        for name in ("east", "west"):
            settings = ApiSettings(
                home=tmp_path / name / "home",
                database_url=hosts[0].settings.database_url,
                artifacts=URL,
                retry_delay=0,
            )
            clients.append(stack.enter_context(TestClient(create_app(settings), base_url="http://localhost")))
        yield clients


def test_uploaded_here_trained_there_downloaded_elsewhere(
    hosts: list[Host], replicas: list[TestClient], gate: Gate, tmp_path: Path
) -> None:
    east, west = replicas
    made = east.post("/datasets", files={"file": ("set.zip", archive())})
    assert made.status_code == 201, made.text
    dataset = made.json()["id"]
    assert f"team/datasets/{dataset}.tar" in gate.names()
    assert not (tmp_path / "east" / "home" / "datasets" / dataset).exists()
    config = {"batch_size": 2, "val_split": 0.25, "epochs": 1, "warmup_epochs": 0, "anneal_epochs": 1}
    request = {"model": "test_resnet", "pretrained": False, "finetune": {"dataset": dataset, "config": config}}
    accepted = west.post("/transform", json=request)
    assert accepted.status_code == 202, accepted.text
    job = accepted.json()["id"]
    script = (
        "event('classes', names=sorted(os.listdir(told['paths']['dataset']))); print('seen', flush=True); succeed()"
    )
    hosts[0].courier(f"{script}; succeed()").run(until_empty=True)
    assert hosts[0].store.get(job).status is Status.SUCCEEDED
    told = {event.kind: event.data for event in hosts[0].store.events(job)}
    assert told["classes"]["names"] == ["blue", "red"]

    whole = west.get(f"/jobs/{job}/checkpoint")
    content, digest = whole.content, hashlib.sha256(whole.content).hexdigest()
    assert content == b"weights" * 1000 and whole.headers["etag"] == f'"{digest}"'
    assert whole.headers["content-length"] == "7000" and "repr-digest" in whole.headers
    part = west.get(f"/jobs/{job}/checkpoint", headers={"Range": "bytes=6990-"})
    assert (part.status_code, part.content) == (206, content[6990:])
    parts = west.get(f"/jobs/{job}/checkpoint", headers={"Range": "bytes=0-3,100-103", "If-Range": f'"{digest}"'})
    assert parts.status_code == 206 and parts.content.count(b"Content-Range: bytes") == 2
    assert content[100:104] in parts.content
    assert west.get(f"/jobs/{job}/checkpoint", headers={"If-None-Match": f'"{digest}"'}).status_code == 304
    assert west.get(f"/jobs/{job}/checkpoint", headers={"Range": "bytes=7000-"}).status_code == 416
    assert west.head(f"/jobs/{job}/checkpoint").headers["content-length"] == "7000"
    assert west.get(f"/jobs/{job}/logs").text == "seen\n"
    assert west.get(f"/jobs/{job}/metrics.csv").text.splitlines() == ["loss", "1"]

    assert east.delete(f"/jobs/{job}").status_code == 204
    assert east.delete(f"/datasets/{dataset}").status_code == 204
    assert gate.names() == set()
    assert west.get(f"/jobs/{job}/checkpoint").status_code == 404


@pytest.mark.slow  # that there is no link to it is in `test_links.py`
def test_a_file_that_is_gone_from_the_store(hosts: list[Host], replicas: list[TestClient], gate: Gate) -> None:
    job = hosts[0].submit()
    hosts[0].courier("succeed()").run(until_empty=True)
    hosts[0].artifacts.bucket.remove(*hosts[0].artifacts.bucket.keys("jobs"))
    answer = replicas[0].get(f"/jobs/{job.id}/checkpoint")
    assert answer.status_code == 404 and "no longer on the server" in answer.json()["detail"]


def test_a_store_that_refuses_or_is_away(
    replicas: list[TestClient], gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    east, _ = replicas
    gate.refuse = read_only
    refused = east.post("/datasets", files={"file": ("set.zip", archive())})
    assert refused.status_code == 503 and refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["detail"].startswith("the store of results: cannot send ds_")
    assert "http" not in refused.json()["detail"]
    assert east.get("/datasets").json()["data"] == [] and not list((tmp_path / "east/home/incoming").iterdir())
    for refuse in (read_only, lambda method, path: (503, "ServiceUnavailable")):
        gate.refuse = refuse
        ready = east.get("/readyz")
        assert ready.status_code == 503 and [one["field"] for one in ready.json()["errors"]] == ["artifacts"]


def test_a_bucket_of_another_database_is_not_ready(hosts: list[Host], replicas: list[TestClient], gate: Gate) -> None:
    """Marked by the database whose files were found there first."""
    east, west = replicas
    made = east.post("/datasets", files={"file": ("set.zip", archive())}).json()["id"]
    check(bucket_of(hosts[0].artifacts), hosts[1].store)
    assert {"team/database.id", f"team/datasets/{made}.tar"} == gate.names()
    assert east.get("/readyz").status_code == west.get("/readyz").status_code == 200
    hosts[0].artifacts.bucket.put_text("database.id", "another")
    ready = west.get("/readyz")
    assert ready.status_code == 503 and [one["field"] for one in ready.json()["errors"]] == ["artifacts"]
