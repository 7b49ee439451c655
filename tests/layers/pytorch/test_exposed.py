"""timm's and torchvision's extractors find the layers' attention by name, and find what the layer applies."""

from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from timm.utils import AttentionExtract
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor

import tcnn
from tcnn.layers import GPSA2d

LAYERS = ("layer4.0.conv1", "layer4.0.conv2")
IMAGES = torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """Built as timm's users do who want to see attention; soft, with a head by content alone."""
    set_fused_attn(False)
    try:
        torch.manual_seed(0)
        yield timm.create_model("t_test_resnet", num_classes=3, content_heads=1, temperature=0.5).eval()
    finally:
        set_fused_attn(True)


def inputs_of(model: nn.Module) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name in LAYERS:
        layer = model.get_submodule(name)
        layer.register_forward_pre_hook(lambda _, args, name=name: found.__setitem__(name, args[0]))
    with torch.no_grad():
        model(IMAGES)
    return found


def test_timms_attention_extract_finds_them_by_its_default_names(model: nn.Module) -> None:
    seen = inputs_of(model)
    expected = {name: model.get_submodule(name).attention(x) for name, x in seen.items()}  # type: ignore[operator]
    with torch.no_grad():
        nodes: dict[str, Any] = AttentionExtract(model, method="fx")(IMAGES)
        modules: dict[str, Any] = AttentionExtract(model, method="hook")(IMAGES)
    assert list(nodes) == [f"{name}.attn.softmax" for name in LAYERS]
    assert list(modules) == [f"{name}.attn.attn_drop" for name in LAYERS]
    for name in LAYERS:
        torch.testing.assert_close(nodes[f"{name}.attn.softmax"], expected[name].content)
        torch.testing.assert_close(modules[f"{name}.attn.attn_drop"], expected[name].total)
        assert modules[f"{name}.attn.attn_drop"].shape[1] == 10, "nine taps and a head by content"


def test_torchvisions_extractor_finds_them(model: nn.Module) -> None:
    wanted = {"layer4.0.conv2.attn.attn_drop": "weights", "layer4.0.conv2.attn.softmax": "content", "fc": "logits"}
    with torch.no_grad():
        found = create_feature_extractor(model, wanted)(IMAGES)
        torch.testing.assert_close(found["logits"], model(IMAGES))
    torch.testing.assert_close(found["weights"].sum(-1), torch.ones(found["weights"].shape[:-1]))


@pytest.mark.parametrize("content", ["global", "pooled:2", "window:4"])
def test_a_layer_computes_the_same_in_the_open(content: str) -> None:
    torch.manual_seed(1)
    layer = GPSA2d(6, 8, 3, stride=2, padding=1, groups=2, content=content, content_heads=2, temperature=0.7)
    x = torch.rand(2, 6, 9, 7, requires_grad=True)
    expected = layer(x)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    names = [name for name, _ in layer.named_modules()]
    layer.fused_attn = False
    assert [name for name, _ in layer.named_modules()] == ["", "attn", "attn.attn_drop"]
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(layer(x[0]), expected[0])
    torch.testing.assert_close(torch.autograd.grad(layer(x).square().sum(), x)[0], gradient)
    layer.fused_attn = True
    assert [name for name, _ in layer.named_modules()] == names == [""]


def test_files_do_not_know_how_it_was_computed(model: nn.Module, tmp_path: Any) -> None:
    tcnn.save(model, tmp_path / "t.safetensors")
    set_fused_attn(True)
    again = tcnn.load(tmp_path / "t.safetensors")
    assert again.state_dict().keys() == model.state_dict().keys()
    assert not any(name.endswith("attn_drop") for name, _ in again.named_modules())
    with torch.no_grad():
        torch.testing.assert_close(again(IMAGES), model(IMAGES))
