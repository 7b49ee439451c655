"""docs/http-api.md: its journey runs, with curl, against a real server and worker; its tables are true."""

import base64
import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pages
import pytest
import timm
import torch
from pages import ROOT
from serving import Server, serving
from tiny_runs import colours

import tcnn
from tcnn_api.description.openapi import PROBLEMS
from tcnn_api.errors import TooManyAtOnce
from tcnn_api.pools import Pools, Share
from tcnn_api.settings import ApiSettings
from tcnn_jobs.housekeeping.webhooks import headers
from tcnn_jobs.model.jobs import Delivery

PAGE = "docs/http-api.md"
TEXT = (ROOT / PAGE).read_text()
KEY = "secret-of-the-team"
TINY = {
    "epochs": 1, "warmup_epochs": 0, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2,
    "device": "cpu",
}  # fmt: skip
SMALLER = {
    r"\"model\": \"resnet50d\"": r"\"model\": \"test_resnet\", \"pretrained\": false",
    "photos/cat/1.jpg": "photos/blue/1.png",
    r"\"model\": \"resnet18\"": r"\"model\": \"test_resnet\"",
    r"{\"epochs\": 10, \"val_split\": 0.2}": json.dumps(TINY).replace('"', r"\""),
}
"""What the page says, and what it takes to run it in seconds and without a network."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    environment = {
        "TCNN_API_KEYS": f"team:{KEY}", "TCNN_POLL": "0.1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    with serving(tmp_path_factory.mktemp("service") / "home", **environment) as running:
        yield running


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
def test_the_journey(server: Server, tmp_path: Path) -> None:
    colours(tmp_path / "photos")
    torch.save({"arch": "test_resnet", **timm.create_model("test_resnet").state_dict()}, tmp_path / "mine.pth")
    script = "\n".join(block.code for block in pages.blocks(PAGE) if block.language == "sh")
    assert "http://127.0.0.1:8000" in script
    script = script.replace("http://127.0.0.1:8000", server.url)
    for said, smaller in SMALLER.items():
        assert said in script
        script = script.replace(said, smaller)
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for words in (
        "t_resnet50d.safetensors: OK", '"succeeded"', "event: epoch", '"kind":"queued"', "best.safetensors",
        "did you mean resnet50d", "30 images", "\ntrue\n",  # it is cancelled, whether or not it ran already
    ):  # fmt: skip
        assert words in done.stdout, words
    assert tcnn.load(tmp_path / "t_resnet50d.safetensors").num_classes == 3
    assert (tmp_path / "metrics.csv").read_text().count("\n") > 1


@pytest.mark.slow  # the same journey again, by the client instead of curl
def test_the_python_example(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = [block.code for block in pages.blocks(PAGE) if "def train" in block.code]
    assert '"model": model,' in code
    namespace: dict[str, Any] = {}
    exec(code.replace('"model": model,', '"model": model, "pretrained": False,'), namespace)
    job = namespace["train"](server.url, KEY, str(colours(tmp_path / "photos")), "test_resnet", TINY)
    assert job.startswith("job_")
    assert tcnn.load(tmp_path / "t_test_resnet.safetensors").num_classes == 3


def test_signatures_are_checked_as_it_says() -> None:
    (code,) = [block.code for block in pages.blocks(PAGE) if "def genuine" in block.code]
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    genuine = namespace["genuine"]
    delivery = Delivery(id="hook_1", job="job_1", url="https://x", body={}, attempt=1)
    body = b'{"type":"job.succeeded"}'
    signed = headers(delivery, body, "shared", int(time.time()))
    assert genuine(signed, body, "shared")
    assert not genuine(signed, body + b" ", "shared")
    assert not genuine(signed, body, "another")
    assert not genuine(headers(delivery, body, "shared", int(time.time()) - 3600), body, "shared")
    assert not genuine({**signed, "webhook-id": "hook_2"}, body, "shared")
    assert base64.b64decode(signed["webhook-signature"].removeprefix("v1,")).__len__() == hashlib.sha256().digest_size


def test_every_route_is_named() -> None:
    document = json.loads((ROOT / "docs/openapi.json").read_text())
    real = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert set(re.findall(r"`((?:GET|POST|PATCH|DELETE) /[^`?]*)`", TEXT.partition("## A first job")[0])) - {
        "GET /", "GET /docs", "GET /metrics"
    } == real - {"GET /", "GET /docs", "GET /metrics"}  # fmt: skip


def test_every_status_is_explained() -> None:
    errors = TEXT.partition("## Errors")[2].partition("## ")[0]
    named = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", errors, re.MULTILINE) for code in row.split(", ")}
    assert named >= set(PROBLEMS) - {416}
    assert named <= {*PROBLEMS, 405, 431}  # before there is a route


def held(share: Share) -> int:
    """How many a tenant may have at once."""
    with ExitStack() as held, contextlib.suppress(TooManyAtOnce):
        for count in range(1000):  # noqa: B007
            held.enter_context(share.hold("ann"))
    return count


def test_limits_of_a_tenant_are_those_of_the_server() -> None:
    pools = Pools()
    shares = (pools.uploads, pools.reports._share, pools.pictures, pools.models._share)
    numbers = ", ".join(str(held(share)) for share in shares)
    assert f"| concurrent uploads, reports, images, questions about models of a tenant | {numbers} | |" in TEXT
    waiting = f"{pools.storage._queue}, each for {pools.storage._seconds:g} s"
    assert f"| requests of a tenant that wait for the store of results | {waiting} | |" in TEXT


def test_limits_are_the_defaults() -> None:
    limits = TEXT.partition("## Limits")[2].partition("## ")[0]
    shown = re.findall(r"^\| .* \| ([\d,]+)(?: \w+)? \| `TCNN_(\w+)` \|$", limits, re.MULTILINE)
    assert len(shown) == 7
    for value, name in shown:
        default = ApiSettings.model_fields[name.lower()].default
        expected = default * 1e6 if name == "MAX_BODY_MB" else default
        assert float(value.replace(",", "")) == pytest.approx(expected), name
    for name in re.findall(r"`TCNN_(\w+)`", limits):
        assert name.lower() in ApiSettings.model_fields or name in ("SERVER", "API_KEY")
