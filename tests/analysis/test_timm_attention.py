"""timm's attention against direct computations: its own maps where it offers them, else softmax(QKᵀ/√d)."""

from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from nets import Difference
from timm.layers import HybridEmbed, PatchEmbed
from timm.models.convit import GPSA
from torch import Tensor, nn

from tcnn.analysis.attention import encode
from tcnn.analysis.inspect import inspect
from tcnn.analysis.measures import circles, measure
from tcnn.analysis.pages.report import report
from tcnn.analysis.timm_attention import Tokens, tokens_of
from tcnn.errors import RequestError

SIZE = 64
SMALL = {"img_size": SIZE, "patch_size": 16, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 4}


def vit(name: str = "vit_tiny_patch16_224", **options: object) -> nn.Module:
    """A small one whose attention is far from even."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **options}).eval().double()
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            if "qkv.weight" in key or "qk.weight" in key:
                tensor.mul_(20)
    return model


def convit() -> nn.Module:
    torch.manual_seed(0)
    options = {"img_size": SIZE, "embed_dim": 8, "depth": 3, "num_heads": 4, "local_up_to_layer": 2, "num_classes": 4}
    model = timm.models.convit.ConVit(**options).eval().double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, GPSA):
                module.gating_param.normal_()
                module.pos_proj.weight.add_(0.3 * torch.randn_like(module.pos_proj.weight))
                module.qk.weight.mul_(40)
    return model


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def inputs(model: nn.Module, ending: str = "attn") -> dict[str, Tensor]:
    """What reaches every attention layer."""
    seen: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: args[0]}))
        for name, module in model.named_modules()
        if name.endswith(ending)
    ]
    with torch.no_grad():
        model(images())
    for handle in handles:
        handle.remove()
    return seen


def direct(layer: nn.Module, x: Tensor) -> Tensor:
    """softmax(QKᵀ/√d) of timm's `Attention`, (B, K, N, N)."""
    batch, tokens, width = x.shape
    heads = layer.num_heads
    qkv = (x @ layer.qkv.weight.T + (0 if layer.qkv.bias is None else layer.qkv.bias)).detach()
    query, key, _ = qkv.reshape(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    return torch.softmax(query @ key.transpose(-1, -2) / (width // heads) ** 0.5, dim=-1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("name", "options", "prefix"),
    [
        ("vit_tiny_patch16_224", {}, 1),
        ("deit_tiny_distilled_patch16_224", {}, 2),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, 0),
        ("vit_tiny_patch16_224", {"reg_tokens": 4}, 5),
    ],
)
def test_vits(name: str, options: dict[str, object], prefix: int, fused: bool) -> None:
    model = vit(name, **options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    seen = inputs(model)
    encoded = encode(model, images())
    assert list(encoded.layers) == ["blocks.0.attn", "blocks.1.attn"]
    assert [block.attn.fused_attn for block in model.blocks] == [fused, fused]
    rows, columns = torch.arange(16) // 4, torch.arange(16) % 4
    distance = torch.hypot(*((axis[None] - axis[:, None]).double() for axis in (rows, columns)))
    for key, layer in encoded.layers.items():
        expected = direct(model.get_submodule(key), seen[key])
        assert layer.prefix == prefix
        maps = layer.maps(torch.arange(16))
        assert maps.positional is None
        assert (maps.total - expected[:, :, prefix:]).abs().max() < 1e-12
        assert (maps.total.sum(-1) - 1).abs().max() < 1e-12
        found = measure(layer)
        patches = expected[:, :, prefix:, prefix:]
        far = (patches * distance).sum(-1).mean((0, 2))
        assert found.non_locality.total.tolist() == pytest.approx(far.tolist(), rel=1e-12)
        assert found.prefix.tolist() == pytest.approx((1 - patches.sum(-1)).mean((0, 2)).tolist(), abs=1e-12)
    at = encoded.at((0.9, 0.1))[0]
    assert at.query == (3, 0)
    expected = direct(model.blocks[0].attn, seen["blocks.0.attn"])[:, :, prefix + 12]
    assert (at.combined.flatten(2) - expected[..., prefix:]).abs().max() < 1e-12
    assert (at.combined.sum((-1, -2)) + at.prefix - 1).abs().max() < 1e-12


def test_convit_against_timms_own_maps_and_distances() -> None:
    """timm's `get_attention_map` returns Eq. 8 itself, of the mean over images."""
    model = convit()
    seen = inputs(model)
    encoded = encode(model, images())
    assert [layer.kind for layer in encoded.layers.values()] == ["convit", "convit", "attention"]
    for name in ("blocks.0.attn", "blocks.1.attn"):
        module, layer = model.get_submodule(name), encoded.layers[name]
        with torch.no_grad():
            expected = module.get_attention(seen[name])
            far = module.get_attention_map(seen[name])
        maps = layer.maps(torch.arange(16))
        assert (maps.total - expected).abs().max() < 1e-12
        assert measure(layer).non_locality.total.tolist() == pytest.approx(far.tolist(), rel=1e-10)
        assert maps.positional is not None
        assert (maps.positional.sum(-1) - 1).abs().max() < 1e-12
        with torch.no_grad():
            logits = module.pos_proj(module.rel_indices)[0].permute(2, 0, 1)
        assert (maps.positional - torch.softmax(logits, -1)).abs().max() < 1e-12
    last = encoded.layers["blocks.2.attn"]
    expected = direct(model.blocks[2].attn, seen["blocks.2.attn"])[:, :, 1:]
    assert (last.maps(torch.arange(16)).total - expected).abs().max() < 1e-12


def test_the_centre_of_a_convit_head_is_where_its_attention_peaks() -> None:
    torch.manual_seed(0)
    model = timm.models.convit.ConVit(img_size=160, embed_dim=8, depth=1, num_heads=9, local_up_to_layer=1).eval()
    layer = encode(model, torch.randn(1, 3, 160, 160)).layers["blocks.0.attn"]
    assert layer.centres is not None
    middle = layer.maps(torch.tensor([5 * 10 + 5])).positional
    assert middle is not None
    peaks = [(int(p) // 10 - 5, int(p) % 10 - 5) for p in middle[:, 0].argmax(-1)]
    assert layer.centres.round().int().tolist() == [list(peak) for peak in peaks]
    assert sorted(peaks) == [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]


def test_biases_and_norms_are_part_of_what_is_seen() -> None:
    """BEiT adds a bias to its logits, others normalise queries: the output is made of the maps that are kept."""
    torch.manual_seed(0)
    model = timm.create_model("beit_base_patch16_224", **SMALL, use_abs_pos_emb=False).eval().double()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.relative_position_bias_table.normal_()
    values: dict[str, Tensor] = {}
    block = model.blocks[0].attn
    handle = block.proj.register_forward_pre_hook(lambda m, args: values.update(mixed=args[0]))
    seen = inputs(model)["blocks.0.attn"]
    handle.remove()
    layer = encode(model, images()).layers["blocks.0.attn"]
    with torch.no_grad():
        bias = torch.cat((block.q_bias, block.k_bias, block.v_bias))
        value = (seen @ block.qkv.weight.T + bias).unflatten(2, (3, 3, 8))[:, :, 2].transpose(1, 2)
        mixed = (layer.maps(torch.arange(16)).total @ value).transpose(1, 2).flatten(2)
    assert (mixed - values["mixed"][:, 1:]).abs().max() < 1e-10


@pytest.mark.parametrize(("size", "grid"), [((64, 64), (4, 4)), ((70, 64), (5, 4)), ((64, 56), (4, 4))])
def test_patches_that_are_partly_padding_are_patches(size: tuple[int, int], grid: tuple[int, int]) -> None:
    """Where timm pads the image to whole patches, the tokens beyond H/16·W/16 are no class tokens."""
    model = vit(dynamic_img_size=True, dynamic_img_pad=True)
    seen: list[Tensor] = []
    with model.blocks[0].attn.register_forward_pre_hook(lambda _, args: seen.append(args[0])):
        layer = encode(model, torch.randn(1, 3, *size, dtype=torch.float64)).layers["blocks.0.attn"]
    assert (layer.grid.size, layer.prefix) == (grid, 1)
    expected = direct(model.blocks[0].attn, seen[0])[:, :, 1:]
    assert (layer.maps(torch.arange(grid[0] * grid[1])).total - expected).abs().max() < 1e-12


def test_a_network_before_the_patches() -> None:
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.ReLU())
    model = vit(embed_layer=partial(HybridEmbed, backbone), patch_size=4)
    layer = encode(model, images()).layers["blocks.0.attn"]
    assert (layer.grid.size, layer.prefix) == ((4, 4), 1)


class Padding(PatchEmbed):
    """Patches of an image that is padded first, of which `dynamic_feat_size` knows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.pad(x, (0, 16)))


def test_tokens_that_are_not_the_expected_map_are_not_taken_for_it() -> None:
    model = vit(dynamic_img_size=True, embed_layer=Padding)
    with pytest.raises(RequestError, match=r"look at: .*left out: blocks\.0\.attn, blocks\.1\.attn, as .* expected 4×4 "
                       r"patches and 1 prefix token, found 21 tokens$"):  # fmt: skip
        encode(model, images())


def test_a_block_that_runs_twice_has_two_maps() -> None:
    model = vit()
    model.blocks[1] = model.blocks[0]
    first, second = encode(model, images()).layers.values()
    assert (first.name, second.name) == ("blocks.0.attn", "blocks.0.attn (2)")
    assert (first.query - second.query).abs().max() > 0.1


def test_a_layer_that_mixes_several_maps_has_no_figures(tmp_path: Path) -> None:
    """Neither of the two is what it applies; the layers with one map are told all the same."""
    model = vit()
    model.blocks[0].attn = Difference(model.blocks[0].attn)
    encoded = encode(model, images())
    assert list(encoded.layers) == ["blocks.1.attn"]
    (note,) = encoded.notes
    assert note.startswith("left out: blocks.0.attn, as attention is computed 2 times in each pass")
    found = inspect(model, images(), against=[model], shown=0)
    assert found.notes == [note, f"vit_tiny_patch16_224 2: {note}"] and note in str(found)
    (tmp_path / "inspect.json").write_text(found.model_dump_json())
    (tmp_path / "config.json").write_text("{}")
    assert str(report(tmp_path)).count(note) == 2


def test_timms_differential_attention() -> None:
    model = vit("vit_dlittle_patch16_reg1_gap_256")
    with pytest.raises(
        RequestError, match=r"left out: blocks\.0\.attn, blocks\.1\.attn, as attention is computed 2 times"
    ):
        encode(model, images())
    assert [block.attn.fused_attn for block in model.blocks] == [True, True]


def test_windows_are_passed_over() -> None:
    """Swin attends within windows: there is no map of the whole image to show."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", embed_dim=24, depths=(1, 1), num_heads=(3, 3), num_classes=2
    )
    with pytest.raises(RequestError, match="no attention to look at"):
        encode(model.eval(), torch.randn(1, 3, 224, 224))


def test_a_layer_without_centres_has_no_circles() -> None:
    layer = encode(vit(), images()).layers["blocks.0.attn"]
    assert circles(layer) == {"centres": None, "radii": None}
    found = circles(next(iter(encode(convit(), images()).layers.values())))
    assert {name: len(heads or ()) for name, heads in found.items()} == {"centres": 4, "radii": 4}


def test_a_grid_of_patches_that_is_fixed() -> None:
    """Where a network before the patches decides how large they are: the grid is not square."""
    model = nn.Module()
    model.patch_embed = nn.Module()
    model.patch_embed.grid_size = (3, 5)  # type: ignore[assignment]
    assert tokens_of(model, (64, 64)) == Tokens((3, 5), None)
