"""Self-attention of Cordonnier et al. 2020 against its formula, one head at a time, in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tcnn.errors import RequestError
from tcnn.layers.self_attention import SelfAttention2d

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
