"""Every entry point of timm's `resnet.py`, verified on data in float32 and float64. Takes minutes and up to 16 GB.

Two images whose last map is 4×4: on fewer pixels the calibrated statistics make a deep network chaotic.
"""

import gc

import pytest
import timm
import torch

import tcnn


@pytest.mark.parametrize("name", timm.list_models(module="resnet"))
def test_converts_and_verifies(name: str) -> None:
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
