"""The fast way to compute attention: what it leaves out is exactly nothing. That it equals the paper's formula, outputs
and all gradients, is tested in test_gpsa_formula.py, which runs every way.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tcnn.errors import RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.backends.dense import Heads, content_attention, gated_positional, gated_positional_gradients
from tcnn.layers.backends.selection import backend, use_backend
from tcnn.layers.terms.parameters import value_in_projection

RelativeError = Callable[[Tensor, Tensor], float]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sinks", [0, 1, 7, 60])
def test_sinks_are_keys_of_zeros(sinks: int, relative_error: RelativeError) -> None:
    """Against the softmax over all keys, written out, with the gradients of queries and keys."""
    query, key, upstream = random(2, 3, 5, 4), 3 * random(2, 3, 6, 4, seed=1), random(2, 3, 5, 6, seed=2)

    def with_gradients(content: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        leaves = [query.clone().requires_grad_(), key.clone().requires_grad_()]
        maps = content(*leaves)
        return [maps, *torch.autograd.grad((maps * upstream).sum(), leaves)]

    def written_out(query: Tensor, key: Tensor) -> Tensor:
        weights = torch.exp(torch.einsum("bkmd,bknd->bkmn", query, key) / 4**0.5)
        return weights / (weights.sum(-1, keepdim=True) + sinks)

    def ours(query: Tensor, key: Tensor) -> Tensor:
        with_sink = torch.nn.functional.pad(key, (0, 0, 0, 1))
        return content_attention(query / 4**0.5, with_sink, sinks)[..., :-1]

    found = with_gradients(ours)
    for mine, theirs in zip(found, with_gradients(written_out), strict=True):
        assert relative_error(mine, theirs) < 1e-14


def test_large_logits_do_not_overflow() -> None:
    query = 1e3 * torch.ones(1, 1, 1, 1)
    maps = content_attention(query, torch.tensor([1.0, -1.0, 0.0]).view(1, 1, 3, 1), 5)
    assert maps.flatten().tolist() == [1.0, 0.0, 0.0]
    drowned = content_attention(query, torch.tensor([-1.0, -2.0, 0.0]).view(1, 1, 3, 1), 5)
    assert drowned.flatten().tolist() == [0.0, 0.0, 1.0], "all attention goes to the padding"


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"padding": 1}, (7, 6)), ({"padding": (2, 0), "stride": 2}, (8, 9)), ({"padding": 0}, (6, 6)),
        ({"padding": "same", "dilation": 2}, (5, 8)), ({"padding": "dynamic", "stride": 2}, (7, 7)),
        ({"padding": 1, "padding_mode": "reflect"}, (6, 5)), ({"padding": 4}, (3, 4)),
        ({"padding": 1, "groups": 2, "bias": False}, (5, 5)),
    ],
    ids=str,
)  # fmt: skip
def test_every_way_agree_to_rounding(
    options: dict[str, object], size: tuple[int, int], relative_error: RelativeError
) -> None:
    torch.manual_seed(0)
    layer = GPSA2d(4, 6, 3, temperature=0.7, dtype=torch.float64, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, results = random(3, 4, *size), []
    for name in ("auto", "dense", "fused", "reference"):
        leaf = x.clone().requires_grad_()
        with use_backend(name):  # type: ignore[arg-type]
            y = layer(leaf)
        results.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
    for found in results[:-1]:
        for ours, theirs in zip(found, results[-1], strict=True):
            assert relative_error(ours, theirs) < 1e-13


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    layer = GPSA2d(2, 2, 3, padding=1, temperature=1.0, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(layer, random(1, 2, 3, 3).requires_grad_())


def test_the_way_can_be_chosen_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TCNN_ATTENTION", raising=False)
    assert backend() == "auto"
    monkeypatch.setenv("TCNN_ATTENTION", "reference")
    assert backend() == "reference"
    with use_backend("auto"):
        assert backend() == "auto"
    assert backend() == "reference"
    monkeypatch.setenv("TCNN_ATTENTION", "quick")
    with pytest.raises(
        RequestError, match="TCNN_ATTENTION: expected one of auto, reference, dense, fused, found 'quick'"
    ):
        backend()


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"content": "window:3"}, {"content": "pooled:2"}], ids=str)
@pytest.mark.parametrize("content_heads", [0, 2])
@pytest.mark.parametrize("way", ["auto", "dense", "fused"])
def test_value_of_a_large_batch_is_multiplied_into_the_projection(
    options: dict[str, object], content_heads: int, way: Any, relative_error: RelativeError
) -> None:
    """Outputs, all gradients and theirs, against W_val on the pixels as the formula has it."""
    torch.manual_seed(0)
    layer = GPSA2d(4, 6, 3, padding=1, content_heads=content_heads, dtype=torch.float64, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for matrix in (layer.query, layer.key, layer.value, layer.proj):
            matrix.normal_()
    layer.set_temperature(0.8)
    x = random(5, 4, 6, 5).requires_grad_()
    assert value_in_projection(layer.tensors, x).value is None
    assert value_in_projection(layer.tensors, x[:1]).value is layer.value

    def derivatives(backend: Any) -> list[Tensor]:
        with use_backend(backend):
            y = layer(x)
            once = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()], create_graph=True)
            return [y, *once, *torch.autograd.grad(once[0].square().sum(), [x, layer.value, layer.query])]

    for found, expected in zip(derivatives(way), derivatives("reference"), strict=True):
        assert relative_error(found, expected) < 1e-12


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_compiler_multiplies_where_it_knows_the_sizes(dynamic: bool, relative_error: RelativeError) -> None:
    """One graph for all sizes is not cut in two by it."""
    layer = GPSA2d(4, 6, 3, padding=1, dtype=torch.float64, temperature=0.8)
    with torch.no_grad():
        layer.value.normal_()
    graphs: list[int] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        products = [node for node in graph.graph.nodes if node.target is torch.nn.functional.linear]
        shapes = [[str(side) for side in node.meta["example_value"].shape] for node in products]
        graphs.append(shapes.count(["6", "9", "4"]))  # W_out W_val
        return graph

    compiled = torch.compile(layer, backend=keep, fullgraph=True, dynamic=dynamic)
    for images in (2, 5):
        x = random(images, 4, 6, 5)
        with use_backend("dense"):
            assert relative_error(compiled(x), layer(x)) < 1e-13
    assert graphs == ([0] if dynamic else [1, 1])


@pytest.mark.parametrize("sinks", [None, 0, 12])
@pytest.mark.parametrize("factored", [True, False], ids=["factors", "whole"])
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (4, 5, 7, 9), (6, 6, 6, 6), (3, 8, 2, 5)], ids=str)
def test_gradients_of_the_gated_positional_attention(
    size: tuple[int, int, int, int], factored: bool, sinks: int | None
) -> None:
    """The closed form against what autograd finds: of factors, and of a whole map without factors."""
    down, across, height, width = size
    factors = random(3, down, height), random(3, across, width, seed=1)
    rows, columns = factors if factored else (random(3, down, across, height, width), None)
    none = torch.empty(0)
    heads = Heads(none, none, none, rows, columns, random(3, seed=2), sinks)
    leaves = [tensor.requires_grad_() for tensor in (rows, columns, heads.gate) if tensor is not None]
    maps = gated_positional(heads)
    upstream = random(*maps.shape, seed=3)

    with torch.no_grad():
        found = [tensor for tensor in gated_positional_gradients(heads, upstream) if tensor is not None]

    for one, other in zip(found, torch.autograd.grad(maps, leaves, upstream), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
