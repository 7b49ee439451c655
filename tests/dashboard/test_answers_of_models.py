"""What the model of a finished job answers, on its pages and over HTTP: attention maps, and predictions."""

import base64
import functools
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
from answering import Here, converted_in
from browsing import LOOKS, Open, client_of, inaccessible, sync_api
from houses import House
from PIL import Image
from serving import Server, hosted
from tiny_runs import colours

from tcnn.cli.main import main
from tcnn.errors import RequestError
from tcnn.evaluation.predict import predict
from tcnn.workflows.fold_file import fold_to_file
from tcnn.workflows.pipeline import open_source
from tcnn_jobs.client import Client
from tcnn_jobs.client.refusals import RefusedError
from tcnn_jobs.confined import explorers

expect = sync_api.expect
SLOW = 240_000
"""Milliseconds that a model may take to be loaded where others use the processors, too; it takes seconds otherwise."""
NUMBER = re.compile(r"peak at row (\d+), column (\d+) of the map, (\d+(?:\.\d+)?)")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("answers") / "home")
    yield house
    house.store.close()


@pytest.fixture(scope="module")
def converted(house: House) -> str:
    return converted_in(house)


@pytest.fixture(scope="module", params=["here", pytest.param("process", marks=pytest.mark.slow)])
def server(house: House, request: pytest.FixtureRequest) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, hosted(house.home.root) as running:
        if request.param == "here":
            patch.setattr(explorers, "_Child", Here)
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with client_of(server) as client:
        yield client


@functools.cache
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


def test_attention_of_a_converted_model(server: Server, client: httpx.Client, open_page: Open, converted: str) -> None:
    page = open_page(f"{server.url}/#/jobs/{converted}/attention")
    tiles = page.locator("[data-layer='layer4.0.conv2'] .tile")
    expect(tiles).to_have_count(9, timeout=SLOW)
    expect(tiles.first).to_have_attribute("aria-label", NUMBER)
    stage = page.get_by_role("application")
    stage.focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator("#place")).to_contain_text("row 1 of 5, column 2 of 5")  # after all three
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
    for name in ("20 megapixels", "16 bits"):  # the others are looked at below
        assert client.post(f"/jobs/{converted}/predict", content=odd_pictures()[name]).status_code == 200, name
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
    for step in range(4):
        client.get(f"/jobs/{converted}/attention/{found['id']}", params={"y": step / 4, "x": 0.3})
    record_property("click_seconds", round((time.monotonic() - began) / 4, 4))  # a busy machine is no mistake
    for name, picture in odd_pictures().items():
        assert client.post(f"/jobs/{converted}/attention/images", content=picture).status_code == 201, name
    for content, params in ((b"", {}), (b"GIF89a", {}), (b"", {"dataset": "ds_000000000000000000000000"})):
        assert client.post(f"/jobs/{converted}/attention/images", content=content, params=params).status_code == 422
    assert client.get(f"/jobs/{converted}/attention/img_0000000000000000").status_code == 404
    place = {"y": 0.25, "x": 0.75, "temperature": 2.0}
    kept = client.post(f"/jobs/{converted}/attention/images", content=file.read_bytes()).json()
    assert kept["attention"] is None
    maps = client.get(f"/jobs/{converted}/attention/{kept['id']}", params=place).json()
    at_once = client.post(
        f"/jobs/{converted}/attention/images", content=file.read_bytes(), params={"maps": True, **place}
    )
    assert at_once.json()["attention"] == maps
    assert client.get(f"/jobs/{converted}/attention/{at_once.json()['id']}").status_code == 404  # it is not kept
    other = {"maps": True, "checkpoint": "last"}
    refused = client.post(f"/jobs/{converted}/attention/images", content=file.read_bytes(), params=other)
    assert refused.status_code == 422 and "no such checkpoint" in refused.json()["detail"]
    idle = (({"y": 0.2}, "maps=true"), ({"temperature": 2.0}, "maps=true"), ({"file": "red/0.png"}, "dataset"))
    for params, needed in idle:
        refused = client.post(f"/jobs/{converted}/attention/images", content=file.read_bytes(), params=params)
        assert refused.status_code == 422 and f"expected {needed} beside it" in refused.json()["detail"]
    with Client(str(client.base_url)) as own:
        assert own.look(converted, file, at=(0.25, 0.75), temperature=2.0)["attention"] == maps
        with pytest.raises(RefusedError, match="temperature: expected maps=true beside it"):
            own.look(converted, file, temperature=2.0)
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
