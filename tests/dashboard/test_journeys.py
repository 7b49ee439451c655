"""What people come for: convert, fine-tune, watch, download, cancel. One server, one worker, one story."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import HOSTILE, TINY, Open, archive, client_of, ended, sync_api
from houses import House
from serving import Server, hosted
from story import VERIFICATION

from tcnn_jobs.model.jobs import Artifact, Beat, Claim, Progress, Result
from tcnn_jobs.model.operation import WorkerInfo

expect = sync_api.expect
SLOW = 240_000
"""Milliseconds that a job may take where others use the processors, too; it takes seconds otherwise."""


@pytest.fixture(scope="module")
def client(working_server: Server) -> Iterator[httpx.Client]:
    with client_of(working_server) as client:
        yield client


@pytest.fixture(scope="module")
def converted(client: httpx.Client) -> str:
    """A job that has converted test_resnet with random weights: the one of the first journey, where that was made."""
    jobs = client.get("/jobs", params={"kind": "transform", "status": "succeeded"}).json()["data"]
    made = next((job["id"] for job in jobs if "finetune" not in job["request"]), None)
    if made is None:
        made = client.post("/transform", json={"model": "test_resnet", "pretrained": False}).json()["id"]
        assert ended(client, made)["status"] == "succeeded"
    return str(made)


@pytest.fixture(scope="module")
def trained(client: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that has fine-tuned a tiny model on a data set whose names are hostile."""
    data = archive(tmp_path_factory.mktemp("data"), ("blue", HOSTILE.replace("/", ""), "red"))
    made = client.post("/datasets", files={"file": (f"{HOSTILE}.zip", data)})
    assert made.status_code == 201, made.text
    training = {"dataset": made.json()["id"], "preset": "quick", "config": TINY}
    job = client.post("/transform", json={"model": "test_resnet", "pretrained": False, "finetune": training}).json()
    assert ended(client, job["id"])["status"] == "succeeded"
    return str(job["id"])


def ask_for_a_conversion(page: Any) -> None:
    """By the form, from the first page on; the job's page is there then."""
    page.get_by_role("link", name="Convert a model").first.click()
    model = page.get_by_role("combobox", name="Model")
    model.fill("test_resn")
    expect(page.get_by_role("option", name="test_resnet")).to_be_visible()
    model.press("ArrowDown")
    model.press("Enter")
    expect(model).to_have_value("test_resnet")
    expect(page.get_by_text(re.compile("^Converts .* of layer4;"))).to_be_visible()
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_role("button", name="Convert").click()
    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()


def watch_and_download(page: Any, client: httpx.Client, file: Path) -> None:
    """What is told without a reload when the job has ended, and what it made."""
    expect(page.locator(".titled .badge")).to_have_text("✓ Succeeded", timeout=SLOW)
    expect(page.get_by_text("computes the same function")).to_be_visible()
    job = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    asked = {"model": "test_resnet", "pretrained": False, "stride": "keep", "query_key": "normal", "content_heads": 4}
    assert job["request"] == asked
    drift = job["result"]["verification"]["drift"]["logits"]["relative"]
    expect(page.get_by_text(f"{100 * drift:.1f}".rstrip("0").rstrip(".") + "%")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="converted.safetensors").click()
    assert waiting.value.suggested_filename == f"test_resnet-{job['id'][4:10]}-converted.safetensors"
    waiting.value.save_as(file)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == job["result"]["checkpoint"]["sha256"]


def test_convert_watch_download(open_page: Open, tmp_path: Path) -> None:
    """With the test in the worker's place: it takes the job that the form made, tells of it and ends it."""
    house = House(tmp_path / "home")
    with hosted(house.home.root) as server, client_of(server) as client:
        page = open_page(server.url, accept_downloads=True)
        ask_for_a_conversion(page)
        taken = house.store.claim("worker")
        assert taken is not None
        claim = Claim(job=taken.id, worker="worker", number=taken.claim)
        info = WorkerInfo(name="worker", host="here", slots=1, version="1")
        house.store.heartbeat(info, [Beat(claim=claim, progress=Progress(phase="converting"))])
        expect(page.locator(".titled .badge")).to_have_text("◐ Running")
        file = house.home.attempt(claim.job, claim.number) / "converted.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(b"0" * 1000)
        kept = Artifact(name=file.name, path=f"{claim.job}/{claim.number}/{file.name}", size=1000,
                        sha256=hashlib.sha256(file.read_bytes()).hexdigest())  # fmt: skip
        house.store.finish(claim, Result(checkpoint=kept, files=(kept,), verification=VERIFICATION))
        watch_and_download(page, client, tmp_path / "model.safetensors")
    house.store.close()


@pytest.mark.slow
def test_convert_watch_download_with_a_worker(
    working_server: Server, client: httpx.Client, open_page: Open, tmp_path: Path
) -> None:
    page = open_page(working_server.url, accept_downloads=True)
    ask_for_a_conversion(page)
    watch_and_download(page, client, tmp_path / "model.safetensors")


@pytest.mark.slow
def test_fine_tune_with_an_upload_cancel_resume_delete(
    working_server: Server, client: httpx.Client, open_page: Open, converted: str, tmp_path: Path
) -> None:
    (tmp_path / "pets.zip").write_bytes(archive(tmp_path))
    page = open_page(f"{working_server.url}/#/finetune?job={converted}")
    expect(page.get_by_label("Job", exact=True)).to_have_value(converted)
    page.get_by_label("Upload a data set").set_input_files(tmp_path / "pets.zip")
    expect(page.locator("main").get_by_text("30 images of 3 classes")).to_be_visible()
    page.get_by_label("Epochs").fill("0")
    page.get_by_label("Batch size").fill("8")
    page.get_by_text("All other settings").click()
    settings = page.get_by_label("Settings, one NAME=VALUE per line")
    settings.fill("workers=0\nsize")
    page.get_by_role("button", name="Fine-tune").click()
    expect(settings).to_have_attribute("aria-invalid", "true")  # before anything was sent
    settings.fill("workers=0\nsize=64\nweight_decy=1")
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.locator("p.error:visible").first).to_contain_text("greater than or equal to 1")
    expect(page.get_by_label("Epochs")).to_be_focused()
    page.get_by_label("Epochs").fill("400")
    page.get_by_role("button", name="Fine-tune").click()
    expect(settings).to_have_attribute("aria-invalid", "true")
    expect(page.locator("p.error:visible")).to_contain_text("weight_decay")  # what was meant
    settings.fill("workers=0\nsize=64\nwarmup_epochs=1\nanneal_epochs=1\nlog_steps=1\ndevice=cpu\nanneal=warmup")
    page.get_by_role("button", name="Fine-tune").click()
    expect(page.locator(".titled .badge")).to_have_text("◐ Running", timeout=SLOW)
    # Curves come while it trains.
    expect(page.get_by_role("img", name=re.compile("^Loss: .*validation from"))).to_be_visible(timeout=SLOW)
    expect(page.locator(".standing")).to_contain_text("epoch")
    page.get_by_role("button", name="Cancel").press("Enter")
    expect(page.locator(".titled .badge")).to_have_text("⊘ Cancelled", timeout=SLOW)
    job = page.url.rpartition("/")[2]
    assert client.get(f"/jobs/{job}").json()["status"] == "cancelled"
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".titled .badge")).to_have_text(re.compile("Queued|Running"))
    expect(page.locator(".events")).to_contain_text("Resumed")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".titled .badge")).to_have_text("⊘ Cancelled", timeout=SLOW)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    assert client.get(f"/jobs/{job}").status_code == 404


@pytest.mark.slow
def test_curves_and_log_of_a_trained_job(working_server: Server, open_page: Open, trained: str) -> None:
    page = open_page(f"{working_server.url}/#/jobs/{trained}")
    for name in ("Loss", "Accuracy", "Temperature τ", "Gates", "Spans"):
        expect(page.get_by_role("img", name=re.compile(f"^{name}"))).to_be_visible()
    chart = page.get_by_role("group", name="Loss")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".reading")).to_contain_text("step ")
    page.get_by_text("Numbers by epoch").click()
    expect(page.get_by_role("region", name="Epochs").locator("tbody tr")).to_have_count(2)
    page.locator("summary", has_text="Log").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("done")


@pytest.mark.slow
def test_hostile_names_are_text(working_server: Server, open_page: Open, trained: str) -> None:
    page = open_page(working_server.url)
    expect(page.get_by_text(HOSTILE).first).to_be_visible()  # the data set's name, in the list
    page.goto(f"{working_server.url}/#/jobs/{trained}")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    page.goto(f"{working_server.url}/#/jobs/{trained}/attention")
    expect(page.locator(".explorer")).to_contain_text("onerror=document.title", timeout=SLOW)  # the class's
    assert page.locator("img[src=x]").count() == 0
    assert "owned" not in page.title()


@pytest.mark.slow
def test_attention_on_an_image_of_the_jobs_data(client: httpx.Client, trained: str) -> None:
    data = client.get(f"/jobs/{trained}").json()["request"]["finetune"]["dataset"]
    own = client.post(f"/jobs/{trained}/attention/images", params={"dataset": data, "number": 3})
    assert own.status_code == 201
    assert HOSTILE.replace("/", "") in {one["label"] for one in own.json()["says"]}


@pytest.mark.slow
def test_the_report(working_server: Server, client: httpx.Client, open_page: Open, trained: str) -> None:
    answer = client.get(f"/jobs/{trained}/report")  # makes it
    assert answer.status_code == 200, answer.text
    page = open_page(f"{working_server.url}/#/jobs/{trained}")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="The report").click()
    report: Any = opened.value
    report.wait_for_load_state()
    assert trained in report.title()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert str(working_server.home) not in answer.text
