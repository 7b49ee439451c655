"""Folding whole models: back to the CNN bit for bit, part of the way, or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import tiny_runs
import torch
from nets import PlainNet, comes_back, image, relative_error, same_state, snapshot, with_random_statistics, written_with
from safetensors.torch import load_file
from sampled import sampled
from timm.layers import BatchNormAct2d, StdConv2d
from timm.models.resnetv2 import ResNetV2
from torch import nn

import tcnn
from tcnn.conversion.surgery import unconverted
from tcnn.errors import NothingToConvertError, RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.models.running import gpsa_layers

Lively = Callable[..., nn.Module]

PLAIN: dict[str, dict[str, Any]] = {
    "test_resnet": {},
    "test_efficientnet": {},  # depthwise
    "test_efficientnet same": {"pad_type": "same"},  # dynamic padding
    "test_byobnet": {},
}


def made(name: str, lively: Lively) -> nn.Module:
    return lively(name.partition(" ")[0], **PLAIN[name])


@pytest.mark.slow  # a rare way to ask for a model
def test_arguments_that_are_tuples_do_not_matter(lively: Lively) -> None:
    source = lively("test_resnet", layers=(1, 1, 1, 2))
    assert same_state(tcnn.fold(tcnn.convert(source).model).model, snapshot(source))


@pytest.mark.parametrize("name", sampled(PLAIN, ["test_resnet", "test_efficientnet same"]))
def test_a_conversion_folds_back_bit_for_bit(name: str, lively: Lively, tmp_path: Path) -> None:
    source = made(name, lively)
    model, _ = tcnn.convert(source)
    before = snapshot(model)
    found, report = tcnn.fold(model)
    assert report.complete
    assert report.logits.worst < 1e-12
    assert report.parameters_after == sum(p.numel() for p in source.parameters())
    assert same_state(model, before)
    tcnn.save(found, tmp_path / "cnn.safetensors")
    state = load_file(tmp_path / "cnn.safetensors")
    fresh = made(name, lambda *a, **k: timm.create_model(*a, pretrained=False, **k))
    fresh.load_state_dict(state, strict=True)
    for key, tensor in source.state_dict().items():
        assert torch.equal(state[key], tensor), key
    again = tcnn.load(tmp_path / "cnn.safetensors")
    assert not any(isinstance(module, GPSA2d | FoldedGPSA2d) for module in again.modules())
    assert again.pretrained_cfg["architecture"] == name.partition(" ")[0]
    x = image((96, 96))
    with torch.no_grad():
        assert torch.equal(again(x), source(x))
        assert torch.equal(found(x), source(x))


@pytest.mark.slow  # dilated in tests/conversion/test_dilate.py
def test_without_its_stride(lively: Lively, tmp_path: Path) -> None:
    source = lively()
    found, report = tcnn.fold(tcnn.convert(source, stride="remove").model)
    assert report.complete
    expected = tcnn.without_stride(source)
    assert same_state(found, snapshot(expected))
    tcnn.save(found, tmp_path / "cnn.safetensors")
    built = tcnn.without_stride(timm.create_model("test_resnet")).eval()
    built.load_state_dict(load_file(tmp_path / "cnn.safetensors"))
    x = image((64, 64))
    with torch.no_grad():
        assert torch.equal(built(x), expected(x))
        assert torch.equal(tcnn.load(tmp_path / "cnn.safetensors")(x), expected(x))


def test_standardised_convolutions_compute_the_same(lively: Lively, tmp_path: Path) -> None:
    source = lively("test_nfnet")
    found, report = tcnn.fold(tcnn.convert(source).model)
    assert report.complete
    tcnn.save(found, tmp_path / "cnn.safetensors")
    fresh = timm.create_model("test_nfnet").eval()
    fresh.load_state_dict(load_file(tmp_path / "cnn.safetensors"), strict=True)
    _same_function(source, fresh)


@pytest.mark.slow  # with one above
def test_standardised_convolutions_without_a_gain() -> None:
    """BiT's ResNet, made small."""
    small = {"layers": (1, 1, 1, 1), "channels": (16, 16, 32, 32), "stem_chs": 8}
    layers = {"conv_layer": StdConv2d, "norm_layer": BatchNormAct2d}
    source = with_random_statistics(tiny_runs.seeded(lambda: ResNetV2(**small, **layers))).eval()
    config = tcnn.VerificationConfig(input_size=(96, 96))
    found, report = tcnn.fold(tcnn.convert(source).model, source=source, config=config)
    assert report.complete
    _same_function(source, found)


@torch.no_grad()
def _same_function(source: nn.Module, found: nn.Module) -> None:
    x = image((96, 96))
    assert relative_error(source(x), found(x)) < 1e-5
    assert relative_error(source.double()(x.double()), found.double()(x.double())) < 1e-6


def test_a_filter_that_cannot_be_standardised_stays_beside_it(lively: Lively, tmp_path: Path) -> None:
    model, _ = tcnn.convert(lively("test_nfnet"))
    layer = next(iter(gpsa_layers(model).values()))
    with torch.no_grad():
        layer.proj.add_(0.01)
    found, report = tcnn.fold(model)
    assert [entry.becomes for entry in report.layers] == ["folded", *["convolution"] * (len(report.layers) - 1)]
    assert "standardise" in (report.layers[0].note or "")
    assert not report.complete
    comes_back(found, tmp_path)


def test_channels_mixed_across_groups_keep_their_own_convolution(lively: Lively, tmp_path: Path) -> None:
    model, _ = tcnn.convert(lively("test_efficientnet"))
    layer = next(iter(gpsa_layers(model).values()))
    with torch.no_grad():
        layer.value.add_(0.1 * torch.randn_like(layer.value))
    found, report = tcnn.fold(model)
    assert report.layers[0].becomes == "folded"
    assert "W_val" in (report.layers[0].note or "")
    assert report.logits.worst < 1e-6
    comes_back(found, tmp_path)


def test_no_head_to_fold(lively: Lively) -> None:
    model, _ = tcnn.convert(lively(), temperature=1)
    with pytest.raises(NothingToConvertError, match=r"no head to fold: expected one of 18 .* max_error"):
        tcnn.fold(model)


def test_what_is_not_a_tcnn(lively: Lively) -> None:
    with pytest.raises(RequestError, match="not converted by tcnn"):
        tcnn.fold(lively())
    with pytest.raises(NothingToConvertError, match="nothing in it is converted, so there is nothing to fold"):
        tcnn.fold(unconverted(lively()))
    with pytest.raises(RequestError, match="max_error: expected"):
        tcnn.fold(tcnn.convert(lively()).model, max_error=float("nan"))


@pytest.mark.parametrize("content", [pytest.param("window:2", marks=pytest.mark.slow), "pooled:3"])
def test_attention_to_less_than_the_map_stays_that(content: str, lively: Lively, tmp_path: Path) -> None:
    model, _ = tcnn.convert(lively(), content=content, temperature=1)
    assert tcnn.fold(tcnn.convert(lively(), content=content).model).report.complete
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, GPSA2d):
                layer.locality_raw[::2] = 60.0
                layer.gating_param[::2] = 60.0
                layer.query.mul_(20)
    found, report = tcnn.fold(model)
    for entry in report.layers:
        assert (entry.convolution, entry.attention, entry.becomes) == (5, 4, "folded")
    assert report.logits.worst < 1e-6
    globally = tcnn.load(_rescoped(found, tmp_path))
    x = image((96, 96))
    with torch.no_grad():
        assert relative_error(model(x), found(x)) < 1e-5
        assert relative_error(model(x), globally(x)) > 1e-4  # the scope matters here
    comes_back(found, tmp_path)


def _rescoped(model: nn.Module, tmp_path: Path) -> Path:
    """A file in which the same weights attend to the whole map."""

    def change(report: dict[str, Any]) -> None:
        for one in (report["config"], *report["layers"]):
            one["content"] = "global"

    return written_with(model, tmp_path / "global.safetensors", change)


@pytest.mark.slow
def test_a_cnn_that_folding_gave_back_can_be_fine_tuned(lively: Lively, tmp_path: Path) -> None:
    cnn, _ = tcnn.fold(tcnn.convert(lively(num_classes=3)).model)
    tcnn.save(cnn, tmp_path / "cnn.safetensors")
    tiny_runs.run(tmp_path / "cnn.safetensors", tiny_runs.colours(tmp_path / "data"), tmp_path / "run", epochs=1)
    tuned = tcnn.load(tmp_path / "run" / "last.safetensors")
    assert sum(isinstance(module, GPSA2d) for module in tuned.modules()) == 2


def test_a_module_that_is_not_timms(tmp_path: Path) -> None:
    net = tiny_runs.seeded(PlainNet).eval()
    model, _ = tcnn.convert(net, input_size=(24, 24))
    with pytest.raises(RequestError, match="give its module as `source`"):
        tcnn.fold(model)
    config = tcnn.VerificationConfig(input_size=(24, 24))
    found, report = tcnn.fold(model, source=net, config=config)
    assert report.complete
    assert same_state(found, snapshot(net))
    tcnn.save(found, tmp_path / "net.safetensors")
    assert same_state(tcnn.load(tmp_path / "net.safetensors", source=net), snapshot(net))


def test_a_model_of_which_timm_removed_the_end() -> None:
    """With what was converted there: the report has layers that are not in the model any more."""
    source: Any = tiny_runs.seeded(lambda: timm.create_model("test_resnet"))
    model: Any = tcnn.convert(source, target=r"layer[34]\..*conv2").model
    for one in (source, model):
        one.eval().prune_intermediate_layers([3], prune_head=True)
    found, report = tcnn.fold(model)
    assert [entry.name for entry in report.layers] == ["layer3.0.conv2"]
    assert report.complete
    assert same_state(found, snapshot(source))
    assert same_state(tcnn.fold(model, source=source).model, snapshot(source))


def test_half_precision_and_frozen_layers(lively: Lively) -> None:
    source = lively().half()
    model, _ = tcnn.convert(source)
    found, report = tcnn.fold(model.requires_grad_(False))
    assert report.complete
    assert same_state(found, snapshot(source))
    assert not any(
        p.requires_grad for name, p in found.named_parameters() if "conv2.weight" in name and "layer4" in name
    )
