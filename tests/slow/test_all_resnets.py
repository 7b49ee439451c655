"""Every entry point of timm's `resnet.py`, verified on data in float32 and float64. Takes minutes and 10 GB."""

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
    report = tcnn.verify(source, converted, input_size=(64, 64), batch_size=1, randomise=True)
    worst = max(
        error.worst for result in report.passes for layer in result.layers for error in (layer.random, result.logits)
    )
    print(f"{name}: worst error {worst:.1e}, drift {report.drift.logits.relative:.3f}")
    assert report.passed, report.failure()
    assert [result.dtype for result in report.passes] == ["float32", "float64"]
    assert report.drift.logits.relative > 1e-3
    del source, converted
    gc.collect()
