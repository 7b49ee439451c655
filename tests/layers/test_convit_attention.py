"""ConViT's attention without its maps: timm's outputs and gradients, on squares and other grids, in every mode."""

import copy
import math
from collections.abc import Iterator

import pytest
import timm
import torch
from sampled import crossed
from timm.models.convit import GPSA
from torch import Tensor, nn

from tcnn.layers.convit import ConViTAttention, use_fast_attention
from tcnn.layers.terms import products


def lively(layer: GPSA, seed: int = 0) -> GPSA:
    """Heads that look here and there, some with their gate half open."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return layer


def formula(layer: GPSA, x: Tensor, height: int, width: int) -> Tensor:
    """d'Ascoli et al. 2021 (ConViT), Eq. 6 to 8, pair by pair of patches, in float64."""
    batch, tokens, channels = x.shape
    heads = layer.num_heads
    d = channels // heads
    qk, v = layer.qk(x), layer.v(x)
    out = torch.zeros(batch, tokens, channels, dtype=x.dtype)
    for head in range(heads):
        q, k = (qk[..., start + head * d : start + (head + 1) * d] for start in (0, channels))
        content = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(d), dim=-1)
        logits = torch.empty(tokens, tokens, dtype=x.dtype)
        for i in range(tokens):
            for j in range(tokens):
                down, right = j // width - i // width, j % width - i % width
                r = torch.tensor([right, down, right**2 + down**2], dtype=x.dtype)
                logits[i, j] = layer.pos_proj.weight[head] @ r + layer.pos_proj.bias[head]
        gate = torch.sigmoid(layer.gating_param[head])
        attention = (1 - gate) * content + gate * logits.softmax(dim=-1)
        attention = attention / attention.sum(dim=-1, keepdim=True)
        out[..., head * d : (head + 1) * d] = attention @ v[..., head * d : (head + 1) * d]
    return layer.proj(out)


def gradients(layer: nn.Module, x: Tensor) -> Iterator[Tensor]:
    x = x.clone().requires_grad_()
    weight = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    yield from torch.autograd.grad((layer(x) * weight).sum(), [x, *layer.parameters()], allow_unused=True)


@pytest.mark.parametrize(("heads", "grid"), crossed([1, 4, 6], [(4, 4), (3, 5), (5, 2), (1, 4)], 2), ids=str)
def test_the_formula(grid: tuple[int, int], heads: int) -> None:
    layer = lively(GPSA(12, heads, qkv_bias=heads == 4).double())
    x = torch.randn(2, grid[0] * grid[1], 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fast = ConViTAttention.of(layer, grid)
    torch.testing.assert_close(fast(x), formula(layer, x, *grid), rtol=0, atol=1e-12)
    maps = fast.get_attention(x)
    summed = (maps @ layer.v(x).unflatten(2, (heads, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(fast.proj(summed), fast(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_gradients_are_timms(dtype: torch.dtype, tolerance: float) -> None:
    layer = lively(GPSA(32, 4)).to(dtype)
    x = torch.randn(3, 49, 32, dtype=dtype, generator=torch.Generator().manual_seed(1))
    fast = ConViTAttention.of(copy.deepcopy(layer))
    for mine, theirs in zip(gradients(fast, x), gradients(layer, x), strict=True):
        if mine is None:  # the bias of positions, which no softmax sees
            assert theirs.abs().max() < tolerance
        else:
            assert (mine - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.parametrize("slow_blas", [False, True])
def test_a_network_of_timms_and_its_state(slow_blas: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "blas_lacks_avx512", lambda: slow_blas)
    monkeypatch.setattr(products, "MIN_BESIDE_AVX2", 1)
    model = timm.create_model("convit_tiny", img_size=64, patch_size=8, num_classes=5).eval()
    for block in model.blocks[:10]:
        lively(block.attn)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    expected, state = model(x), copy.deepcopy(model.state_dict())
    slopes = torch.autograd.grad(expected.square().sum(), [*model.parameters()])
    weights = [id(parameter) for parameter in model.parameters()]
    assert use_fast_attention(model) == 10
    assert use_fast_attention(model) == 0
    found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert slow_blas == ("_Linear" in str(found.grad_fn.next_functions[0][0])) or not products.packable(x)
    for mine, theirs in zip(
        torch.autograd.grad(found.square().sum(), [*model.parameters()], allow_unused=True), slopes, strict=True
    ):
        assert mine is None or (mine - theirs).abs().max() <= 1e-3 * max(theirs.abs().max(), 1e-3)
    assert [id(parameter) for parameter in model.parameters()] == weights
    assert model.state_dict().keys() == state.keys()
    model.load_state_dict(state)
    assert use_fast_attention(timm.create_model("test_resnet")) == 0


def test_dropout_of_attention_is_timms() -> None:
    layer = lively(GPSA(16, 4, attn_drop=0.5)).train()
    fast = ConViTAttention.of(copy.deepcopy(layer))
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    expected = layer(x)
    torch.manual_seed(3)
    assert torch.equal(fast(x), expected)
    assert not torch.allclose(fast(x), fast.eval()(x))


def test_hooks_and_low_precision() -> None:
    layer = lively(GPSA(16, 4))
    seen: list[torch.Size] = []
    layer.register_forward_hook(lambda module, given, found: seen.append(found.shape))
    fast = ConViTAttention.of(layer)
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))
    exact = fast(x)
    assert seen == [x.shape]
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(fast(x).float(), exact, rtol=0.05, atol=0.05)
    torch.testing.assert_close(copy.deepcopy(fast).bfloat16()(x.bfloat16()).float(), exact, rtol=0.05, atol=0.05)
