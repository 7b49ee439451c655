"""What `torch.compile` wraps is taken for the model in it: nothing is compiled, and files have the model's names."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from nets import same_state, seeded_model, snapshot
from torch import nn

import tcnn


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend=lambda graph, inputs: pytest.fail("compiled for a look at its layers"))


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return seeded_model("test_resnet")


@pytest.fixture(scope="module")
def model(source: nn.Module) -> nn.Module:
    return tcnn.convert(source).model


def test_the_module_in_it_is_converted_and_verified(source: nn.Module) -> None:
    model, report = tcnn.convert(compiled(source))
    assert [layer.name for layer in report.layers] == ["layer4.0.conv1", "layer4.0.conv2"]
    assert tcnn.verify(compiled(source), compiled(model), input_size=(32, 32), float64=False).passed
    wide = tcnn.without_stride(compiled(source))
    assert wide.layer4[0].conv1.stride == (1, 1)


def test_files_load_as_those_of_the_model(model: nn.Module, tmp_path: Path) -> None:
    tcnn.save(compiled(model), tmp_path / "m.safetensors")
    assert same_state(tcnn.load(tmp_path / "m.safetensors"), snapshot(model))
    tcnn.save_directory(compiled(model), tmp_path / "m")
    assert same_state(timm.create_model(f"local-dir:{tmp_path}/m", pretrained=True), snapshot(model))


def test_heads_are_folded_and_inspected(model: nn.Module) -> None:
    x = torch.zeros(1, 3, 32, 32)
    assert tcnn.fold(compiled(model), images=x).report.complete
    assert [layer.name for layer in tcnn.inspect(compiled(model), x).layers] == ["layer4.0.conv1", "layer4.0.conv2"]
    assert tcnn.fuse(compiled(model))(x).shape == (1, 1000)
