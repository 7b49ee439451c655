"""What people come for: convert, fine-tune, watch, download, cancel, look at attention. One server, one story."""

import base64
import hashlib
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import torch
from browsing import HOSTILE, LOOKS, TINY, Open, archive, client_of, ended, inaccessible, sync_api
from PIL import Image
from serving import Server
from tiny_runs import colours

from tcnn.cli.main import main
from tcnn.errors import RequestError
from tcnn.evaluation.predict import predict
from tcnn.workflows.fold_file import fold_to_file
from tcnn.workflows.pipeline import open_source
from tcnn_jobs.client import Client
from tcnn_jobs.client.refusals import RefusedError

expect = sync_api.expect
SLOW = 240_000
"""Milliseconds that a job may take where others use the processors, too; it takes seconds otherwise."""
NUMBER = re.compile(r"most at row (\d+), column (\d+) of the map, (\d+(?:\.\d+)?)")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as client:
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


def test_convert_watch_download(server: Server, client: httpx.Client, open_page: Open, tmp_path: Path) -> None:
    page = open_page(server.url, accept_downloads=True)
    page.get_by_role("link", name="Convert a model").first.click()
    model = page.get_by_role("combobox", name="Model")
    model.fill("test_resn")
    expect(page.get_by_role("option", name="test_resnet")).to_be_visible()
    model.press("ArrowDown")
    model.press("Enter")
    expect(model).to_have_value("test_resnet")
    expect(page.get_by_text("of layer4 are converted")).to_be_visible()
    page.get_by_label("Pretrained weights").uncheck()
    page.get_by_role("button", name="Convert").click()

    expect(page.get_by_role("heading", name="test_resnet")).to_be_visible()
    expect(page.locator(".titled .badge")).to_have_text("✓ Succeeded", timeout=SLOW)  # no reload: the stream told
    expect(page.get_by_text("computes the same function")).to_be_visible()
    job = client.get(f"/jobs/{page.url.rpartition('/')[2]}").json()
    assert job["request"] == {"model": "test_resnet", "pretrained": False, "stride": "keep", "query_key": "normal"}
    drift = job["result"]["verification"]["drift"]["logits"]["relative"]
    expect(page.get_by_text(f"{100 * drift:.1f}".rstrip("0").rstrip(".") + "%")).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("link", name="converted.safetensors").click()
    waiting.value.save_as(tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == job["result"]["checkpoint"]["sha256"]


@pytest.mark.slow
def test_fine_tune_with_an_upload_cancel_resume_delete(
    server: Server, client: httpx.Client, open_page: Open, converted: str, tmp_path: Path
) -> None:
    (tmp_path / "pets.zip").write_bytes(archive(tmp_path))
    page = open_page(f"{server.url}/#/finetune?job={converted}")
    expect(page.get_by_label("Job", exact=True)).to_have_value(converted)
    page.get_by_label("Upload a data set").set_input_files(tmp_path / "pets.zip")
    expect(page.get_by_text("30 images of 3 classes")).to_be_visible()
    page.get_by_label("Epochs").fill("0")
    page.get_by_label("Batch size").fill("8")
    page.get_by_text("All other settings").click()
    settings = page.get_by_label("Settings, NAME=VALUE")
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
    settings.fill("workers=0\nsize=64\nwarmup_epochs=1\nanneal_epochs=1\nlog_steps=1\ndevice=cpu")
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
def test_curves_and_log_of_a_trained_job(server: Server, open_page: Open, trained: str) -> None:
    page = open_page(f"{server.url}/#/jobs/{trained}")
    for name in ("Loss", "Accuracy", "Temperature τ", "Gates", "Spans"):
        expect(page.get_by_role("img", name=re.compile(f"^{name}"))).to_be_visible()
    chart = page.get_by_role("group", name="Loss")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(chart.locator(".reading")).to_contain_text("step ")
    page.get_by_text("The numbers, epoch by epoch").click()
    expect(page.get_by_role("region", name="Epochs").locator("tbody tr")).to_have_count(2)
    page.locator("summary", has_text="Log").click()
    expect(page.get_by_role("region", name="Log")).to_contain_text("done")


@pytest.mark.slow
def test_hostile_names_are_text(server: Server, open_page: Open, trained: str) -> None:
    page = open_page(server.url)
    expect(page.get_by_text(HOSTILE).first).to_be_visible()  # the data set's name, in the list
    page.goto(f"{server.url}/#/jobs/{trained}")
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    page.goto(f"{server.url}/#/jobs/{trained}/attention")
    expect(page.locator(".explorer")).to_contain_text("onerror=document.title", timeout=SLOW)  # the class's
    assert page.locator("img[src=x]").count() == 0
    assert "owned" not in page.title()


def test_attention_of_a_converted_model(server: Server, client: httpx.Client, open_page: Open, converted: str) -> None:
    page = open_page(f"{server.url}/#/jobs/{converted}/attention")
    tiles = page.locator("[data-layer='layer4.0.conv2'] .tile")
    expect(tiles).to_have_count(9, timeout=SLOW)
    expect(tiles.first).to_have_attribute("aria-label", NUMBER)
    stage = page.get_by_role("application")
    stage.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator("#place")).to_contain_text("row 2 of 5, column 3 of 5")
    stage.click(position={"x": 3, "y": 3})
    expect(page.locator("#place")).to_contain_text("row 1 of 5, column 1 of 5")
    # The numbers behind the picture: every head looks at its own tap of the kernel, and nowhere else.
    expected = [(1 + row, 1 + column, 100.0) for row in (-1, 0, 1) for column in (-1, 0, 1)]
    for tile, place in zip(tiles.all(), expected, strict=True):
        found = NUMBER.search(tile.get_attribute("aria-label"))
        assert found and tuple(float(one) for one in found.groups()) == place
    page.get_by_text("Content", exact=True).click()
    expect(tiles.first).not_to_have_attribute("aria-label", re.compile("100%"))
    tiles.nth(4).click()
    expect(tiles.nth(4)).to_have_attribute("aria-pressed", "true")
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.set_viewport_size({"width": 1280, "height": 860})
    page.get_by_label("Your own picture").set_input_files(
        files=[{"name": "x.png", "mimeType": "image/png", "buffer": b"no picture"}]
    )
    expect(page.get_by_role("alert")).to_contain_text("cannot be read as an image")


@pytest.mark.slow
def test_try_an_image_and_go_on_to_the_explorer(
    server: Server, client: httpx.Client, open_page: Open, converted: str, tmp_path: Path
) -> None:
    """Chosen, dropped and pasted; the answers are the server's, and the explorer opens with the same image."""
    image = colours(tmp_path) / "red" / "0.png"
    page = open_page(f"{server.url}/#/jobs/{converted}")
    card = page.get_by_role("region", name="Try it")
    card.get_by_label("An image").set_input_files(image)
    expect(card.get_by_role("status")).to_contain_text("Both say", timeout=SLOW)  # nothing but converted
    expect(card.locator(".answer h3")).to_have_text(["CNN, before", "T-CNN"])
    expect(card.locator(".cnn .guess")).to_have_count(5)
    assert card.locator(".cnn li").all_inner_texts() == card.locator(".t_cnn li").all_inner_texts()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)
    page.set_viewport_size({"width": 1280, "height": 860})
    moved = """([card, kind, name, type, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(bytes), (one) => one.charCodeAt(0))], name, {type}));
        const event = kind === "drop" ? new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true})
            : new ClipboardEvent(kind, {clipboardData: data, bubbles: true, cancelable: true});
        card.dispatchEvent(event);
    }"""
    packed = base64.b64encode(b"no picture").decode()
    page.evaluate(moved, [card.element_handle(), "drop", "x.png", "image/png", packed])
    expect(card.get_by_role("alert")).to_contain_text("cannot be read as an image")
    expect(card.locator(".answer")).to_have_count(0)
    page.evaluate(moved, [card.element_handle(), "paste", "0.png", "image/png",
                          base64.b64encode(image.read_bytes()).decode()])  # fmt: skip
    expect(card.get_by_role("status")).to_contain_text("Both say")
    expect(card.get_by_role("alert")).to_have_count(0)
    with page.expect_response(re.compile("attention/images")) as opened:
        card.get_by_role("link", name="Explore this image").click()
    seen = client.post(f"/jobs/{converted}/attention/images", content=image.read_bytes()).json()
    assert opened.value.json()["picture"] == seen["picture"]
    expect(page.locator(".tile").first).to_have_attribute("aria-label", NUMBER)


def test_predict_answers_what_the_command_does(
    client: httpx.Client, converted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the job's checkpoint and by the CNN that it was made from, which is had from nothing else here."""
    image = colours(tmp_path) / "red" / "0.png"
    files = {"t_cnn": tmp_path / "t.safetensors", "cnn": tmp_path / "cnn.safetensors"}
    files["t_cnn"].write_bytes(client.get(f"/jobs/{converted}/checkpoint").content)
    fold_to_file(files["t_cnn"], files["cnn"])
    given = ["predict", str(files["t_cnn"]), str(image), "--compare", str(files["cnn"]), "--device", "cpu", "--json"]
    with pytest.raises(SystemExit) as ended_with:
        main(given)
    assert not ended_with.value.code
    command = {
        Path(one["model"]).name: one["images"][0]["guesses"] for one in json.loads(capsys.readouterr().out)["models"]
    }
    source = predict(open_source("test_resnet", False, None, 0, torch.device("cpu"))[0], [image])[0].guesses
    assert [one["index"] for one in command["cnn.safetensors"]] == [one.index for one in source]
    with Client(str(client.base_url)) as own:
        answer = own.predict(converted, image)
        assert [one["role"] for one in own.predict(converted, image.read_bytes(), top=2)["models"]] == ["cnn", "t_cnn"]
    assert answer["same_first_guess"]
    for one in answer["models"]:
        expected = command[files[one["role"]].name]
        assert [(guess["index"], guess["name"]) for guess in one["guesses"]] == [
            (guess["index"], guess["name"]) for guess in expected
        ]
        found = [guess["probability"] for guess in one["guesses"]]
        assert found == pytest.approx([guess["probability"] for guess in expected], rel=1e-5)
    for name, odd in odd_pictures().items():
        assert client.post(f"/jobs/{converted}/predict", content=odd).status_code == 200, name
    for content in (b"", b"GIF89a", b"\x80\x04cposix\nsystem\n", image.read_bytes()[:60]):
        refused = client.post(f"/jobs/{converted}/predict", content=content)
        assert refused.status_code == 422 and "\n" not in refused.json()["detail"], content
    assert client.post(f"/jobs/{converted}/predict", content=b"x" * (33 << 20)).status_code == 413
    assert client.post(f"/jobs/{converted}/predict?top=0", content=b"x").status_code == 422


def test_what_the_attention_routes_answer(
    client: httpx.Client, converted: str, tmp_path: Path, record_property: Any
) -> None:
    file = colours(tmp_path) / "red" / "0.png"
    picture = file.read_bytes()
    look = client.post(f"/jobs/{converted}/attention/images", content=picture)
    assert look.status_code == 201, look.text
    found = look.json()
    assert [layer["kernel"] for layer in found["layers"]] == [[3, 3]] * len(found["layers"])
    answer = client.get(f"/jobs/{converted}/attention/{found['id']}", params={"y": 0.5, "x": 0.5}).json()
    for layer in answer["layers"]:
        for part in ("content", "positional"):
            maps = numpy.frombuffer(base64.b64decode(layer[part]), "<f4").reshape(9, *layer["size"])
            assert numpy.allclose(maps.sum((1, 2)), 1, atol=1e-5)
        row, column = layer["query"]
        taps = [(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        assert [numpy.unravel_index(one.argmax(), one.shape) for one in maps] == taps
        assert numpy.allclose(maps.max((1, 2)), 1)
    began = time.monotonic()
    for step in range(10):
        client.get(f"/jobs/{converted}/attention/{found['id']}", params={"y": step / 10, "x": 0.3})
    record_property("click_seconds", round((time.monotonic() - began) / 10, 4))  # a busy machine is no mistake
    for name, picture in odd_pictures().items():
        assert client.post(f"/jobs/{converted}/attention/images", content=picture).status_code == 201, name
    for content, params in ((b"", {}), (b"GIF89a", {}), (b"", {"dataset": "ds_000000000000000000000000"})):
        assert client.post(f"/jobs/{converted}/attention/images", content=content, params=params).status_code == 422
    assert client.get(f"/jobs/{converted}/attention/img_0000000000000000").status_code == 404
    with Client(str(client.base_url)) as own:
        image = own.look(converted, file)["id"]
        own_answer = own.attention(converted, image, 0.2, 0.7, temperature=1.0)
        asked = {"y": 0.2, "x": 0.7, "temperature": 1.0}
        assert own_answer == client.get(f"/jobs/{converted}/attention/{image}", params=asked).json()
        assert {layer["temperature"] for layer in own_answer["layers"]} == {1.0}
        with pytest.raises(RefusedError, match="no such checkpoint"):
            own.attention(converted, image, checkpoint="last")
        with pytest.raises(RefusedError, match="no uploaded data set"):
            own.look(converted, dataset="ds_" + "0" * 24, file="red/0.png")
        with pytest.raises(RequestError, match="an image, or a dataset"):
            own.look(converted)
    assert client.post(f"/jobs/{converted}/attention/images", content=b"x" * (33 << 20)).status_code == 413


@pytest.mark.slow
def test_attention_on_an_image_of_the_jobs_data(client: httpx.Client, trained: str) -> None:
    data = client.get(f"/jobs/{trained}").json()["request"]["finetune"]["dataset"]
    own = client.post(f"/jobs/{trained}/attention/images", params={"dataset": data, "number": 3})
    assert own.status_code == 201
    assert HOSTILE.replace("/", "") in {one["label"] for one in own.json()["says"]}


def odd_pictures() -> dict[str, bytes]:
    """What cameras, printers and the web make."""

    def written(image: Image.Image, kind: str, **options: Any) -> bytes:
        out = io.BytesIO()
        image.save(out, kind, **options)
        return out.getvalue()

    small = Image.new("RGB", (40, 30), "red")
    return {
        "20 megapixels": written(Image.new("RGB", (5000, 4000), "blue"), "JPEG"),
        "CMYK": written(Image.new("CMYK", (40, 30)), "JPEG"),
        "animated": written(small, "GIF", save_all=True, append_images=[Image.new("RGB", (40, 30), "blue")]),
        "transparent": written(Image.new("RGBA", (40, 30)), "PNG"),
        "16 bits": written(Image.new("I;16", (40, 30)), "PNG"),
        "one pixel": written(Image.new("L", (1, 1)), "PNG"),
    }


@pytest.mark.slow
def test_the_report(server: Server, client: httpx.Client, open_page: Open, trained: str) -> None:
    answer = client.get(f"/jobs/{trained}/report")  # makes it
    assert answer.status_code == 200, answer.text
    page = open_page(f"{server.url}/#/jobs/{trained}")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="The report").click()
    report: Any = opened.value
    report.wait_for_load_state()
    assert trained in report.title()
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert str(server.home) not in answer.text
