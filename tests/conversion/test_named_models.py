"""Named models of a dozen families: equivalence end to end at the sizes that people use, and drift beside it."""

import pytest
from nets import seeded_model
from sampled import sampled

import tcnn
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
