"""`tcnn.inspect`: every number where it belongs, from a converted model to one of timm's."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import made_up
import numpy
import pytest
import timm
import torch
from data_pictures import draw, draw_classes
from PIL import Image
from torch import nn

import tcnn
from tcnn.analysis.attention import attention_at, encode
from tcnn.analysis.measures import measure
from tcnn.analysis.plots import maps
from tcnn.analysis.reading.rundirs import checkpoint_of
from tcnn.analysis.records import Inspection
from tcnn.errors import EnvironmentFailure, RequestError
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.training.runs.recorder import layer_state


@pytest.fixture
def converted(lively: Callable[..., nn.Module]) -> nn.Module:
    return tcnn.convert(lively(num_classes=3), temperature=0.5).model


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_classes(tmp_path / "pets", ("cat", "dog", "eel"), 2)


def test_a_converted_model(converted: nn.Module, pictures: Path) -> None:
    with torch.no_grad():
        first = next(m for m in converted.modules() if isinstance(m, tcnn.GPSA2d))
        first.gating_param[3] = -2.0
        first.attention_centers[3] += torch.tensor([0.25, -0.5])
    found = tcnn.inspect(converted, pictures, (0.5, 0.25), limit=5, shown=2, size=64)
    assert found.model == "test_resnet.r160_in1k"
    assert (found.size, found.images, found.unreadable, found.query) == ((64, 64), 5, [], (0.5, 0.25))
    assert [layer.name for layer in found.layers] == [layer.name for layer in converted.conversion_report.layers]
    layer = found.layers[0]
    assert (layer.kind, layer.kernel_size, layer.temperature, len(layer.heads)) == ("gpsa2d", (3, 3), 0.5, 9)
    head = layer.heads[3]
    assert (head.head, head.tap, head.tap_offset) == (3, (1, 0), (0.0, -1.0))
    assert head.centre == pytest.approx((0.25, -1.5))
    assert head.gate == pytest.approx(torch.sigmoid(torch.tensor(-2 / 0.5)).item())
    assert head.span == pytest.approx(1.0)
    assert head.radius_50 == pytest.approx((0.6931471805599453 * 0.5) ** 0.5)
    assert layer.gate == pytest.approx(sum(h.gate for h in layer.heads) / 9)  # type: ignore[misc]
    for part in ("total", "content", "positional"):
        heads = [getattr(h.non_locality, part) for h in layer.heads]
        assert getattr(layer.non_locality, part) == pytest.approx(sum(heads) / 9)


def test_content_heads_have_no_gate_wherever_a_layer_is_told_of(
    lively: Callable[..., nn.Module], tmp_path: Path
) -> None:
    """In an inspection and its maps, in what training records, and in the report of both."""
    model = tcnn.convert(lively(num_classes=3), content_heads=2, target="layer4.0.conv1").model
    found = tcnn.inspect(model, torch.randn(1, 3, 64, 64), shown=1)
    (layer,) = found.layers
    assert found.pictures[0].layers[0].gates == [1.0] * 9 + [None] * 2
    assert len(maps.maps(found.pictures[0], "combined")) == 1
    assert [head.gate for head in layer.heads] == [1.0] * 9 + [None] * 2
    assert found.rows()[1][2:4] == ("11", "1.00–1.00")
    state = layer_state(model)
    assert layer.gate == state["gate_mean"][layer.name] == 1.0
    assert layer.span == state["span_mean"][layer.name]
    tcnn.save(model, tmp_path / "best.safetensors")
    row = {**made_up.metrics(epochs=1)[-1], **state}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    page = tcnn.report(tmp_path)
    assert "<td>11 × " in page
    assert "<th>heads of the taps</th><th>lowest gate</th><th>mean gate</th>" in page
    assert "<td>9 of 11</td><td>1.00</td><td>1.00</td>" in page
    assert "Content heads have neither." in " ".join(made_up.Page(page).text.split())


def test_batches_do_not_matter(converted: nn.Module) -> None:
    """Six images in batches of four and two give the mean over six."""
    images = torch.randn(6, 3, 64, 64)
    found = tcnn.inspect(converted, images)
    for name, layer in encode(converted, images).layers.items():
        whole = measure(layer)
        heads = next(each for each in found.layers if each.name == name).heads
        assert [h.non_locality.total for h in heads] == pytest.approx(whole.non_locality.total.tolist(), rel=1e-5)
        assert [h.entropy.content for h in heads] == pytest.approx(whole.entropy.content.tolist(), rel=1e-5)


def test_maps_are_those_of_the_query(converted: nn.Module) -> None:
    images = torch.randn(2, 3, 64, 96)
    found = tcnn.inspect(converted, images, (0.9, 0.1), shown=1)
    (picture,) = found.pictures
    assert picture.name == "image 1"
    assert Image.open(io.BytesIO(base64.b64decode(picture.png))).size == (96, 64)
    for shown, at in zip(picture.layers, attention_at(converted, images[:1], (0.9, 0.1)), strict=True):
        assert (shown.layer, shown.query, shown.padding) == (at.name, at.query, at.padding)
        for part in ("content", "positional", "combined"):
            expected = getattr(at, part)
            expected = expected[0] if expected.dim() == 4 else expected
            assert (torch.tensor(getattr(shown, part)) - expected).abs().max() < 1e-6


def test_it_survives_json(converted: nn.Module) -> None:
    found = tcnn.inspect(converted, torch.randn(1, 3, 64, 64))
    assert Inspection.model_validate_json(found.model_dump_json()) == found


def test_without_images_only_positions_are_told(converted: nn.Module) -> None:
    found = tcnn.inspect(converted, size=(64, 96))
    assert (found.size, found.images, found.pictures) == ((64, 96), 0, [])
    head = found.layers[0].heads[0]
    assert head.non_locality.total is None
    assert head.entropy.content is None
    assert head.non_locality.positional is not None
    assert head.gate is not None


def test_beside_timms_own_models(converted: nn.Module, pictures: Path) -> None:
    options = {"img_size": 64, "embed_dim": 24, "depth": 2, "num_heads": 3}
    vit = timm.create_model("deit_tiny_patch16_224", **options)
    convit = timm.models.convit.ConVit(img_size=64, embed_dim=8, depth=2, num_heads=4, local_up_to_layer=1)
    found = tcnn.inspect(converted, pictures, against=[vit, convit], size=64)
    assert [other.model for other in found.against] == ["deit_tiny_patch16_224", "ConVit"]
    deit, con = (other.layers for other in found.against)
    assert [layer.kind for layer in (*deit, *con)] == ["attention", "attention", "convit", "attention"]
    assert deit[0].gate is None
    assert deit[0].prefix == pytest.approx(1 / 17, abs=0.01)  # a fresh DeiT attends evenly: one of 17 tokens
    assert con[0].heads[0].centre == pytest.approx((-0.5, -0.5), abs=1e-5)


def test_models_called_alike_are_numbered(converted: nn.Module, lively: Callable[..., nn.Module]) -> None:
    """A trained model beside the one that it was: each has its own numbers and its own line."""
    other = tcnn.convert(lively(num_classes=3), temperature=1.0).model
    found = tcnn.inspect(converted, torch.randn(1, 3, 64, 64), against=[other, other], shown=0)
    first = found.model
    assert [one.model for one in found.against] == [f"{first} 2", f"{first} 3"]
    (lines, texts) = _compared(found)
    assert texts == [first, f"{first} 2", f"{first} 3"]
    assert lines[1] == lines[2] != lines[0]
    older = found.model_copy(
        update={"against": [one.model_copy(update={"model": first}) for one in found.against]}
    )  # as an inspect.json of an earlier version has them
    assert _compared(older) == (lines, texts)


def _compared(found: Inspection) -> tuple[list[list[float]], list[str]]:
    """The lines of the picture of several models, and the names in its legend."""
    figure = tcnn.plots(found)["non-locality-compared"].figure
    (legend,) = figure.legends
    return [list(line.get_ydata()) for line in figure.axes[0].lines], [text.get_text() for text in legend.get_texts()]


def test_files_that_are_no_images_are_named(converted: nn.Module, pictures: Path) -> None:
    (pictures / "cat" / "words.jpg").write_text("no picture")
    found = tcnn.inspect(converted, pictures, size=64)
    (unreadable,) = found.unreadable
    assert (found.images, found.notes) == (6, []) and unreadable.startswith("cat/words.jpg: not an image")


def test_nothing_but_files_that_are_no_images(converted: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "words.jpg").write_text("no picture")
    found = tcnn.inspect(converted, tmp_path, size=64)
    assert found.notes == [
        f"{tmp_path}: expected images, but none can be read; only what does not depend on images is told"
    ]
    assert found.layers[0].heads[0].non_locality.total is None
    assert found.pictures == []


def test_wrong_requests(converted: nn.Module, lively: Callable[..., nn.Module], tmp_path: Path) -> None:
    for arguments, message in (
        ({"model": lively()}, "no attention to look at"),
        ({"images": tmp_path / "absent"}, "expected an image or a folder of images, found nothing"),
        ({"images": torch.zeros(3, 8, 8)}, r"shape \(B, C, H, W\), at least one image, found \(3, 8, 8\)"),
        ({"images": torch.full((5, 3, 64, 64), torch.nan)}, "expected finite numbers, found NaN or infinity in 5 of 5"),
        ({"query": (2, 0)}, "expected shares"),
        ({"limit": 0}, "expected at least 1 image"),
        ({"model": tmp_path / "absent.safetensors"}, "expected a tcnn checkpoint, found nothing"),
    ):
        with pytest.raises(RequestError, match=message):
            tcnn.inspect(**{"model": converted, **arguments})  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFailure, match="not usable here"):
        tcnn.inspect(converted, device="cuda:77")


def test_a_file_and_its_run(converted: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    file = tcnn.save(converted, tmp_path / "run" / "best.safetensors")
    assert checkpoint_of(str(tmp_path / "run")) == str(file)
    assert checkpoint_of("resnet18") == "resnet18"
    draw(tmp_path / "a.png")
    assert tcnn.inspect(str(file), tmp_path / "a.png", size=64).images == 1


def test_images_of_python_are_measured_like_files_up_to_the_limit(converted: nn.Module, pictures: Path) -> None:
    files = sorted(pictures.rglob("*.*"))[:3]
    images = [Image.open(files[0]), numpy.asarray(Image.open(files[1]).convert("RGB")), Image.open(files[2])]
    found = tcnn.inspect(converted, images, limit=2, shown=0)
    assert (found.images, found.unreadable) == (2, [])
    one = tcnn.inspect(converted, [Image.open(files[0])], limit=1, shown=0)
    assert one.layers[0].entropy == tcnn.inspect(converted, files[0]).layers[0].entropy


def test_a_layer_has_the_mean_span_of_its_heads(converted: nn.Module) -> None:
    layer = tcnn.inspect(converted).layers[0]
    assert layer.span == pytest.approx(sum(head.span for head in layer.heads) / 9)  # type: ignore[misc]


def test_cordonniers_heads_have_centres() -> None:
    model = timm.create_model("cordonnier_quadratic_tiny", num_classes=3).eval()
    heads = tcnn.inspect(model, torch.randn(1, 3, 32, 32)).layers[0].heads
    centres = next(m for m in model.modules() if isinstance(m, SelfAttention2d)).summary()[1]
    assert [head.centre for head in heads] == [pytest.approx(tuple(centre)) for centre in centres.tolist()]
