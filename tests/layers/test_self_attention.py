"""Attention of other networks: Cordonnier's (2020) against its formula, one head at a time, in float64; ConViT's
without its maps: timm's outputs and gradients, on squares and other grids, in every mode.
"""

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import timm
import torch
from sampled import crossed
from timm.models.convit import GPSA
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.layers.convit import ConViTAttention, use_fast_attention
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms import products

RelativeError = Callable[[Tensor, Tensor], float]
KINDS = [("isotropic", False), ("quadratic", False), ("relative", False), ("relative", True)]


def softplus(raw: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(5 * raw)) / 5


def logits(p: dict[str, Tensor], kind: str, h: int, shift: Tensor, query: Tensor | None) -> Tensor:
    """Positional logits (…, N, N) of shifts (N, N, 2)."""
    if kind == "isotropic":
        return -softplus(p["locality_raw"][h]) * (shift - p["attention_centers"][h]).square().sum(-1)
    if kind == "quadratic":
        raw = p["precision_raw"][h]
        a, c = softplus(raw[0]), softplus(raw[1])
        down, right = (shift - p["attention_centers"][h]).unbind(-1)
        return -((a * down + raw[2] * right) ** 2 + (c * right) ** 2)
    place = shift.long() + len(p["row_embedding"]) // 2
    r = torch.cat([p["row_embedding"][place[..., 0]], p["column_embedding"][place[..., 1]]], -1)  # (N, N, 2E)
    if query is None:
        return r @ p["position_vector"][h].flatten()
    return torch.einsum("bmd,mnd->bmn", query, r) / math.sqrt(query.shape[-1])


@pytest.mark.parametrize("size", [(4, 4), (3, 5)], ids=str)
@pytest.mark.parametrize(("kind", "content"), KINDS)
def test_output_and_every_gradient(
    kind: str, content: bool, size: tuple[int, int], relative_error: RelativeError
) -> None:
    torch.manual_seed(0)
    layer = SelfAttention2d(6, 4, kind, content).double()  # type: ignore[arg-type]
    twins = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    x = torch.randn(2, *size, 6, dtype=torch.float64, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    places = torch.cartesian_prod(*(torch.arange(n) for n in size)).double()
    shift = places[None] - places[:, None]  # key − query
    tokens, heads = twin.flatten(1, 2), []
    for h in range(4):
        query = tokens @ twins["query.weight"][6 * h : 6 * h + 6].T if content else None
        score = logits(twins, kind, h, shift, query)
        if query is not None:
            score = score + query @ (tokens @ twins["key.weight"][6 * h : 6 * h + 6].T).transpose(1, 2) / math.sqrt(6)
        heads.append(torch.exp(score) / torch.exp(score).sum(-1, keepdim=True) @ tokens)
    expected = torch.cat(heads, -1) @ twins["proj.weight"].T + twins["proj.bias"]
    found = layer(x)
    assert relative_error(found, expected.unflatten(1, size)) < 1e-12
    upstream = torch.randn_like(found)
    found.backward(upstream)
    expected.unflatten(1, size).backward(upstream)
    for ours, theirs in ((x, twin), *((p, twins[name]) for name, p in layer.named_parameters())):
        assert relative_error(ours.grad, theirs.grad) < 1e-11
    maps = layer.attention(x)
    torch.testing.assert_close(maps.sum(-1), torch.ones_like(maps.sum(-1)), rtol=1e-12, atol=1e-12)
    strengths, centres = layer.summary()
    assert strengths.shape == (4,) and centres.shape == (4, 2) and bool((strengths > 0).all())


def test_impossible_layers_are_refused() -> None:
    for options, message in (
        ({"position": "isotropic", "content": True}, "content: expected relative"),
        ({"position": "relative-content"}, "position: give relative and content=True"),
        ({"position": "relative", "content": True, "embedding": 2}, "embedding: queries of 6"),
    ):
        with pytest.raises(RequestError, match=message):
            SelfAttention2d(6, 4, **options)  # type: ignore[arg-type]


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
    monkeypatch.setattr(products, "blas_is_intels_own", lambda: False)
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
