"""docs/operations.md names every setting with its default and every metric with its labels, and no other."""

import contextlib
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from deployed import ROOT
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from tcnn.errors import DivergedError, DownloadError, EnvironmentFailure, StorageError
from tcnn_api.app import create_app
from tcnn_api.serve import DRAIN, REQUESTS
from tcnn_api.settings import ApiSettings
from tcnn_jobs.model.jobs import Claim, Kind, NewJob, Result
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.retry import error_code
from tcnn_jobs.store import Store

PAGE = (ROOT / "docs/operations.md").read_text()
OF_COMPOSE = {"TCNN_IMAGE", "TCNN_PUBLISHED_PORT", "TCNN_STOP_GRACE_PERIOD"}


def rows(header: str) -> list[list[str]]:
    """The rows of the tables whose first column has this name."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    found = [table.splitlines()[2:] for table in tables if table.startswith(f"| {header} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in found for line in table]


def test_settings() -> None:
    shown = {row[0].strip("`"): row[1].strip("`") for row in rows("setting")}
    assert len(shown) == len(rows("setting"))
    defaults = {f"TCNN_{name.upper()}": field.default for name, field in ApiSettings.model_fields.items()}
    assert shown == {name: "" if value in (None, ()) else str(value) for name, value in defaults.items()}


def test_no_other_setting_is_named_anywhere() -> None:
    known = {f"TCNN_{name.upper()}" for name in ApiSettings.model_fields} | OF_COMPOSE
    files = ["docs/operations.md", "docker-compose.yml", "Dockerfile", "deploy/tcnn.service", "deploy/tcnn.env.example"]
    for file in files:
        assert set(re.findall(r"\bTCNN_[A-Z_]+\b", (ROOT / file).read_text())) <= known, file


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, set[str]]]:
    """What a server with a finished job, a worker and a GPU tells Prometheus: metric → labels."""
    settings = ApiSettings(home=tmp_path_factory.mktemp("home"))
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        store = Store(settings.database)
        job = store.enqueue(NewJob(owner="local", kind=Kind.TRANSFORM, request={"model": "test_resnet"}))
        claimed = store.claim("worker")
        assert claimed is not None
        gpu = {"index": 0, "name": "GPU", "memory_used": 1, "memory_total": 2}
        store.heartbeat(WorkerInfo(name="worker", host="here", slots=1, version="0", gpus=(gpu,)), [])
        store.finish(Claim(job=job.id, worker="worker", number=claimed.claim), Result())
        client.get("/healthz")
        text = client.get("/metrics").text
        store.close()
    yield {
        family.name: {label for sample in family.samples for label in sample.labels} - {"le"}
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }


def test_metrics(labels: dict[str, set[str]]) -> None:
    shown = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows("metric")}
    assert shown == labels


def test_alerts_know_their_metrics(labels: dict[str, set[str]]) -> None:
    (group,) = yaml.safe_load((ROOT / "deploy/alerts.yml").read_text())["groups"]
    alerts = {rule["alert"]: re.findall(r"\btcnn_\w+", rule["expr"]) for rule in group["rules"]}
    for alert, names in alerts.items():
        assert {re.sub(r"_(count|sum|bucket)$", "", name) for name in names} <= set(labels), alert
    named = {row[0].strip("`"): re.findall(r"`(\w+)`", row[3]) for row in rows("metric")}
    for metric, beside in named.items():
        assert beside, metric
        for alert in beside:
            assert any(name.startswith(metric) for name in alerts[alert]), (metric, alert)
    assert set(alerts) - {"TcnnDown"} == {alert for beside in named.values() for alert in beside}


def test_failure_codes() -> None:
    table = " ".join(cell for row in rows("what fails") for cell in row)
    for error in (StorageError(), EnvironmentFailure(), DownloadError(), DivergedError()):
        assert f"`{error_code(error)}`" in table
    for code in re.findall(r"`failed`(?: with|,) `(\w+)`", table):
        assert code in {
            "storage", "environment", "download", "diverged", "worker_lost", "internal", "request", "quarantined",
            "timed_out", "no_progress", "out_of_memory", "source_failed",
        }  # fmt: skip


def test_time_to_stop_is_enough() -> None:
    (stated,) = re.findall(r"`TCNN_GRACE` \+ (\d+) s", PAGE)
    assert int(stated) > DRAIN + REQUESTS


def test_links() -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", PAGE)
    assert targets
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", PAGE, re.M)
    }
    for target in targets:
        place, _, anchor = target.partition("#")
        assert (ROOT / "docs" / place).exists(), target
        assert place or anchor in headings, target


@pytest.fixture(params=["TLS", "Many hosts"])
def nginx(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[int], int]]:
    """Starts nginx with an example of the page, before a server on this port; returns its own."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("NOT TESTED: the examples for nginx, for lack of it; apt-get install nginx")
    part = PAGE.partition(f"\n## {request.param}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```nginx\n(.*?)```", part, re.DOTALL)
    example = example if "server {" in example else f"server {{ listen 80; {example} }}"
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {tmp_path};" for name in names)
    started = []

    def start(port: int) -> int:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            own = int(listener.getsockname()[1])
        here = re.sub(r"(api\d|127\.0\.0\.1):8000", f"127.0.0.1:{port}", example)  # names are looked up
        here = here.replace("listen 80;", f"listen 127.0.0.1:{own};")
        file = tmp_path / "nginx.conf"
        file.write_text(f"daemon off; pid {tmp_path}/pid; events {{}} http {{ access_log off; {temporary} {here} }}")
        started.append(subprocess.Popen([program, "-c", str(file), "-e", str(tmp_path / "error.log")]))
        for _ in range(1000):
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", own)):
                break
            assert started[0].poll() is None, (tmp_path / "error.log").read_text()
            time.sleep(0.01)
        return own

    yield start
    for process in started:
        process.terminate()
        process.wait()


class Echo(BaseHTTPRequestHandler):
    """Answers with what a proxy has made of a request."""

    def do_GET(self) -> None:
        """Whom the request names as its host, and as its client."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{self.headers['Host']} {self.headers['X-Forwarded-For']}".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.mark.parametrize("path", ["/me", "/jobs/job_1/predict"])
def test_nginx_passes_on_who_asks(nginx: Callable[[int], int], path: str) -> None:
    """The last address is the client's own, whatever it says itself; and a stranger's name is no localhost."""
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            given = {"Host": "tcnn.example.org", "X-Forwarded-For": "192.0.2.1"}
            answer = httpx.get(f"http://127.0.0.1:{nginx(server.server_port)}{path}", headers=given)
        finally:
            server.shutdown()
    assert answer.text == "tcnn.example.org 192.0.2.1, 127.0.0.1"
