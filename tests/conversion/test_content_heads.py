"""Content heads beside the taps: exactly equivalent at the start, and at home everywhere a layer goes."""

import json
from pathlib import Path

import pytest
import timm
import torch
from nets import PlainNet, image, relative_error, seeded_model, with_random_statistics
from sampled import sampled
from torch import nn

import tcnn
from tcnn.layers.folded import FoldedGPSA2d

OPTIONS = [{"content_heads": 3}, {"content_heads": 2, "query_key": "mimetic", "content": "window:3"}]
SIZE = (64, 96)


def lively(model: nn.Module) -> nn.Module:
    """With content heads that add something."""
    generator = torch.Generator().manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, tcnn.GPSA2d):
            with torch.no_grad():
                layer.proj.add_(0.05 * torch.randn(layer.proj.shape, generator=generator))
                layer.query.mul_(30)
    return model.eval()


NAMES = ["resnet18", "resnet26d", "convnext_atto", "regnety_002", "test_byobnet"]


@pytest.mark.parametrize(
    ("name", "options"),
    sampled(
        [(name, options) for name in NAMES for options in OPTIONS],
        [("test_byobnet", OPTIONS[1])],
    ),
)
def test_a_conversion_is_equivalent_and_verified(name: str, options: dict[str, object]) -> None:
    source = with_random_statistics(seeded_model(name)).eval()
    converted, report = tcnn.convert(source, **options)
    assert tcnn.verify(source, converted, input_size=SIZE, batch_size=1).passed
    taps = {layer.kernel_size[0] * layer.kernel_size[1] for layer in report.layers}
    assert {layer.heads - layer.content_heads for layer in report.layers} == taps
    assert {layer.content_heads for layer in report.layers} == {options["content_heads"]}


def test_verification_sees_a_content_head_that_adds_something() -> None:
    source = PlainNet().eval()
    converted, _ = tcnn.convert(source, content_heads=2)
    verdict = tcnn.verify(source, lively(converted), input_size=(24, 24))
    assert not verdict.passed


@pytest.mark.parametrize(
    ("temperature", "content"),
    [
        (1 / 46, "global"),
        pytest.param(0.4, "global", marks=pytest.mark.slow),
        pytest.param(1 / 46, "global,unpadded", marks=pytest.mark.slow),
        pytest.param(1 / 46, "pooled:2,unpadded", marks=pytest.mark.slow),
        pytest.param(0.4, "window:2,unpadded", marks=pytest.mark.slow),
    ],
)
def test_saved_loaded_fused_and_folded(tmp_path: Path, temperature: float, content: str) -> None:
    source = with_random_statistics(seeded_model("test_resnet")).double().eval()
    model = lively(tcnn.convert(source, content_heads=2, temperature=temperature, content=content).model)
    x = image(SIZE, double=True)
    with torch.no_grad():
        expected = model(x)
    tcnn.save(model, tmp_path / "t.safetensors")
    loaded = tcnn.load(tmp_path / "t.safetensors")
    with torch.no_grad():
        assert torch.equal(loaded(x), expected)
        assert relative_error(expected, tcnn.fuse(model)(x)) <= 1e-10
        if temperature < 0.1:
            folded, report = tcnn.fold(loaded)
            assert relative_error(expected, folded(x)) <= 1e-10
            layer = folded.layer4[0].conv1
            assert isinstance(layer, FoldedGPSA2d) and layer.kinds == ("convolution",) * 9 + ("content",) * 2
            tcnn.save(folded, tmp_path / "f.safetensors")
            assert torch.equal(tcnn.load(tmp_path / "f.safetensors")(x), folded(x))
            assert not report.complete


@pytest.mark.slow  # a file of such a model is in tests/exporting
@pytest.mark.parametrize("temperature", [1 / 46, 0.4])
def test_exported(temperature: float) -> None:
    source = with_random_statistics(seeded_model("test_resnet")).double().eval()
    model = lively(tcnn.convert(source, content_heads=2, temperature=temperature).model)
    x = image(SIZE, double=True)
    with torch.no_grad():
        expected = model(x)
    program = torch.export.export(tcnn.fuse(model), (x,)).module()
    with torch.no_grad():
        assert relative_error(expected, program(x)) <= 1e-10


def test_untouched_content_heads_fold_away() -> None:
    source = with_random_statistics(seeded_model("test_resnet")).eval()
    folded, report = tcnn.fold(tcnn.convert(source, content_heads=4).model)
    assert report.complete and folded.state_dict().keys() == source.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(folded(image(SIZE)), source(image(SIZE)))


def test_learn_from_the_first_step_on() -> None:
    """Their output weights have a gradient although taps are held at the convolution, where gates have none."""
    model = tcnn.convert(PlainNet(), content_heads=2).model.train()
    model(torch.randn(2, 3, 24, 24)).square().mean().backward()
    layer = next(m for m in model.modules() if isinstance(m, tcnn.GPSA2d))
    taps = layer.tap_proj.shape[1]
    assert layer.proj.grad[:, taps:].abs().max() > 0
    assert layer.gating_param.grad.abs().max() == 0
    assert layer.query.grad.abs().max() == 0, "W_out is 0, so nothing reaches W_qry yet"


def test_timm_builds_and_inspection_measures_them() -> None:
    model = timm.create_model("t_test_resnet", content_heads=2).eval()
    found = tcnn.inspect(lively(model), images=image(SIZE))
    layer = found.layers[0]
    assert len(layer.heads) == 11 and layer.gate_temperature == layer.temperature
    for head in layer.heads[:9]:
        assert head.tap is not None and head.centre is not None and head.non_locality.positional is not None
    for head in layer.heads[9:]:
        assert (head.tap, head.centre, head.span, head.gate) == (None, None, None, None)
        assert head.non_locality.positional is None and head.non_locality.total == head.non_locality.content


def test_a_file_of_version_0_1_loads(tmp_path: Path) -> None:
    """It has one temperature for gates and positions."""
    model = tcnn.convert(seeded_model("test_resnet"), temperature=0.5).model.eval()
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("gate_temperature")}
    old = {k.replace("position_temperature", "temperature"): v for k, v in state.items()}
    fresh = tcnn.convert(seeded_model("test_resnet")).model.eval()
    kept = dict(old)
    fresh.load_state_dict(old)
    assert old.keys() == kept.keys(), "what is loaded from is not changed"
    layer = fresh.layer4[0].conv1
    assert (layer.gate_temperature.item(), layer.position_temperature.item()) == (0.5, 0.5)
    with torch.no_grad():
        assert torch.equal(fresh(image(SIZE)), model(image(SIZE)))


def test_a_report_of_version_0_1_is_read() -> None:
    report = tcnn.convert(seeded_model("test_resnet")).report
    layer = json.loads(report.layers[0].model_dump_json())
    del layer["content_heads"]
    assert type(report.layers[0]).model_validate(layer) == report.layers[0]


@pytest.mark.parametrize("content_heads", [0, 4, 16])
@pytest.mark.parametrize("groups", [1, 4])
def test_a_new_layer_draws_filters_and_biases_as_a_new_convolution(content_heads: int, groups: int) -> None:
    torch.manual_seed(0)
    layer = tcnn.GPSA2d(64, 256, 3, groups=groups, content_heads=content_heads)
    bound = (64 // groups * 9) ** -0.5  # of a uniform distribution, whose standard deviation is √3 times smaller
    drawn = {"filters": layer.filter, "biases": layer.bias}
    if content_heads:
        drawn["content heads"] = layer.proj[:, layer.tap_proj.shape[1] :]
    for name, tensor in drawn.items():
        assert tensor.abs().max() <= bound, name
        assert tensor.std().item() == pytest.approx(bound / 3**0.5, rel=0.1), name
