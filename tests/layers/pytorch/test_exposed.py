"""timm's and torchvision's extractors find the layers' attention by name, and find what the layer applies; what is put
there has its effect wherever the model runs, or is refused."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.layers import set_fused_attn
from timm.utils import AttentionExtract
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor

import tcnn
from tcnn.errors import UnsupportedLayerError
from tcnn.folding.fold import fused
from tcnn.layers import GPSA2d
from tcnn.layers.fused import FusedGPSA2d

LAYERS = ("layer4.0.conv1", "layer4.0.conv2")
IMAGES = torch.rand(2, 3, 40, 56, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def model() -> Iterator[nn.Module]:
    """Built as timm's users do who want to see attention; soft, with a head by content alone."""
    set_fused_attn(False)
    try:
        torch.manual_seed(0)
        yield timm.create_model(
            "t_test_resnet", num_classes=3, zero_init_last=False, content_heads=1, temperature=0.5
        ).eval()
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


class WithoutCentre(nn.Identity):
    """Takes away what the central tap's head applies."""

    def forward(self, weights: Tensor) -> Tensor:
        return weights.clone().index_fill(1, torch.tensor([4]), 0.0)


def hooked(layer: GPSA2d) -> None:
    layer.attn.attn_drop.register_forward_hook(lambda module, args, out: WithoutCentre()(out))


def hooked_before(layer: GPSA2d) -> None:
    layer.attn.attn_drop.register_forward_pre_hook(lambda module, args: WithoutCentre()(args[0]))


def replaced(layer: GPSA2d) -> None:
    layer.attn.attn_drop = WithoutCentre()


def hooked_within(layer: GPSA2d) -> None:
    layer.attn.attn_drop = nn.Sequential(nn.Identity())
    layer.attn.attn_drop[0].register_forward_hook(lambda module, args, out: WithoutCentre()(out))


def method(layer: GPSA2d) -> None:
    layer.attn.attn_drop.forward = WithoutCentre().forward


def on_the_point(layer: GPSA2d) -> None:
    layer.attn.register_forward_hook(lambda module, args, out: WithoutCentre()(out))


def halved(layer: GPSA2d, x: Tensor) -> Tensor:
    return 0.5 * GPSA2d.forward(layer, x)


def the_layers_own(layer: GPSA2d) -> None:
    layer.forward = partial(halved, layer)


WAYS: dict[Callable[[GPSA2d], None], str] = {
    hooked: "forward hooks on attn.attn_drop",
    hooked_before: "forward pre-hooks on attn.attn_drop",
    replaced: "attn.attn_drop of another class, WithoutCentre",
    hooked_within: "attn.attn_drop of another class, Sequential and forward hooks on attn.attn_drop.0",
    method: "attn.attn_drop with a forward of its own",
    on_the_point: "forward hooks on attn",
    the_layers_own: "a forward of its own",
}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@torch.no_grad()
def test_what_weights_pass_has_its_effect_or_is_refused(way: Callable[[GPSA2d], None], model: nn.Module) -> None:
    plain = model(IMAGES)
    way(model.get_submodule(LAYERS[0]))  # type: ignore[arg-type]
    expected = model(IMAGES)
    assert (expected - plain).abs().max() > 1e-4
    with fused(model):
        assert [type(model.get_submodule(name)) for name in LAYERS] == [GPSA2d, FusedGPSA2d]
        torch.testing.assert_close(model(IMAGES), expected)
    guesses = tcnn.predict(model, IMAGES, quiet=True)[0].guesses
    assert guesses[0].probability == pytest.approx(expected[0].softmax(0).max().item(), rel=1e-5)
    for call in (tcnn.fuse, lambda model: tcnn.fold(model, max_error=1e9)):
        with pytest.raises(UnsupportedLayerError) as caught:
            call(model)
        assert str(caught.value) == f"{LAYERS[0]}: it has {WAYS[way]}, which a replacement would lose"


@torch.no_grad()
def test_what_does_nothing_in_evaluation_is_fused(model: nn.Module) -> None:
    """Dropout of weights, and what Accelerate leaves behind when it takes its wrapper away."""
    first, second = (model.get_submodule(name) for name in LAYERS)
    first.attn.attn_drop = nn.Dropout(0.5).eval()
    second.forward = second.forward
    assert tcnn.fuse(model.train()).layer4[0].conv1.training is False
    with fused(model.eval()):
        assert [type(model.get_submodule(name)) for name in LAYERS] == [FusedGPSA2d, FusedGPSA2d]
    first.attn.attn_drop.train()  # Monte Carlo dropout
    with fused(model):
        assert isinstance(model.get_submodule(LAYERS[0]), GPSA2d)
