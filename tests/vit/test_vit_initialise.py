"""`tcnn.initialise`: attention in timm's own forward pass peaks at the offsets; what it keeps, and what it refuses;
and Fourier features of positions against the formula.
"""

import math
from typing import Any

import pytest
import timm
import torch
from data_pictures import picture
from sampled import sampled
from timm.layers import build_sincos2d_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

import tcnn
from tcnn.errors import RequestError
from tcnn.vit.impulse import coordinates, draw_offsets, fourier_features, indices, neighbours
from tcnn.vit.initialise import photograph_noise

SMALL = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 2, "num_heads": 3, "num_classes": 5}
"""A head of 32 numbers, a grid of 8×8: its features fit exactly."""
FORMS: dict[str, dict[str, Any]] = {
    "class token": {},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 4, "no_embed_class": True},
    "oblong": {"img_size": (24, 40)},
    "no bias, norm behind": {"qkv_bias": False, "pre_norm": True},
    "layer scale": {"init_values": 1e-5},
}


def vit(**options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(**{**SMALL, **options}).eval()


def pictures(size: tuple[int, int], count: int = 8) -> Tensor:
    from torchvision.transforms import functional as T

    images = [T.to_tensor(T.resize(picture(seed), list(size))) for seed in range(count)]
    return (torch.stack(images) - 0.5) / 0.25


def attention_of(model: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The maps (B, K, N, N) of every layer, from the queries and keys that timm gives to torch's function."""
    maps: list[Tensor] = []

    def recorded(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        maps.append((q.double() @ k.double().transpose(2, 3) / q.shape[3] ** 0.5).softmax(3))
        return real(q, k, v, **options)

    real = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    with torch.no_grad():
        model(images)
    monkeypatch.undo()
    return maps


def aimed_at(grid: tuple[int, int], offset: tuple[int, int], prefix: int) -> list[int]:
    """Which token lies at an offset of every patch, or of the border nearest to it."""
    rows, columns = grid
    return [
        prefix + min(max(y + offset[0], 0), rows - 1) * columns + min(max(x + offset[1], 0), columns - 1)
        for y in range(rows)
        for x in range(columns)
    ]


@pytest.mark.parametrize("form", sampled(FORMS, ["no class token", "registers", "oblong"]))
def test_heads_look_where_they_are_said_to(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On pictures that it has not seen: at least nine patches of ten, in every layer."""
    model = vit(**FORMS[form])
    report = tcnn.initialise(model, seed=3)
    grid, prefix = report.grid, report.prefix_tokens
    assert grid == tuple(model.patch_embed.grid_size) and prefix == model.num_prefix_tokens
    maps = attention_of(model, pictures(model.patch_embed.img_size), monkeypatch)
    assert len(maps) == len(report.layers) == len(model.blocks)
    for layer, found in zip(report.layers, maps, strict=True):
        assert len(set(layer.offsets)) == found.shape[1] == 3
        aimed = torch.tensor([aimed_at(grid, offset, prefix) for offset in layer.offsets])
        own = found[:, :, prefix:]
        assert (own.argmax(3) == aimed).double().mean() >= 0.9
        assert 0.35 < own.gather(3, aimed[None, ..., None].expand(len(own), -1, -1, 1)).mean() < 0.8
        assert layer.hits >= 0.99 and layer.weight == pytest.approx(0.5, abs=1e-3)


def test_what_it_says_is_what_the_layers_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report, measured by its own formulas, against timm's forward pass on the same images."""
    model = vit(reg_tokens=2)
    nn.init.ones_(model.blocks[1].attn.qkv.bias)
    images = pictures((32, 32), 4)
    report = tcnn.initialise(model, images=images, peak=0.3, window=5)
    for layer, found in zip(report.layers, attention_of(model, images, monkeypatch), strict=True):
        aimed = torch.tensor([aimed_at((8, 8), offset, 3) for offset in layer.offsets])
        own = found[:, :, 3:]
        assert layer.hits == pytest.approx((own.argmax(3) == aimed).double().mean().item(), abs=1e-3)
        weight = own.gather(3, aimed[None, ..., None].expand(4, -1, -1, 1)).mean().item()
        assert layer.weight == pytest.approx(weight, abs=1e-4) == pytest.approx(0.3, abs=1e-3)
    ours = model.blocks[1].attn.qkv.bias.unflatten(0, (3, 96))
    assert not ours[:2].any() and bool((ours[2] == 1).all()), "of queries and keys alone, which are solved for without"


def test_without_content_it_is_the_pseudo_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of positions alone, of which each is as probable as any other."""
    model = vit(class_token=False, global_pool="avg", depth=1)
    report = tcnn.initialise(model, images=torch.zeros(2, 3, 32, 32))
    (maps,) = attention_of(model, torch.zeros(1, 3, 32, 32), monkeypatch)
    nothing = model.patch_embed.proj.bias.detach()
    position = F.layer_norm((model.pos_embed.detach() + nothing).double(), (96,), eps=model.blocks[0].norm1.eps)[0]
    inverse = torch.linalg.pinv(position, rtol=1e-3)
    key = inverse @ fourier_features(coordinates((8, 8)), (8, 8), 32)
    for head, offset in enumerate(report.layers[0].offsets):
        query = inverse @ fourier_features(neighbours((8, 8), offset), (8, 8), 32)
        products = position @ query @ key.T @ position.T
        logs = maps[0, head].log()
        found, expected = logs - logs.mean(1, keepdim=True), products - products.mean(1, keepdim=True)
        factor = (found * expected).sum() / expected.square().sum()
        assert (found - factor * expected).norm() < 2e-3 * found.norm()


def test_a_sin_cos_embedding_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixed one, whose frequencies are not the grid's harmonics: nine of ten patches still hit."""
    model = vit(class_token=False, global_pool="avg")
    fixed = build_sincos2d_pos_embed([8, 8], dim=96, temperature=100.0)[None]
    model.pos_embed = nn.Parameter(fixed, requires_grad=False)
    report = tcnn.initialise(model, positions="keep")
    assert report.positions == "keep" and torch.equal(model.pos_embed, fixed)
    for layer, found in zip(report.layers, attention_of(model, pictures((32, 32)), monkeypatch), strict=True):
        aimed = torch.tensor([aimed_at((8, 8), offset, 0) for offset in layer.offsets])
        assert (found.argmax(3) == aimed).double().mean() >= 0.9


@pytest.mark.parametrize("kind", ["impulse", "mimetic", "default"])
def test_only_attention_and_positions_change(kind: Any) -> None:
    model = vit(reg_tokens=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = tcnn.initialise(model, kind)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    attention = {f"blocks.{index}.attn.{name}" for index in range(2) for name in ("qkv.weight", "proj.weight")}
    expected = {
        "impulse": {"pos_embed"} | {name for name in attention if "qkv" in name},
        "mimetic": {"pos_embed"} | attention,
        "default": set(),
    }[kind]
    assert changed == expected
    assert report.positions == ("keep" if kind == "default" else "fourier")
    assert torch.equal(model.pos_embed[:, :3], before["pos_embed"][:, :3]), "prefix tokens keep theirs"
    values = model.blocks[0].attn.qkv.weight[192:]
    assert torch.equal(values, before["blocks.0.attn.qkv.weight"][192:]) == (kind != "mimetic")
    assert all(parameter.requires_grad for parameter in model.parameters()) and not model.training
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def test_mimetic_products() -> None:
    """W_qryᵀW_key is near 0.7·I and W_out·W_val near −0.4·I: the mean of the diagonal, and the noise beside it."""
    model = vit(embed_dim=192)
    nn.init.ones_(model.blocks[0].attn.qkv.bias)
    tcnn.initialise(model, "mimetic")
    attention = model.blocks[0].attn
    assert not attention.qkv.bias.any(), "a bias would turn every query in one direction"
    query, key, value = attention.qkv.weight.detach().double().unflatten(0, (3, 192))
    product = attention.proj.weight.detach().double() @ value
    off = product - product.diag().diag()
    assert product.diag().mean() == pytest.approx(-0.4, abs=0.03)
    assert off.std() == pytest.approx(0.4 * 192**-0.5, rel=0.05)
    for head in range(3):
        part = slice(64 * head, 64 * head + 64)
        seen = query[part].T @ key[part]
        assert not torch.equal(query[part], query.roll(64, 0)[part]), "every head draws its own"
        assert torch.linalg.matrix_rank(seen) == 64
        assert seen.diag().mean() > 20 * (seen - seen.diag().diag()).mean().abs()


def test_a_seed_means_the_same_weights() -> None:
    first, second, other = vit(), vit(), vit()
    for model, seed in ((first, 1), (second, 1), (other, 2)):
        tcnn.initialise(model, seed=seed)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.blocks[0].attn.qkv.weight, other.blocks[0].attn.qkv.weight)


def test_noise_has_the_spectrum_of_photographs() -> None:
    """Amplitudes fall like 1/f: a frequency sixteen times as high has about a sixteenth."""
    images = photograph_noise(vit(), torch.Generator().manual_seed(0))
    assert images.shape[1:] == (3, 32, 32)
    assert images.mean().abs() < 1e-5 and images.std() == pytest.approx(1, abs=1e-4)
    amplitude = torch.fft.rfft2(images).abs().square().mean((0, 1))[0].sqrt()
    for frequency in (1, 2):
        assert (amplitude[frequency] / amplitude[16]).item() == pytest.approx(16 / frequency, rel=0.25)


def test_distillation_tokens_are_prefix_tokens() -> None:
    model = timm.create_model("deit_tiny_distilled_patch16_224", img_size=64, depth=1, num_classes=3)
    report = tcnn.initialise(model)
    assert (report.grid, report.prefix_tokens) == ((4, 4), 2)
    assert report.layers[0].hits >= 0.99


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (lambda: timm.create_model("resnet18"), {}, "ResNet: expected a timm vision transformer"),
        (lambda: nn.Linear(2, 2), {}, "Linear: expected a timm vision transformer"),
        (lambda: timm.create_model("vit_relpos_small_patch16_224", depth=1), {}, "positions are relative or rotary"),
        (lambda: timm.create_model("eva02_tiny_patch14_224", depth=1), {}, "positions are relative or rotary"),
        (lambda: vit(pos_embed="none"), {}, "has no positional embedding, from which"),
        (lambda: vit(qk_norm=True), {}, "blocks.0 normalises queries and keys"),
        (lambda: vit(img_size=4), {}, "1×1 patches have no neighbours"),
        (
            vit,
            {"initialisation": "impulsive"},
            "mimetic, convolution, random, default, found 'impulsive'",
        ),
        (vit, {"window": 4}, "window: expected an odd number of patches, for example 3, found 4"),
        (vit, {"peak": 1}, "peak: expected an attention weight between 0 and 1, found 1"),
        (vit, {"positions": "sincos"}, "positions: expected fourier or keep, found 'sincos'"),
        (vit, {"images": torch.zeros(1, 3, 30, 32)}, "images: "),
    ],
)
def test_is_refused_in_one_line(make: Any, options: dict[str, Any], said: str) -> None:
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RequestError) as caught:
        tcnn.initialise(model, **options)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


GRIDS = [(2, 2), (5, 5), (8, 12), (14, 14), (16, 3)]


@pytest.mark.parametrize("grid", GRIDS)
def test_products_are_the_dirichlet_kernel(grid: tuple[int, int]) -> None:
    points = coordinates(grid)
    features = fourier_features(points, grid, 2 * sum(grid))
    found = features @ features.T
    for first, second in torch.randint(len(points), (200, 2), generator=torch.Generator().manual_seed(0)).tolist():
        expected = 0.0
        for axis, side in enumerate(grid):
            distance = (points[first, axis] - points[second, axis]).item()
            terms = (math.cos(2 * math.pi * m * distance / (2 * side + 1)) for m in range(1, side + 1))
            expected += 2 / (2 * side + 1) * sum(terms)
        assert found[first, second].item() == pytest.approx(expected, abs=1e-13)
    kernel = [2 * side / (2 * side + 1) for side in grid]
    assert found.diagonal().allclose(torch.tensor(sum(kernel)).double())
    others = found.masked_fill(torch.eye(len(points)).bool(), -9)
    assert others.max() < sum(kernel) - 0.99


@pytest.mark.parametrize(
    ("grid", "width"), [((14, 14), 64), ((28, 28), 64), ((28, 28), 32), ((9, 40), 48), ((3, 3), 4)]
)
def test_the_product_is_largest_at_the_same_place(grid: tuple[int, int], width: int) -> None:
    """Also where the features do not fit, and in no more room than was asked for."""
    points = coordinates(grid)
    features = fourier_features(points, grid, width)
    assert features.shape == (len(points), width)
    full = sum(2 * side / (2 * side + 1) for side in grid)  # of axes with all of their harmonics
    norms = features.square().sum(1)
    assert full - 1e-9 <= norms.min() and norms.max() <= 2 + 1e-9
    assert torch.equal((features @ features.T).argmax(1), torch.arange(len(points)))


def test_where_heads_look() -> None:
    grid = (3, 4)
    assert indices(neighbours(grid, (1, -1)), grid).tolist() == [4, 4, 5, 6, 8, 8, 9, 10, 8, 8, 9, 10]
    assert indices(neighbours(grid, (0, 0)), grid).tolist() == list(range(12))


def test_offsets_fill_the_window_before_one_comes_twice() -> None:
    drawn = draw_offsets(12, 3, torch.Generator().manual_seed(0))
    assert sorted(drawn[:9]) == [(y, x) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    assert len(set(drawn[9:])) == 3
    assert draw_offsets(12, 3, torch.Generator().manual_seed(0)) == drawn
    assert draw_offsets(12, 3, torch.Generator().manual_seed(1)) != drawn
    assert {abs(part) for offset in draw_offsets(25, 5, torch.Generator()) for part in offset} == {0, 1, 2}
