"""Health, readiness, metrics; what a request gets while the database is locked; and the page's modules as one
script: what they import and export of each other stays what it is, and other forms are refused.
"""

import re
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tcnn.analysis.charts import bundle
from tcnn.analysis.charts.bundle import concatenate
from tcnn.errors import RequestError
from tcnn.version import __version__
from tcnn_api.app import create_app
from tcnn_api.deps import Service
from tcnn_api.routes.operation import pages
from tcnn_api.settings import load
from tcnn_jobs.artifacts.layout import MARK
from tcnn_jobs.model.jobs import TERMINAL, Kind, Status
from tcnn_jobs.model.operation import WorkerInfo
from tcnn_jobs.store import Store

Refusal = Callable[..., dict[str, Any]]
Make = Callable[..., Any]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[TestClient]:
    """A server of this test alone, which waits for its database for a moment only."""
    with TestClient(create_app(load(home=tmp_path / "home")), base_url="http://localhost") as client:
        parts: Service = client.app.state.service  # type: ignore[attr-defined]
        parts.store.wait = 0.3
        yield client


def parts_of(client: TestClient) -> Service:
    found: Service = client.app.state.service  # type: ignore[attr-defined]
    return found


def test_alive_and_ready(own: TestClient) -> None:
    assert own.get("/healthz").json() == {"status": "ok", "version": __version__}
    ready = own.get("/readyz").json()
    assert ready["status"] == "ready"
    assert ready["free_bytes"] > 0


def test_a_locked_database_is_503_and_nothing_is_lost(own: TestClient, refusal: Refusal) -> None:
    job = own.post("/transform", json={"model": "resnet18"}).json()["id"]
    other = sqlite3.connect(parts_of(own).settings.root / "tcnn.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    answer = own.post("/transform", json={"model": "resnet18"}, headers={"Idempotency-Key": "k"})
    assert "locked" in refusal(answer, 503)["detail"]
    assert str(parts_of(own).settings.root) not in answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert own.post(f"/jobs/{job}/cancel").status_code == 503
    assert own.get(f"/jobs/{job}").status_code == 200, "readers and the writer do not meet"
    assert own.get("/healthz").status_code == 200
    other.execute("ROLLBACK")
    other.close()
    assert own.post("/transform", json={"model": "resnet18"}, headers={"Idempotency-Key": "k"}).status_code == 202
    assert len(own.get("/jobs").json()["data"]) == 2


def test_a_locked_database_is_neither_ready_nor_up(own: TestClient, refusal: Refusal) -> None:
    """It can be read, and accepts no job."""
    other = sqlite3.connect(parts_of(own).settings.root / "tcnn.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "locked" in refusal(own.get("/readyz"), 503, "database")["detail"]
    assert samples(own)["tcnn_database_up", frozenset()] == 0
    other.close()


def test_a_home_that_was_moved_away_gets_no_job(own: TestClient, refusal: Refusal) -> None:
    """Nor is it made anew, so that it can be moved back."""
    root = parts_of(own).settings.root
    root.rename(root.with_name("elsewhere"))
    refusal(own.post("/transform", json={"model": "resnet18"}), 503)
    said = own.get("/readyz").json()
    assert [error["field"] for error in said["errors"]] == ["database", "home"]
    assert not root.exists()
    root.with_name("elsewhere").rename(root)
    assert own.post("/transform", json={"model": "resnet18"}).status_code == 202


def test_a_database_of_another_version_is_not_ready(own: TestClient, refusal: Refusal) -> None:
    with sqlite3.connect(parts_of(own).settings.root / "tcnn.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'other'")
        database.execute("UPDATE compatibility SET oldest = 'other'")
    assert "database" in refusal(own.get("/readyz"), 503, "database")["detail"]
    assert own.get("/readyz").headers["retry-after"]


def test_a_home_that_is_gone_or_full_is_not_ready(own: TestClient, tmp_path: Path, refusal: Refusal) -> None:
    home = parts_of(own).home
    home.jobs.rmdir()
    home.jobs.write_text("in the way")
    refusal(own.get("/readyz"), 503, "home")
    home.jobs.unlink()
    assert own.get("/readyz").status_code == 200
    crowded = create_app(load(home=tmp_path / "crowded", min_free_gb=1e9))
    with TestClient(crowded, base_url="http://localhost") as client:
        assert "1e+09 GB" in refusal(client.get("/readyz"), 503, "space")["detail"]


def test_a_home_of_another_database_is_not_ready(own: TestClient, refusal: Refusal) -> None:
    """Such as one that was mounted over the server's."""
    mark = parts_of(own).home.root / MARK
    mark.write_text("0123456789abcdef0123456789abcdef\n")
    assert "files of another database" in refusal(own.get("/readyz"), 503, "home")["detail"]
    mark.write_text(parts_of(own).store.identity())
    assert own.get("/readyz").status_code == 200


def test_a_store_that_does_not_answer_one_probe_is_asked_by_no_other(
    own: TestClient, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    """Probes come every few seconds: those that come meanwhile do not wait, too."""
    parts, answers = parts_of(own), threading.Event()
    monkeypatch.setattr(parts.artifacts, "check", lambda: answers.wait(60))
    monkeypatch.setattr(parts.pools.probe, "_seconds", 40.0)  # however slow the machine
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(own.get, "/readyz")
        while not parts.pools.probe.held(""):
            time.sleep(0.01)
        began = time.monotonic()
        refusal(own.get("/readyz"), 503, "artifacts")
        assert time.monotonic() - began < 20
        answers.set()
        assert first.result(30).status_code == 200


def samples(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_metrics_are_the_queues(alice: TestClient, service: Service, make: Make) -> None:
    make(Status.RUNNING, kind=Kind.FINETUNE)
    make(Status.SUCCEEDED)
    make(Status.SUCCEEDED)
    make(Status.FAILED)
    make()
    gpu = {"index": 0, "name": "H200", "memory_used": 10, "memory_total": 100}
    service.store.heartbeat(WorkerInfo(name="w1", host="here", slots=2, version="0.1", gpus=(gpu,)), [])
    found = samples(alice)

    def value(metric: str, **labels: str) -> float:
        return found[metric, frozenset(labels.items())]

    assert value("tcnn_database_up") == 1
    assert value("tcnn_jobs_queued", kind="transform") == 1
    assert value("tcnn_jobs_queued", kind="evaluate") == 0
    assert value("tcnn_jobs_held", kind="transform") == 0
    assert value("tcnn_jobs_running", kind="finetune") == 1
    assert value("tcnn_queue_oldest_seconds") > 0
    assert value("tcnn_job_seconds_count", kind="transform", outcome="succeeded") == 2
    assert value("tcnn_job_seconds_count", kind="transform", outcome="failed") == 1
    assert value("tcnn_job_seconds_sum", kind="transform", outcome="succeeded") > 0
    assert 0 <= value("tcnn_worker_heartbeat_age_seconds", worker="w1", host="here", version="0.1") < 60
    assert value("tcnn_worker_slots", worker="w1") == 2
    assert value("tcnn_slots_busy", worker="w1") == value("tcnn_jobs_at_worker_waiting", worker="w1") == 0
    assert {
        (dict(labels)["kind"], dict(labels)["outcome"]) for name, labels in found if name == "tcnn_job_seconds_count"
    } == {(kind, outcome) for kind in Kind for outcome in TERMINAL}, "a first failure is an increase, from 0"
    assert value("tcnn_job_seconds_count", kind="finetune", outcome="failed") == 0
    assert value("tcnn_gpu_memory_used_bytes", worker="w1", gpu="0", name="H200") == 10
    assert value("tcnn_gpu_memory_total_bytes", worker="w1", gpu="0", name="H200") == 100


def test_metrics_of_requests_have_few_labels(alice: TestClient, make: Make) -> None:
    for _ in range(3):
        alice.get(f"/jobs/{make().id}")
    alice.get("/no/such/page/1")
    alice.get("/no/such/page/2")
    alice.request("BREW", "/jobs")
    counts = {
        (dict(labels)["method"], dict(labels)["route"], dict(labels)["status"]): value
        for (name, labels), value in samples(alice).items()
        if name == "tcnn_http_request_seconds_count"
    }
    assert counts["GET", "/jobs/{id}", "200"] == 3
    assert counts["GET", "unmatched", "404"] == 2
    assert [key for key in counts if key[0] == "other"]
    assert not [key for key in counts if "job_" in key[1]]


def test_metrics_without_a_database(own: TestClient) -> None:
    parts = parts_of(own)
    parts.store._engine.dispose()
    (parts.settings.root / "tcnn.db").rename(parts.settings.root / "moved.db")
    (parts.settings.root / "tcnn.db").mkdir()
    assert samples(own)["tcnn_database_up", frozenset()] == 0
    (parts.settings.root / "tcnn.db").rmdir()


def test_settings_that_cannot_be_read_are_told_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCNN_PORT", "http")
    with pytest.raises(RequestError, match=r"TCNN_PORT: .*'http'"):
        load()
    monkeypatch.setenv("TCNN_PORT", "1234")
    monkeypatch.setenv("TCNN_DATASET_ROOTS", "/data/a, /data/b,")
    found = load(host="::1")
    assert (found.port, found.host) == (1234, "::1")
    assert found.dataset_roots == (Path("/data/a"), Path("/data/b"))


def test_the_store_is_brought_up_to_date_at_the_start(tmp_path: Path) -> None:
    with TestClient(create_app(load(home=tmp_path / "new")), base_url="http://localhost"):
        store = Store(f"sqlite:///{tmp_path / 'new' / 'tcnn.db'}")
        store.check()
        store.close()
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0, "nobody else can read what tenants sent"


MODULES = {
    "app.js": 'import * as job from "./job/job.js";\nimport { NAME as called, shout } from "./parts.js";\n'
    "globalThis.told = [job.show(), called, shout(called), [...job.count()]];\n",
    "job/job.js": 'import { shout } from "../parts.js";\nexport { NAME } from "../parts.js";\n'
    'const hidden = "a job";\nexport const show = () => shout(hidden);\nexport function* count() { yield 1; }\n'
    'export const worker = () => new URL("../server/shared.js", import.meta.url);\n',
    "parts.js": 'const hidden = "!";\nexport const NAME = "tcnn";\n'
    "export function shout(text) { return text + hidden; }\n",
}


def test_names_meet_as_between_modules() -> None:
    script = concatenate(MODULES, "app.js")
    assert re.findall(r"^// (.*)$", script, re.MULTILINE) == ["parts.js", "job/job.js", "app.js"], "each once, in order"
    assert 'new URL("./server/shared.js", import.meta.url)' in script, "beside the script, not beside the module"
    if node := shutil.which("node"):
        program = script + "console.log(JSON.stringify(globalThis.told));\n"
        done = subprocess.run([node, "--input-type=module"], input=program, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == '["a job!","tcnn","tcnn!",[1]]'


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("export default 1;", "found 'export default 1;'"),
        ("export let count = 0;", "found 'export let count = 0;'"),
        ('import { a,\n  b } from "./parts.js";', "found 'import { a,'"),
        ('import "./parts.js";', "found 'import \"./parts.js\";'"),
        ("const here = import.meta.url;", "found 'const here = import.meta.url;'"),
        ('import { a } from "./none.js";', "app.js → none.js: there is no such module"),
        ('import { a } from "./job/job.js";', "app.js → job/job.js → app.js: a circle"),
    ],
)
def test_what_is_not_known_is_refused(source: str, said: str) -> None:
    modules = {**MODULES, "app.js": source, "job/job.js": 'import { b } from "../app.js";\nexport const a = b;\n'}
    with pytest.raises(ValueError, match=re.escape(said)):
        concatenate(modules, "app.js")


def test_the_dashboard_and_reports_have_each_of_their_modules_once() -> None:
    page = pages.assets()["app.js"].content.decode()
    told = re.findall(r"^// ([\w/-]+\.js)$", page, re.MULTILINE)
    alone = {"docs.js", "theme.js", *(f"server/{name}.js" for name in ("shared",))}
    assert sorted(told) == sorted({name for name in pages.assets() if name.endswith(".js")} - alone)
    assert re.findall(r"^// ([\w/-]+\.js)$", bundle.script(), re.MULTILINE)[-1] == "report.js"
