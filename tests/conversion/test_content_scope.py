"""`content`: a choice of the conversion that is verified, reported, written to files and read back like any other."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from nets import written_with
from safetensors import safe_open
from sampled import sampled
from timm.layers import Conv2dSame
from torch import Tensor, nn

import tcnn
from tcnn.analysis.attention import encode
from tcnn.conversion.report import ConversionReport
from tcnn.errors import CheckpointError, RequestError
from tcnn.layers import GPSA2d
from tcnn.models.running import gpsa_layers, watch_layers

LOCAL = ("window:3", "pooled:2")
UNPADDED = ("global,unpadded", "window:3,unpadded", "pooled:2,unpadded")


def source() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10).eval()


@pytest.mark.parametrize(
    ("content", "options"),
    sampled(
        [(content, options) for content in (*LOCAL, *UNPADDED) for options in ({}, {"stage": 3}, {"stride": "remove"})],
        [(LOCAL[0], {"stride": "remove"}), (LOCAL[1], {}), (UNPADDED[0], {})],
    ),
    ids=str,
)
def test_equivalent_at_conversion(content: str, options: dict[str, object]) -> None:
    """The attention runs: at τ = 1 the same weights drift, and to another place than under another scope."""
    cnn = source()
    reference = tcnn.without_stride(cnn) if "stride" in options else cnn
    model, report = tcnn.convert(cnn, content=content, **options)
    assert {layer.content for layer in gpsa_layers(model).values()} == {content}
    assert {layer.content for layer in report.layers} == {report.config.content} == {content}
    shown: dict[str, Any] = {"input_size": (96, 64), "batch_size": 1, "randomise": True}
    check = tcnn.verify(reference, model, **shown)
    assert check.passed, check.failure()
    other = tcnn.verify(reference, tcnn.convert(cnn, **options).model, float64=False, **shown)
    assert check.drift.logits.relative != other.drift.logits.relative


def test_a_scope_that_covers_the_map_says_so() -> None:
    """The first map of the stage is 14×14 and the others 7×7, at 224 pixels a side; padding adds 2."""
    cnn = source()
    found = {}
    for content in ("window:7", "pooled:16", "global"):
        report = tcnn.convert(cnn, content=content, input_size=(224, 224)).report
        found[content] = [layer.note for layer in report.layers]
        assert not report.standardised
    assert found["window:7"][0] is None
    assert found["window:7"][1] == "content window:7 acts as global: the map is 9×9, padding included"
    assert found["pooled:16"][0] == "content pooled:16 acts as global: the map is 16×16, padding included"
    assert all(found["pooled:16"])
    assert not any(found["global"])
    removed = tcnn.convert(cnn, content="window:7", input_size=(224, 224), stride="remove").report
    assert not any(layer.note for layer in removed.layers), "without the stride all maps are 14×14"


def test_the_padding_of_tensorflow_is_that_of_the_map() -> None:
    """Of 16 and 12 pixels 8 and 6 are left, to which SAME padding adds one row and one column before a stride of 2."""
    source = nn.Sequential(Conv2dSame(3, 4, 3, stride=2), Conv2dSame(4, 4, 3, stride=2))
    (layer,) = tcnn.convert(source, target="1", content="window:20", input_size=(16, 12)).report.layers
    assert layer.note == "content window:20 acts as global: the map is 9×7, padding included"


@pytest.mark.parametrize("content", ["window:0", "window", "pooled:-1", "everything"])
def test_nonsense_is_one_line(content: str) -> None:
    with pytest.raises(RequestError, match=r"^content: expected global, or window or pooled .* got ") as caught:
        tcnn.convert(source(), content=content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", sampled((*LOCAL, *UNPADDED), (LOCAL[0], UNPADDED[0])))
def test_files_bring_it_back(content: str, tmp_path: Path) -> None:
    model = tcnn.convert(source(), content=content, temperature=1.0).model
    image = torch.randn(1, 3, 96, 96)
    loaded = tcnn.load(tcnn.save(model, tmp_path / "m.safetensors"))
    assert {layer.content for layer in gpsa_layers(loaded).values()} == {content}
    with torch.no_grad():
        assert torch.equal(loaded(image), model(image))
    directory = tcnn.save_directory(model, tmp_path / "hub")
    again = timm.create_model(f"local-dir:{directory}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(again(image), model(image))


def test_old_files_are_global(tmp_path: Path) -> None:
    """What was written before there were scopes has no `content`, neither in its configuration nor in its layers."""
    with safe_open(tcnn.save(tcnn.convert(source()).model, tmp_path / "m.safetensors"), "pt") as file:
        written = json.loads(file.metadata()["conversion"])
    assert written["config"].pop("content") == "global"
    assert {layer.pop("content") for layer in written["layers"]} == {"global"}
    report = ConversionReport.model_validate_json(json.dumps(written))
    assert report.config.content == "global"
    assert {layer.content for layer in report.layers} == {"global"}


def test_a_file_with_nonsense_is_refused(tmp_path: Path) -> None:
    model = tcnn.convert(source(), content="window:3").model
    path = written_with(
        model, tmp_path / "m.safetensors", lambda report: [one.update(content="window:0") for one in report["layers"]]
    )
    with pytest.raises(CheckpointError, match="content: expected global, window:W or pooled:R") as caught:
        tcnn.load(path)
    assert "\n" not in str(caught.value)


def test_registered_models_take_it() -> None:
    model = timm.create_model("t_test_resnet", content="pooled:2")
    assert {layer.content for layer in gpsa_layers(model).values()} == {"pooled:2"}
    assert model.conversion_report.config.content == "pooled:2"


@pytest.mark.parametrize("content", sampled(("global", *LOCAL, *UNPADDED), ("global", *LOCAL, UNPADDED[0])))
def test_what_is_looked_at_is_what_the_layer_does(content: str) -> None:
    """The maps that `tcnn inspect` shows are those of `GPSA2d.attention`, whatever the scope."""
    model = tcnn.convert(source(), content=content, temperature=1.0).model
    images = torch.randn(2, 3, 96, 64)
    inputs: dict[str, tuple[GPSA2d, Tensor]] = {}

    def keep(name: str, layer: nn.Module, x: Tensor, _: Tensor) -> None:
        assert isinstance(layer, GPSA2d)
        inputs[name] = layer, x

    with torch.no_grad(), watch_layers(model, [layer.name for layer in model.conversion_report.layers], keep):
        model(images)
    kept = encode(model, images).layers
    assert kept.keys() == inputs.keys()
    for name, (layer, x) in inputs.items():
        with torch.no_grad():
            expected = layer.attention(x)
            found = kept[name].maps(torch.arange(expected.content.shape[2]))
        torch.testing.assert_close(found.content, expected.content)
        torch.testing.assert_close(found.total, expected.total)


@pytest.mark.slow  # of whole maps: tests/analysis
def test_inspection_of_a_local_model() -> None:
    """Content within windows is nearer and narrower than content over the whole map."""
    images = torch.randn(2, 3, 128, 128)

    def content_of(scope: str) -> tuple[float, float]:
        found = tcnn.inspect(tcnn.convert(source(), content=scope).model, images).layers[0]
        assert found.non_locality.content is not None
        assert found.entropy.content is not None
        return found.non_locality.content, found.entropy.content

    (far, wide), (near, narrow) = content_of("global"), content_of("window:2")
    assert near < far / 2
    assert narrow < wide / 2


def test_the_configuration_tells_the_service() -> None:
    schema = tcnn.ConversionConfig.model_json_schema()["properties"]["content"]
    assert schema["default"] == "global"
    assert re.search("window:W.*pooled:R", schema["description"])
    for text in ("global", "window:1", "pooled:999999"):
        assert re.search(schema["pattern"], text)
    for text in ("window:0", "window:1000000", "global:1", "a window:7"):
        assert not re.search(schema["pattern"], text)
