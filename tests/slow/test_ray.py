"""Jobs on a Ray cluster of real node processes, submitted over HTTP: processes and nodes are killed, jobs cancelled.

The head has no CPU to train with, so what is killed is never where the driver lives. Every node asks for a token.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from clusters import TOKEN, Cluster, cluster, descendants
from houses import wait_for
from serving import Server, serving
from tiny_runs import colours

pytest.importorskip("ray", reason="TRAINING ON RAY IS NOT TESTED: pip install 'tcnn[ray]'")

CONFIG: dict[str, Any] = {
    "epochs": 30, "warmup_epochs": 1, "batch_size": 8, "size": 32, "workers": 0, "val_split": 0.2, "device": "cpu",
    "checkpoint_steps": 1, "anneal_epochs": None,
}  # fmt: skip
GRACE = 20


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with cluster(0, 2) as made:
        yield made


@pytest.fixture(scope="module")
def server(nodes: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("service")
    colours(root / "images" / "tiny")
    environment = {
        "TCNN_ENGINE": "ray", "TCNN_RAY_ADDRESS": nodes.address, "TCNN_GRACE": str(GRACE), "TCNN_POLL": "0.2",
        "TCNN_DATASET_ROOTS": str(root / "images"), "TCNN_RETRY_DELAY": "0", "OMP_NUM_THREADS": "1", **TOKEN,
    }  # fmt: skip
    with serving(root / "home", **environment) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client(None) as client:
        yield client


def submit(client: httpx.Client, **config: object) -> str:
    body = {
        "model": "test_resnet", "pretrained": False, "dataset": "tiny", "preset": "quick", "num_workers": 2,
        "config": CONFIG | config,
    }  # fmt: skip
    answer = client.post("/finetune", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def job(client: httpx.Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/jobs/{name}").json()
    return found


def events(client: httpx.Client, name: str, kind: str) -> list[dict[str, Any]]:
    answer = client.get(f"/jobs/{name}/events", params={"limit": 1000}).json()
    return [event["data"] for event in answer["data"] if event["kind"] == kind]


def training(client: httpx.Client, name: str, epoch: int) -> bool:
    now = job(client, name)
    assert now["status"] in ("queued", "running"), now
    progress = now["progress"] or {}
    return progress.get("phase") == "training" and progress["epoch"] >= epoch


def ranks(nodes: Cluster) -> list[int]:
    """The training processes on all nodes."""
    return [
        pid
        for node in nodes.nodes
        if node.poll() is None
        for pid in descendants(node.pid)
        if b"RayTrainWorker" in _words(pid)
    ]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def finished(client: httpx.Client, name: str) -> dict[str, Any]:
    wait_for(lambda: job(client, name)["status"] not in ("queued", "running"), 300)
    after = job(client, name)
    assert after["status"] == "succeeded", after
    assert [event["epoch"] for event in events(client, name, "epoch")] == list(range(CONFIG["epochs"]))
    assert client.get(f"/jobs/{name}/checkpoint").status_code == 200
    return after


def test_a_killed_process_is_started_again_by_ray_and_the_job_finishes(client: httpx.Client, nodes: Cluster) -> None:
    name = submit(client)
    wait_for(lambda: training(client, name, 4), 300)
    started = time.monotonic()
    os.kill(ranks(nodes)[0], signal.SIGKILL)
    wait_for(lambda: any(m["text"].startswith("going on in epoch") for m in events(client, name, "message")), 300)
    print(f"restarted after {time.monotonic() - started:.0f} s")
    after = finished(client, name)
    assert after["attempt"] == 1, "Ray's restart, not the queue's"
    assert wait_for(lambda: not ranks(nodes), 30)


def test_cancel_stops_every_process_on_every_node(client: httpx.Client, nodes: Cluster) -> None:
    name = submit(client, epochs=1000)
    wait_for(lambda: training(client, name, 2), 300)
    assert len(ranks(nodes)) == 2
    started = time.monotonic()
    client.post(f"/jobs/{name}/cancel").raise_for_status()
    wait_for(lambda: not ranks(nodes) and job(client, name)["status"] == "cancelled", GRACE + 2)
    print(f"stopped after {time.monotonic() - started:.0f} s")


def test_a_wrong_request_is_not_tried_again(client: httpx.Client, nodes: Cluster) -> None:
    name = submit(client, opt="no_such_optimizer")
    wait_for(lambda: job(client, name)["status"] not in ("queued", "running"), 300)
    after = job(client, name)
    assert (after["status"], after["attempt"]) == ("failed", 1), after
    assert after["error"]["code"] == "request" and "no_such_optimizer" in after["error"]["message"]
    assert not ranks(nodes)


def test_another_version_on_a_node_is_refused_with_both(nodes: Cluster, tmp_path: Path) -> None:
    found = tmp_path / "other" / "timm-0.0.1.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 0.0.1\n")
    node = nodes.start(0, PYTHONPATH=f"{tmp_path / 'other'}:{os.environ.get('PYTHONPATH', '')}")
    done = finetune(tmp_path, "--address", nodes.address)
    nodes.kill(node)
    assert done.returncode == 4, done.stderr
    assert "expected timm 1." in done.stderr and "found 0.0.1" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.glob("run*")) == []


def test_a_killed_node_s_job_goes_on_on_the_other(client: httpx.Client, nodes: Cluster) -> None:
    name = submit(client)
    wait_for(lambda: training(client, name, 3), 300)
    first = nodes.nodes[1]
    nodes.start(2)
    started = time.monotonic()
    nodes.kill(first)
    wait_for(lambda: any(m["text"].startswith("going on in epoch") for m in events(client, name, "message")), 300)
    print(f"on the other node after {time.monotonic() - started:.0f} s")
    finished(client, name)


def test_too_few_resources_are_waited_for_with_the_reason(nodes: Cluster, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path, "--address", nodes.address, "--nproc", "4"),
        cwd=tmp_path, env=os.environ | TOKEN, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = next(line for line in process.stderr if "waiting" in line)
    assert "4 CPUs are needed, the Ray cluster has 2" in said
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130


def command(folder: Path, *arguments: str) -> list[str]:
    colours(folder / "images")
    return [
        sys.executable, "-m", "tcnn", "finetune", "test_resnet", "--no-pretrained", "--data", "images", "--preset",
        "quick", "--val-split", "0.2", "--batch-size", "8", "--device", "cpu", "--engine", "ray", "--out", "run",
        *arguments,
    ]  # fmt: skip


def finetune(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(folder, *arguments), cwd=folder, env=os.environ | TOKEN, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
