"""The page of `tcnn export --explorer`: what is written and refused, and in Chromium the numbers that Python has."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pytest
import tiny_runs
import torch
from browsing import ALL_LOOKS, HOSTILE, LOOKS, Open, inaccessible, sync_api
from PIL import Image
from sampled import sampled
from served_explorer import CFG, SIZE, Beside, compared, recorded, served, t_cnn
from timm.data import create_transform
from torch import nn

import tcnn as library
from tcnn.analysis.attention import encode
from tcnn.data.decode import decode
from tcnn.data.transforms import middle_of_strip
from tcnn.errors import OutputError, RequestError, VerificationError
from tcnn.evaluation.evaluate import transform_for
from tcnn.explorer import network
from tcnn.explorer.export import check_network, export_explorer

SETTINGS = [
    ((24, 20), 0.875, "center", "bicubic"), ((32, 32), 0.9, "center", "bilinear"), ((31, 40), 1.0, "squash", "lanczos"),
    ((24, 24), 0.8, "border", "bicubic"), ((20, 28), 0.95, "border", "bilinear"), ((33, 33), 1.0, "center", "lanczos"),
]  # fmt: skip
"""(height, width), crop_pct, crop_mode and interpolation."""
SIDES = ((61, 47), (300, 200), (9, 14), (24, 500), (40, 30))
"""Images' (width, height): larger and smaller than what the network takes, and a strip."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model, folder = t_cnn("window:4"), tmp_path_factory.mktemp("page") / "page"
    model.pretrained_cfg = CFG  # type: ignore[assignment]
    report = export_explorer(model, folder, size=SIZE)
    assert report.layers == ("last",) and report.size == SIZE
    assert report.error is not None and max(report.error, report.attention_error) <= report.tolerance == 1e-5
    assert report.files == {file.name: file.stat().st_size for file in folder.iterdir()}
    return model, folder


def test_the_files_give_the_maps_of_inspect(written: tuple[nn.Module, Path]) -> None:
    """By what the page does with them: a query's row of the content, and the product of two factors."""
    model, folder = written
    told = json.loads((folder / "model.json").read_text())
    x = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(2))
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    found = dict(
        zip((output.name for output in session.get_outputs()), session.run(None, {"images": x.numpy()}), strict=True)
    )
    encoded = encode(model, x)
    numpy.testing.assert_allclose(found["logits"], encoded.output.detach(), rtol=1e-4, atol=1e-5)
    layer = told["layers"][0]
    rows, columns = (numpy.frombuffer(base64.b64decode(layer[name]), "<f4") for name in ("rows", "columns"))
    (down, across), (height, width) = layer["queries"], layer["size"]
    for y, x_share in ((0.0, 0.0), (0.5, 0.3), (0.999, 0.9)):
        (expected,) = encoded.at((y, x_share))
        i, j = (
            (place - first) // stride
            for place, first, stride in zip(expected.query, layer["first"], layer["stride"], strict=True)
        )
        content = found["content_0"].reshape(9, down, across, height, width)[:, i, j]
        positional = rows.reshape(9, down, height)[:, i, :, None] * columns.reshape(9, across, width)[:, j, None]
        gate = numpy.array([one or 0 for one in layer["gate"]])[:, None, None]
        numpy.testing.assert_allclose(
            (1 - gate) * content + gate * positional, expected.combined[0].detach(), atol=1e-6
        )
        assert ((content == 0) == (expected.content[0].detach() == 0).numpy()).all()  # the window's edge


def test_nothing_comes_from_elsewhere(written: tuple[nn.Module, Path]) -> None:
    """No address of another server in a file that a browser reads, and a policy that would not let it be asked."""
    _, folder = written
    page = (folder / "index.html").read_text()
    assert "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'" in page and "<style" not in page
    for file in folder.iterdir():
        if file.suffix in (".html", ".css", ".js") and file.name != "ort.js":
            text = file.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "://" not in text, file.name
    assert (folder / "LICENSES.txt").read_text().count("MIT License") >= 1
    version = (folder / "ort.js").read_text()[:200].partition("ONNX Runtime Web v")[2].partition("\n")[0]
    assert f"ONNX Runtime Web {version}:" in (folder / "LICENSES.txt").read_text()


def test_a_folder_that_exists(written: tuple[nn.Module, Path], tmp_path: Path) -> None:
    model, folder = written
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        export_explorer(model, folder, size=SIZE)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="expected a folder or nothing, found a file"):
        export_explorer(model, tmp_path / "file", size=SIZE, force=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_what_has_no_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"TwoConvs has no GPSA layers.*convert it first: tcnn convert"):
        export_explorer(tiny_runs.TwoConvs(), tmp_path / "page")
    fused = library.fuse(t_cnn())
    with pytest.raises(RequestError, match="was fused, for inference only; explore the model that it was fused from"):
        export_explorer(fused, tmp_path / "page")
    monkeypatch.setattr(network, "MOST_BYTES", 100)
    with pytest.raises(RequestError, match=r"the attention maps of one image take .* choose a smaller --size"):
        export_explorer(t_cnn(), tmp_path / "page", size=SIZE)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_differs_is_not_written(written: tuple[nn.Module, Path]) -> None:
    _, folder = written
    other = network.WithAttention(t_cnn())  # whose content is not cut into windows
    with pytest.raises(
        VerificationError, match=r"the exported network's .* differ from PyTorch's by .*nothing was written"
    ):
        check_network(other, folder / "model.onnx", (1, 3, *SIZE), 1e-5)


def test_ways_to_resize(tmp_path: Path) -> None:
    model = t_cnn()
    model.pretrained_cfg = {"interpolation": "nearest", "input_size": (3, *SIZE)}  # type: ignore[assignment]
    with pytest.raises(RequestError, match=r"the page resizes by bilinear, bicubic, lanczos, found 'nearest'"):
        export_explorer(model, tmp_path / "page")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    noise = numpy.random.default_rng(1)
    kinds = ("png", "png", "webp", "png", "jpeg")
    files = [folder / f"{width}-{height}.{kind}" for (width, height), kind in zip(SIDES, kinds, strict=True)]
    turned = Image.Exif()
    turned[0x0112] = 6  # as by a camera that was held upright
    for file, (width, height) in zip(files, SIDES, strict=True):
        Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=numpy.uint8)).save(
            file, exif=turned, lossless=True
        )
    return files


@pytest.fixture(scope="module")
def url(written: tuple[nn.Module, Path]) -> Iterator[str]:
    with served(written[1]) as found:
        yield found


PREPARE = """async ([data, settings]) => {
  const { prepare } = await import("./prepare.js");
  return Array.from((await prepare(await (await fetch(data)).blob(), settings)).tensor);
}"""


def data_url(file: Path) -> str:
    return f"data:image/{file.suffix[1:]};base64,{base64.b64encode(file.read_bytes()).decode()}"


@pytest.mark.parametrize("part", sampled(range(6), [0]))
def test_images_are_prepared_as_timm_does_it(url: str, open_page: Open, images: list[Path], part: int) -> None:
    """Bit for bit: what the network takes differs by float32's own rounding alone. A sixth of all pairs at a time."""
    page = open_page(f"{url}LICENSES.txt")  # beside the modules: the page itself would load its network
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    for number, (size, crop_pct, mode, interpolation) in enumerate(SETTINGS):
        for channels in (3, 1) if size == SETTINGS[0][0] else (3,):
            told: dict[str, Any] = {"mean": mean[:channels], "std": std[:channels], "crop_pct": crop_pct,
                                    "crop_mode": mode, "interpolation": interpolation}  # fmt: skip
            transform: Any = create_transform(input_size=(channels, *size), is_training=False, **told)
            for file in [file for at, file in enumerate(images) if (at + number) % 6 == part]:
                image = middle_of_strip(decode(Image.open(file), "RGB" if channels == 3 else "L"))
                expected = transform(image).flatten().numpy()
                found = page.evaluate(PREPARE, [data_url(file), {**told, "size": size}])
                assert numpy.abs(found - expected).max() < 1e-5, (size, mode, interpolation, channels, file.name)


@pytest.mark.slow  # by the next tests the files have it
@pytest.mark.parametrize("position", ["quadratic", "relative-content"])
def test_positions_that_the_network_tells_are_shown(
    open_page: Open, images: list[Path], tmp_path: Path, position: str
) -> None:
    """What the page makes of them; that they are exported the next test shows."""
    model = Beside(t_cnn(position=position, content_heads=1)).eval()
    recorded(model, images[0], tmp_path / "page")
    with served(tmp_path / "page") as url:
        compared(model, open_page(f"{url}LICENSES.txt"), images[:1])


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("quadratic",), ("quadratic", "relative-content")])
def test_positions_that_are_no_products_come_out_of_the_network(
    open_page: Open, images: list[Path], tmp_path: Path, kinds: tuple[str, ...]
) -> None:
    """A map for all images, and one for each; the content head beside the taps has none."""
    model = Beside(*(t_cnn(position=position, content_heads=1) for position in kinds)).eval()
    export_explorer(model, tmp_path / "page", size=SIZE)
    layers = json.loads((tmp_path / "page/model.json").read_text())["layers"]
    assert [layer["rows"] for layer in layers] == [None] * len(kinds)
    with served(tmp_path / "page") as url:
        compared(model, open_page(f"{url}LICENSES.txt"), images[:2])


@pytest.mark.parametrize(("position", "maps"), [("quadratic", 1), ("relative-content", 2)])
def test_what_the_network_tells_the_page(position: str, maps: int) -> None:
    """Of positions that are no products a map for all images, or one for each of two."""
    model, x = t_cnn(position=position, content_heads=1), torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        told = network.WithAttention(model.eval())(x)
    (expected,) = encode(model, x).at((0.5, 0.3))
    content, positional = expected.content.flatten(2), expected.positional
    assert positional is not None and len(told["positional_0"]) == maps
    (query,) = (m for m, each in enumerate(told["content_0"].unbind(2)) if torch.allclose(each, content, atol=1e-6))
    own = told["positional_0"][:, :, query]
    assert torch.allclose(own, positional.reshape(own.shape), atol=1e-6)


def test_a_person_looks(
    url: str, open_page: Open, written: tuple[nn.Module, Path], images: list[Path], tmp_path: Path
) -> None:
    """Choose an image, read its classes, click a place, go on by keyboard, use a phone; what is no image is said. Where
    a file is missing at first it is named, and it can be tried again."""
    model, _ = written
    page, expect = open_page("about:blank"), sync_api.expect
    page.route("**/model.onnx", lambda route: route.fulfill(status=404, body=""))
    page.goto(url)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("model.onnx: the file server answered 404; copy the whole folder")
    page.unroute("**/model.onnx")
    alert.get_by_role("button", name="Try again").click()
    expect(page.locator(".tile")).to_have_count(9)
    page.get_by_label("Your picture").set_input_files(images[0])
    (answer,) = library.predict(model, [images[0]], top=3)
    said = [f"{one.name}{one.probability:.1%}" for one in answer.guesses]
    ranking = page.get_by_role("list", name="Predictions").locator("li")
    expect(ranking.nth(0)).to_have_text(said[0].replace(".0%", "%"))
    assert HOSTILE in "".join(ranking.all_text_contents())
    encoded = encode(model, transform_for(model)(Image.open(images[0])).unsqueeze(0))
    box = page.locator(".stage canvas.picture").first.bounding_box()
    page.mouse.click(box["x"] + 0.1 * box["width"], box["y"] + 0.9 * box["height"])
    (expected,) = encoded.at((0.9, 0.1))
    for head, weights in enumerate(expected.combined[0].detach()):
        row, column = divmod(int(weights.argmax()), weights.shape[1])
        name = page.locator(".tile").nth(head).get_attribute("aria-label")
        assert name.startswith(
            f"Head {head + 1}: peak at row {row}, column {column} of the map, {weights.max():.1%}".replace(".0%", "%")
        )
    where = page.locator("#place")
    expect(where).to_have_text("Query: row 6 of 6, column 1 of 5 of last.")
    page.locator(".stage").focus()
    page.keyboard.press("ArrowRight")
    expect(where).to_have_text("Query: row 6 of 6, column 2 of 5 of last.")
    (tmp_path / "no.png").write_text("no image")
    page.get_by_label("Your picture").set_input_files(tmp_path / "no.png")
    expect(alert).to_have_text("no.png cannot be read as an image; choose a JPEG, PNG or WebP file.")
    expect(page.locator(".tile")).to_have_count(9)
    page.get_by_role("button", name="A drawing").click()
    expect(alert).to_have_count(0)
    assert page.title() == "TwoConvs · attention"
    page.locator(".tile").nth(4).click()
    for width, scheme in LOOKS:
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)
        assert inaccessible(page) == [], (width, scheme)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), ALL_LOOKS)
def test_everybody_can_use_it(url: str, open_page: Open, width: int, scheme: str) -> None:
    page = open_page(url, viewport={"width": width, "height": 860}, color_scheme=scheme)
    sync_api.expect(page.locator(".tile")).to_have_count(9)
    page.locator(".tile").nth(4).click()
    assert inaccessible(page) == []


@pytest.mark.slow  # classes and the largest weight of every head, as the page tells them, are compared above
def test_the_browser_computes_what_python_does(
    url: str, open_page: Open, written: tuple[nn.Module, Path], images: list[Path]
) -> None:
    compared(written[0], open_page(f"{url}LICENSES.txt"), images[:2])
