"""Every entry point of timm's `resnet.py`: the right layers in a sample of them, the right function in a cheap one.

Slow tests look at all, and `tests/slow/test_all_resnets.py` verifies all of them on data.
"""

import pytest
import timm
from nets import meta_model, seeded_model, spatial_convolutions
from sampled import sampled
from timm.models._registry import _deprecated_models, _module_to_models

import tcnn
from tcnn.layers import GPSA2d

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
    assert [name for name, module in converted.named_modules() if isinstance(module, GPSA2d)] == expected
    assert {skipped.reason for skipped in report.skipped} <= {"Conv1d is not an nn.Conv2d"}  # ECA's


@pytest.mark.parametrize("name", sampled(SAMPLE, CHEAP))
def test_a_sample_is_verified(name: str) -> None:
    source = seeded_model(name)
    converted, _ = tcnn.convert(source)
    report = tcnn.verify(source, converted, input_size=(64, 96), batch_size=1, randomise=True)
    assert report.passed, report.failure()
    assert report.drift.logits.relative > 0.01
