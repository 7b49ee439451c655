"""Networks that begin as convolutions: ConViT for any square number of heads, ConvMixer with impulse filters."""

from pathlib import Path
from typing import Any

import pytest
import timm
import tiny_runs
import torch
from timm.models.convit import GPSA
from timm.models.convmixer import ConvMixer
from torch import nn
from torch.nn import functional as F

import tcnn
from tcnn.config import FinetuneConfig
from tcnn.errors import RequestError
from tcnn.layers.convit import use_fast_attention
from tcnn.training.preparing.prepare import prepare
from tcnn.training.recipe.freezing import ablate, freeze_spatial
from tcnn.vit.impulse import spatial_filters
from tcnn.vit.initialise import initialise_file


def convit(heads: int = 4, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    small = {"img_size": 24, "patch_size": 4, "depth": 3, "embed_dim": 6, "local_up_to_layer": 2, "num_classes": 3}
    return timm.create_model("convit_tiny", num_heads=heads, **{**small, **options}).eval()


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1)


def gated(model: nn.Module) -> list[GPSA]:
    return [module for module in model.modules() if isinstance(module, GPSA)]


@pytest.mark.parametrize("heads", [1, 4, 9, 16])
def test_positional_attention_is_a_convolution_of_as_many_taps(heads: int) -> None:
    model = convit(heads)
    with torch.no_grad():
        for layer in gated(model):
            nn.init.normal_(layer.pos_proj.weight)
            nn.init.normal_(layer.v.weight)
            layer.gating_param.fill_(-1)
    report = tcnn.initialise(model, "convolution", locality=30.0)
    side = int(heads**0.5)
    steps = [step - (side - 1) / 2 for step in range(side)]
    for layer, found in zip(gated(model), report.layers, strict=True):
        assert set(found.offsets) == {(row, column) for row in steps for column in steps}
        assert found.hits == 1 and found.weight > 0.99
        # The maps of timm's own code, far from the border, against the offsets that the report tells.
        x = torch.zeros(1, 36, layer.dim)
        layer.rel_indices = layer.get_rel_indices(36)
        layer.gating_param.data.fill_(1e3)
        maps = layer.get_attention(x)[0].unflatten(1, (6, 6)).unflatten(3, (6, 6))[:, 2, 3]  # of the patch at (2, 3)
        places = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0)).unflatten(0, (6, 6))
        for own, offset in zip(maps, found.offsets, strict=True):
            mean = (own[..., None] * places).sum((0, 1)) - torch.tensor([2.0, 3.0])
            if max(map(abs, offset)) < 2:
                torch.testing.assert_close(mean, torch.tensor(offset, dtype=mean.dtype), atol=1e-4, rtol=0)
        assert torch.equal(layer.v.weight, torch.eye(layer.dim))


def test_it_is_what_timm_begins_with() -> None:
    theirs, ours = convit(9), convit(9)
    use_fast_attention(ours)
    for layer in gated(ours):
        nn.init.normal_(layer.pos_proj.weight)
    report = tcnn.initialise(ours, "convolution")
    for one, other in zip(gated(ours), gated(theirs), strict=True):
        torch.testing.assert_close(one.pos_proj.weight, other.pos_proj.weight)
    assert report.grid == (6, 6) and len(report.layers) == 2
    default = tcnn.initialise(theirs, "default")
    assert default.layers == () and default.initialisation == "default"


def test_random_positions_are_no_convolution() -> None:
    model = convit()
    tcnn.initialise(model, "random", seed=1)
    for layer in gated(model):
        assert layer.pos_proj.weight.abs().max() < 0.1 and not torch.equal(layer.v.weight, torch.eye(layer.dim))
        assert bool((layer.gating_param == 1).all())


def test_a_seed_means_the_same_random_weights() -> None:
    first, second, other = (convit() for _ in range(3))
    for model, seed in ((first, 1), (second, 1), (other, 2)):
        tcnn.initialise(model, "random", seed=seed)
    for ours, same, others in zip(gated(first), gated(second), gated(other), strict=True):
        assert all(torch.equal(one, again) for one, again in zip(ours.parameters(), same.parameters(), strict=True))
        assert not torch.equal(ours.pos_proj.weight, others.pos_proj.weight)
        assert not torch.equal(ours.v.weight, others.v.weight)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RequestError, match=r"a square number of heads.*4 of 2×2, 9 of 3×3\), found 5.*heads"):
        tcnn.initialise(convit(5), "convolution")
    for model, kind, message in (
        (convit(), "impulse", "ConViT"),
        (timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), "convolution", "convolution is of ConViT"),
        (mixer(), "mimetic", "a ConvMixer takes impulse or default"),
        (timm.create_model("resnet18"), "random", "random is of ConViT"),
    ):
        with pytest.raises(RequestError, match=message):
            tcnn.initialise(model, kind)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="locality: expected a strength above 0"):
        tcnn.initialise(convit(), "convolution", locality=0)


def test_ablations_of_table_3() -> None:
    model = convit()
    ablate(model, FinetuneConfig(convert=False, gating=False))
    assert all(not layer.gating_param.any() and not layer.gating_param.requires_grad for layer in gated(model))
    ablate(model, FinetuneConfig(convert=False, freeze_gpsa=True))
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert frozen and all(".attn." in name and name.startswith(("blocks.0", "blocks.1")) for name in frozen)


def mixer() -> ConvMixer:
    torch.manual_seed(0)
    return ConvMixer(16, 2, kernel_size=5, patch_size=4, num_classes=3).eval()


@pytest.mark.parametrize("window", [None, 3])
def test_impulse_filters_move_every_channel(window: int | None) -> None:
    model = mixer()
    report = tcnn.initialise(model, "impulse", window=window, seed=3)
    for (_, conv), layer in zip(spatial_filters(model), report.layers, strict=True):
        assert not conv.weight.requires_grad and conv.weight.sum() == 16
        assert max(max(map(abs, offset)) for offset in layer.offsets) <= (2 if window is None else 1)
        x = torch.randn(1, 16, 7, 7)
        moved = torch.stack([
            F.pad(x[0, channel], (2, 2, 2, 2))[2 + down : 9 + down, 2 + right : 9 + right]
            for channel, (down, right) in enumerate(layer.offsets)
        ])  # fmt: skip
        assert torch.equal(conv(x)[0], moved)
    assert report.grid == (56, 56), "of 224 pixels in patches of 4"
    assert tcnn.initialise(ConvMixer(8, 1, patch_size=9), "impulse").grid == (24, 24), "what is left over is no patch"
    with pytest.raises(RequestError, match="window: expected an odd number of pixels up to the kernel's 5, found 7"):
        tcnn.initialise(mixer(), "impulse", window=7)


def test_spatial_filters_are_frozen() -> None:
    model = mixer()
    assert freeze_spatial(model) == 2 * (16 * 25 + 16)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        f"blocks.{n}.0.fn.0.{own}" for n in (0, 1) for own in ("weight", "bias")
    }
    with pytest.raises(RequestError, match="freeze: spatial is of depthwise convolutions"):
        freeze_spatial(nn.Linear(2, 2))


def test_a_file_of_any_square_number_of_heads_is_loaded_again(tmp_path: Path) -> None:
    options = {"img_size": 32, "num_heads": 9, "depth": 2, "local_up_to_layer": 1, "num_classes": 4}
    report = initialise_file("convit_tiny", tmp_path / "convit", "convolution", model_args=options, locality=2.0)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'convit'}", pretrained=True)
    assert loaded.blocks[0].attn.num_heads == 9 and loaded.num_classes == 4
    assert bool((loaded.blocks[0].attn.pos_proj.weight[:, 2] == -2).all())
    assert report.model == "convit_tiny" and len(report.layers[0].offsets) == 9


def test_a_run_begins_so_and_trained_weights_are_not_lost(tmp_path: Path) -> None:
    data = tiny_runs.colours(tmp_path / "photos", images=2)
    config = tiny_runs.tiny(convert=False, epochs=1, size=32, init="impulse", batch_size=2)
    with pytest.raises(RequestError, match=r"init: .* has weights, which an initialisation would lose"):
        tcnn.finetune(mixer(), str(data), None, config, tmp_path / "lost")
    start = prepare("test_vit", tiny_runs.tiny(convert=False, init="mimetic"), ("a", "b"), pretrained=False)
    other = prepare("test_vit", tiny_runs.tiny(convert=False), ("a", "b"), pretrained=False)
    assert not torch.equal(start.model.blocks[0].attn.qkv.weight, other.model.blocks[0].attn.qkv.weight)


NOISE = torch.zeros(1, 3, 32, 32)


@pytest.mark.parametrize(
    ("make", "kind", "setting", "said"),
    [
        (vit, "mimetic", {"window": 5}, "window: only impulse, of vit_*, deit_* and convmixer_*, has one"),
        (vit, "default", {"peak": 0.4}, "peak: only impulse of vit_* and deit_* has one"),
        (vit, "impulse", {"locality": 2.0}, "locality: only convolution, of convit_*, has one"),
        (vit, "mimetic", {"images": NOISE, "positions": "keep"}, "images: only impulse, or fourier"),
        (convit, "random", {"locality": 2.0}, "locality: only convolution, of convit_*, has one"),
        (convit, "convolution", {"window": 3}, "window: only impulse"),
        (convit, "convolution", {"positions": "fourier"}, "positions: only vit_* and deit_* have"),
        (mixer, "impulse", {"peak": 0.4}, "found impulse of a ConvMixer; leave it out"),
        (mixer, "default", {"window": 3}, "found default of a ConvMixer; leave it out"),
        (mixer, "impulse", {"images": NOISE}, "images: only impulse, or fourier"),
    ],
)
def test_a_setting_without_effect_is_refused(make: Any, kind: Any, setting: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        tcnn.initialise(make(), kind, **setting)
    assert said in str(caught.value) and "\n" not in str(caught.value)
