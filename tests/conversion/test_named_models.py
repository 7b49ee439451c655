"""timm's models by their names: of a dozen families, equivalence end to end at the sizes that people use, and drift
beside it; of `resnet.py` every entry point, the right layers in a sample of them, the right function in a cheap one.

Slow tests look at all, and verify all entry points of `resnet.py` on data, which takes minutes and up to 16 GB.
"""

import gc

import pytest
import timm
import torch
from nets import meta_model, seeded_model, spatial_convolutions
from sampled import sampled
from timm.models._registry import _deprecated_models, _module_to_models

import tcnn
from tcnn.models.running import gpsa_layers
from tcnn.verification.report import VerificationReport

LAYERS = {
    "resnet50d": 3,
    "resnetrs50": 3,
    "resnet18": 4,
    "resnext50_32x4d": 3,
    "resnetaa50d": 3,
    "seresnet33ts": 2,
    "resnetv2_50": 3,
    "convnext_atto": 3,
    "regnety_002": 7,
    "efficientnet_b0": 5,
    "mobilenetv3_small_050": 3,
    "test_efficientnet": 1,
}
"""How many convolutions of the last stage are converted: one of ResNet-50's blocks has one, of ResNet-18's two."""

STRIDE_UNKNOWN = {"convnext_atto"}
ALWAYS = ["test_efficientnet"]
"""Depthwise; in blocks of their own it is in test_timm_features.py (test_convnext), grouped in test_content_heads.py,
full in README.md (resnet18). The others are slow."""


def assert_equivalent(report: VerificationReport) -> None:
    single, double = report.passes
    assert report.passed, report.failure()
    assert single.dtype == "float32" and single.logits.worst <= 1e-5
    assert double.dtype == "float64" and double.logits.worst <= 1e-10
    assert all(layer.activation is not None for result in report.passes for layer in result.layers)
    assert single.top1_agreement == double.top1_agreement == 1
    assert report.drift.logits.relative > 0.01  # the same weights at τ = 1: the comparison is not blind


@pytest.mark.parametrize("name", sampled(LAYERS, ALWAYS))
def test_equals_its_source(name: str) -> None:
    source = seeded_model(name)
    converted, conversion = tcnn.convert(source)
    assert len(conversion.layers) == LAYERS[name]
    for size in ((224, 224), (160, 192)) if name == "resnet50d" else ((160, 192),):
        report = tcnn.verify(source, converted, input_size=size, batch_size=1, randomise=True)
        assert len(report.passes[0].layers) == LAYERS[name]
        assert_equivalent(report)


@pytest.mark.parametrize("name", sampled(sorted(LAYERS.keys() - STRIDE_UNKNOWN), []))
def test_equals_its_source_without_stride(name: str) -> None:
    source = seeded_model(name)
    converted, conversion = tcnn.convert(source, stride="remove")
    assert conversion.strides_removed and len(conversion.layers) == LAYERS[name]
    reference = tcnn.without_stride(source)
    assert_equivalent(tcnn.verify(reference, converted, input_size=(160, 192), batch_size=1, randomise=True))


EVERY = timm.list_models(module="resnet")

SAMPLE = [
    "test_resnet",
    "resnet10t",
    "resnet14t",
    "resnet18d",
    "resnet26t",
    "resnet34",
    "resnet50_gn",
    "resnet50s",
    "resnetaa34d",
    "resnetblur18",
    "resnetblur50d",
    "ecaresnet26t",
    "ecaresnet50d_pruned",
    "ecaresnext26t_32x4d",
    "seresnet18",
    "seresnext26d_32x4d",
]
QUICK = ["test_resnet", "resnet18d", "resnetblur18", "ecaresnext26t_32x4d"]
"""A block of each kind, a pool and an attention of its own."""
CHEAP = ["test_resnet"]


def test_the_list_is_all_of_it() -> None:
    """What is registered beyond the list are old names of models in it."""
    others = {name: _deprecated_models[name] for name in _module_to_models["resnet"] - set(EVERY)}
    assert len(EVERY) >= 81
    assert {new.split(".")[0] for new in others.values() if new} <= set(EVERY)


@pytest.mark.parametrize("name", sampled(EVERY, QUICK))
def test_the_kxk_convolutions_of_layer4_are_converted_and_no_others(name: str) -> None:
    source = meta_model(name)
    converted, report = tcnn.convert(source)
    expected = spatial_convolutions(source, "layer4.")
    assert report.stage == "layer4" and len(expected) > 0
    assert [layer.name for layer in report.layers] == expected
    assert list(gpsa_layers(converted)) == expected
    assert {skipped.reason for skipped in report.skipped} <= {"Conv1d is not an nn.Conv2d"}  # ECA's


@pytest.mark.parametrize("name", sampled(SAMPLE, CHEAP))
def test_a_sample_is_verified(name: str) -> None:
    source = seeded_model(name)
    converted, _ = tcnn.convert(source)
    report = tcnn.verify(source, converted, input_size=(64, 96), batch_size=1, randomise=True)
    assert report.passed, report.failure()
    assert report.drift.logits.relative > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_entry_point_is_verified(name: str) -> None:
    """On data, in float32 and float64: two images whose last map is 4×4, for on fewer pixels the calibrated statistics
    make a deep network chaotic.
    """
    torch.manual_seed(0)
    source = timm.create_model(name)
    converted, _ = tcnn.convert(source)
    report = tcnn.verify(source, converted, input_size=(128, 128), randomise=True)
    single, double = report.passes
    print(
        f"{name}: float32 {single.logits.worst:.1e}, float64 {double.logits.worst:.1e}, "
        f"drift {report.drift.logits.relative:.3f}, {single.note or double.note or 'no note'}"
    )
    assert report.passed, report.failure()
    assert single.logits.worst <= 1e-5 and double.logits.worst <= 1e-10
    assert report.drift.logits.relative > 0.01  # the same weights at τ = 1: the comparison is not blind
    del source, converted
    gc.collect()
