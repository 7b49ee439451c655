"""Kinds of positional attention against their formulas, written out pair by pair, in float64, gradients included; and
every kind, fresh from a convolution, against the convolution.

The witness shares no code with tcnn: it builds the table of all shifts and takes one softmax over all keys.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sampled import crossed, sampled
from torch import Tensor, nn
from torch.nn import functional as F

from tcnn.errors import RequestError
from tcnn.layers import GPSA2d
from tcnn.layers.backends import chunks
from tcnn.layers.backends.convolution import is_hard
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.terms import kinds

RelativeError = Callable[[Tensor, Tensor], float]
OTHERS = ("quadratic", "relative", "relative-content")
CASES: tuple[tuple[dict[str, Any], tuple[int, int]], ...] = (
    ({"padding": 1}, (6, 5)),
    ({"padding": 1, "stride": (2, 1)}, (7, 6)),
    ({"padding": 2, "dilation": 2, "groups": 2}, (5, 8)),
    ({"kernel_size": (2, 3), "padding": (0, 2), "bias": False}, (5, 6)),
    ({"padding": (2, 1), "padding_mode": "reflect", "content_heads": 2}, (6, 4)),
    ({"padding": 1, "stride": 2, "content_heads": 1, "groups": 2, "position_reach": 2}, (8, 7)),
)


def arbitrary(kind: str, options: dict[str, Any], temperature: float) -> GPSA2d:
    """A layer in which nothing stands at its conversion value."""
    torch.manual_seed(5)
    given = {"kernel_size": 3, "head_dim": 3, "dtype": torch.float64, **options}
    if not kind.startswith("relative"):
        given.pop("position_reach", None)
    layer = GPSA2d(4, 6, temperature=temperature, position=kind, **given)  # type: ignore[arg-type]
    with torch.no_grad():
        for name in ("query", "key", "value", "proj"):
            getattr(layer, name).copy_(0.5 * torch.randn_like(getattr(layer, name)))
        layer.gating_param.copy_(0.5 * torch.randn_like(layer.gating_param) * temperature**0.5)
        for name in kinds.NAMES[layer.position]:
            getattr(layer, name).add_(0.3 * torch.randn_like(getattr(layer, name)))
    return layer


def padded(x: Tensor, options: dict[str, Any]) -> Tensor:
    amount = options.get("padding", 0)
    down, across = amount if isinstance(amount, tuple) else (amount, amount)
    mode = options.get("padding_mode", "zeros")
    return F.pad(x, (across, across, down, down), mode="constant" if mode == "zeros" else mode)


def both(options: dict[str, Any], name: str) -> tuple[int, int]:
    value = options.get(name, {"kernel_size": 3}.get(name, 1))
    return value if isinstance(value, tuple) else (value, value)


def positional_logits(kind: str, p: dict[str, Tensor], h: int, shift: Tensor, q: Tensor) -> Tensor:
    """Logits at τ = 1 of shifts (M, N, 2) for queries q (B, M, d): (M, N) or (B, M, N)."""
    if kind == "quadratic":
        raw = p["precision_raw"][h]
        a, c = torch.log(1 + torch.exp(5 * raw[0])) / 5, torch.log(1 + torch.exp(5 * raw[1])) / 5
        lower = torch.stack([torch.stack([a, torch.zeros_like(a)]), torch.stack([raw[2], c])])
        apart = shift - p["attention_centers"][h]
        return -torch.einsum("mni,ij,mnj->mn", apart, lower @ lower.T, apart)
    reach = len(p["row_embedding"]) // 2
    place = (shift.clamp(-reach, reach) + reach).long()
    rows, columns = p["row_embedding"][place[..., 0]], p["column_embedding"][place[..., 1]]  # (M, N, E)
    logits = rows @ p["position_vector"][h, 0] + columns @ p["position_vector"][h, 1]
    if kind == "relative":
        return logits
    looked_for = torch.einsum("bmd,aed->bmae", q / math.sqrt(q.shape[-1]), p["position_query"][h])
    return logits + torch.einsum("bme,mne->bmn", looked_for[:, :, 0], rows) + torch.einsum(
        "bme,mne->bmn", looked_for[:, :, 1], columns
    )  # fmt: skip


def formula(kind: str, p: dict[str, Tensor], taus: tuple[float, float], x: Tensor, options: dict[str, Any]) -> Tensor:
    """Y = b + Σ_h A_h X W_val W_out^h on (B, C_in, H, W), one head at a time."""
    x = padded(x, options)
    kernel, stride, dilation = (both(options, name) for name in ("kernel_size", "stride", "dilation"))
    groups, content_heads = options.get("groups", 1), options.get("content_heads", 0)
    tokens = x.flatten(2).transpose(1, 2)
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    starts = [range(0, x.shape[2 + a] - spans[a], stride[a]) for a in (0, 1)]
    asked = [(top + spans[0] // 2, left + spans[1] // 2) for top in starts[0] for left in starts[1]]
    keys = [(row, column) for row in range(x.shape[2]) for column in range(x.shape[3])]
    shift = torch.tensor([[(k[0] - q[0], k[1] - q[1]) for k in keys] for q in asked], dtype=x.dtype)
    asking = tokens[:, [keys.index(query) for query in asked]]
    taps = kernel[0] * kernel[1]
    heads = taps + content_heads
    width = p["query"].shape[0] // heads
    y = torch.zeros(x.shape[0], len(asked), 6, dtype=x.dtype)
    for h in range(heads):
        q, k = (t @ p[name][h * width : (h + 1) * width].T for t, name in ((asking, "query"), (tokens, "key")))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width), dim=-1)
        if h < taps:
            gate = torch.sigmoid(p["gating_param"][h] / taus[0])
            positional = torch.softmax(positional_logits(kind, p, h, shift, q) / taus[1], dim=-1)
            weights = (1 - gate) * weights + gate * positional
        seen = weights @ tokens @ p["value"].T
        for group in range(groups):
            reads, writes = 4 // groups, 6 // groups
            own = p["proj"][group * writes : (group + 1) * writes, h * reads : (h + 1) * reads]
            part = seen[..., group * reads : (group + 1) * reads] @ own.T
            y = y + F.pad(part, (group * writes, 6 - (group + 1) * writes))
    y = y + p["bias"] if "bias" in p else y
    return y.transpose(1, 2).unflatten(2, (len(starts[0]), len(starts[1])))


@pytest.mark.parametrize(
    ("taus", "way"),
    [
        pytest.param(taus, way, marks=pytest.mark.slow if (taus[0] < 1) == (way != "reference") else ())
        for taus in ((1.0, 1.0), (0.3, 0.15))
        for way in ("reference", "dense", "fused")
    ],
    ids=str,
)
@pytest.mark.parametrize(("kind", "case"), crossed(OTHERS, CASES, 3), ids=str)
def test_output_and_every_gradient(
    kind: str, case: tuple[dict[str, Any], tuple[int, int]], taus: tuple[float, float], way: Any,
    relative_error: RelativeError,
) -> None:  # fmt: skip
    options, size = case
    layer = arbitrary(kind, options, 1.0)
    layer.set_temperatures(*taus)
    x = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    twins = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    twin = x.detach().clone().requires_grad_()
    with use_backend(way):
        found = layer(x)
    expected = formula(kind, twins, taus, twin, options)
    assert relative_error(found, expected) < 1e-12
    upstream = torch.randn_like(expected)
    found.backward(upstream)
    expected.backward(upstream)
    assert relative_error(x.grad, twin.grad) < 1e-11
    for name, parameter in layer.named_parameters():
        assert relative_error(parameter.grad, twins[name].grad) < 1e-11, name


@pytest.mark.parametrize("content", ["window:3", "pooled:2", "global,unpadded"])
@pytest.mark.parametrize("kind", OTHERS)
def test_scopes_of_content_do_not_touch_positions(kind: str, content: str, relative_error: RelativeError) -> None:
    layer = arbitrary(kind, {"padding": 1, "content": content, "content_heads": 1}, 0.5)
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    found = layer(x)
    with use_backend("reference"):
        assert relative_error(found, layer(x)) < 1e-13
    maps = layer.attention(x)
    rows = maps.positional[..., : layer.geometry.heads, :, :].sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"padding": 1}, (7, 6)),
        ({"padding": 1, "stride": 2, "bias": False}, (8, 7)),
        ({"padding": 6, "dilation": 6, "kernel_size": (5, 3)}, (20, 9)),
        ({"kernel_size": (2, 4), "padding": "same"}, (5, 6)),
        ({"padding": 1, "groups": 4, "padding_mode": "circular"}, (5, 5)),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", OTHERS)
def test_each_begins_as_the_convolution(
    kind: Any, options: dict[str, Any], size: tuple[int, int], dtype: torch.dtype, relative_error: RelativeError
) -> None:
    torch.manual_seed(3)
    conv = nn.Conv2d(4, 8, **{"kernel_size": 3, **options}).to(dtype)
    layer = GPSA2d.from_conv2d(conv, position=kind)
    x = torch.randn(2, 4, *size, dtype=dtype)
    assert is_hard(layer.tensors, layer.geometry)
    for way in ("reference", "fused"):
        with use_backend(way):  # type: ignore[arg-type]
            assert relative_error(layer(x), conv(x)) < (1e-10 if dtype == torch.float64 else 1e-5)
    with use_backend("auto"):
        assert relative_error(layer(x), conv(x)) < (1e-13 if dtype == torch.float64 else 1e-6)
    assert "position" in repr(layer)


BROKEN: dict[str, dict[str, Callable[[GPSA2d], object]]] = {
    "quadratic": {
        "a moved centre": lambda layer: layer.attention_centers[4].add_(0.1),
        "a long axis": lambda layer: layer.precision_raw[4, 2].fill_(3.0),
    },
    "relative": {
        "a second peak": lambda layer: layer.row_embedding[3].fill_(0.9),
        "another shift": lambda layer: layer.position_vector[4].neg_(),
    },
    "relative-content": {"content": lambda layer: layer.position_query[4, 0, 0, 0].fill_(1e-3)},
}


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, ways in BROKEN.items() for what in ways])
def test_a_head_that_left_its_tap_is_computed_as_attention(kind: str, what: str, relative_error: RelativeError) -> None:
    """The convolution in the layer's place would hide it."""
    torch.manual_seed(3)
    layer = GPSA2d.from_conv2d(nn.Conv2d(4, 6, 3, padding=1).double(), position=kind)  # type: ignore[arg-type]
    layer.query.data.normal_()
    with torch.no_grad():
        BROKEN[kind][what](layer)
    assert not is_hard(layer.tensors, layer.geometry)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    found = layer(x)
    with use_backend("reference"):
        assert relative_error(found, layer(x)) < 1e-12


@pytest.mark.parametrize("kind", OTHERS)
def test_folded_and_fused_layers_keep_the_function(kind: str, relative_error: RelativeError) -> None:
    layer = arbitrary(kind, {"padding": 1, "content_heads": 1}, 0.4)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.gating_param[3], layer.gating_param[5] = -1e3, -1e3
        layer.proj.unflatten(1, (10, -1))[:, 7].zero_()
        whole = ["attention"] * 9 + ["content"]
        folds = [*whole[:3], "content", "attention", "content", "attention", "dropped", "attention", "content"]
        expected = layer(x)
        for some in (whole, folds):
            folded = FoldedGPSA2d.from_gpsa2d(layer, some, [None] * 10)  # type: ignore[arg-type]
            assert relative_error(folded(x), expected) < 1e-12
        for made in (FusedGPSA2d(layer), FusedGPSA2d(folded), FusedGPSA2d(copy.deepcopy(layer).float())):
            assert relative_error(made(x.to(made.state_dict()["proj"].dtype)), expected) < 1e-5
            made.load_state_dict(made.state_dict())
        assert relative_error(FusedGPSA2d(folded)(x), expected) < 1e-12


@pytest.mark.parametrize("kind", OTHERS)
def test_chunks_add_up(kind: str, relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few query rows at a time, with maps that are cut by them as well."""
    layer, found = arbitrary(kind, {"padding": 1, "stride": (1, 2)}, 0.4), []
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64, requires_grad=True)
    for size, way in ((2**6, "fused"), (2**23, "reference")):
        monkeypatch.setattr(chunks, "CPU_CHUNK", size)
        with use_backend(way):  # type: ignore[arg-type]
            y = layer(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    assert all(relative_error(one, other) < 1e-12 for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("kind", sampled(OTHERS, OTHERS[1:2]))
def test_finite_differences_and_second_derivatives(kind: str) -> None:
    layer = arbitrary(kind, {"padding": 1, "kernel_size": (2, 1), "content_heads": 1}, 0.7)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x, *parameters), fast_mode=True)


@pytest.mark.parametrize("kind", sampled(OTHERS, OTHERS[:1]))
def test_half_precision_and_compilers_know_them(kind: str, relative_error: RelativeError) -> None:
    layer = arbitrary(kind, {"padding": 1}, 0.4)
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    exported = torch.export.export(layer.eval(), (x,))
    assert relative_error(exported.module()(x), layer(x)) < 1e-12
    assert relative_error(copy.deepcopy(layer).bfloat16()(x.bfloat16()), layer(x)) < 0.05


def test_the_reach_lies_beyond_every_tap() -> None:
    with pytest.raises(RequestError, match="position_reach: expected more than the 4 pixels"):
        GPSA2d(4, 4, 3, padding=4, dilation=4, position="relative", position_reach=4)
    assert GPSA2d(4, 4, 3, dilation=20, position="relative").position_reach == 21


@pytest.mark.parametrize("kind", OTHERS)
@torch.no_grad()
def test_positions_are_in_float32_under_autocast(kind: str) -> None:
    layer, x = arbitrary(kind, {"dtype": torch.float32, "padding": 1}, 0.1), torch.randn(2, 4, 5, 6)
    if kind == "relative-content":
        layer.position_query.zero_()  # queries themselves are autocast's to round
    expected = layer.positional_factors((7, 8), x)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer.positional_factors((7, 8), x)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)
