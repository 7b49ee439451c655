"""A folded layer against the paper's formula, written out pair by pair, with every head replaced by what it became.

The witness shares no code with tcnn: it pads by index, loops over heads, queries and their keys, and multiplies W_val
and W_out^h one after the other, each group of channels by itself. All in float64.
"""

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.backends import chunks
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d, HeadKind
from tcnn.layers.terms import positions

KINDS: tuple[HeadKind, ...] = ("convolution", "content", "attention", "dropped")

CASES = (
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "stride": 2, "size": (6, 5)},
    {"kernel_size": (2, 2), "padding": "same", "size": (4, 5)},
    {"kernel_size": (4, 3), "padding": (2, 1), "stride": (2, 1), "size": (5, 6)},
    {"kernel_size": (1, 3), "padding": "valid", "bias": False},
    {"kernel_size": 3, "padding": 2, "dilation": 2, "size": (5, 4)},
    {"kernel_size": 3, "padding": 1, "groups": 2},
    {"kernel_size": 3, "padding": 2, "groups": 4, "dilation": 2, "out_channels": 4, "stride": (2, 1)},
    {"kernel_size": (2, 2), "padding": "dynamic", "stride": 2, "size": (5, 5)},
    {"kernel_size": 3, "padding": "dynamic", "groups": 2, "stride": 2, "size": (5, 4), "bias": False},
    *({"kernel_size": 3, "padding": 1, "padding_mode": mode} for mode in ("reflect", "replicate", "circular")),
)
"""Odd and even kernels, strides, dilations, groups, every padding."""


def trained(kernel_size: object, seed: int = 0, mixing: bool = True, **options: object) -> GPSA2d:
    """A layer in float64 with arbitrary parameters everywhere, as after training."""
    given = {"in_channels": 4, "out_channels": 6, "head_dim": 3, "temperature": 0.4, **options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = GPSA2d(kernel_size=kernel_size, dtype=torch.float64, **given)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn_like(parameter))
            layer.locality_raw.uniform_(0.1, 1.0)
            if not mixing:
                layer.value.copy_(torch.eye(4, dtype=torch.float64))
    return layer.eval()


def padded_by_index(x: Tensor, layer: GPSA2d) -> Tensor:
    """The padded map, pixel by pixel."""
    g = layer.geometry
    height, width = x.shape[-2:]
    if g.padding == "dynamic":
        amounts = []
        for n, k, s, d in zip((height, width), g.kernel_size, g.stride, g.dilation, strict=True):
            total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            amounts.append((total // 2, total - total // 2))
        (top, bottom), (left, right) = amounts
    else:
        left, right, top, bottom = g.padding

    def place(i: int, n: int) -> int | None:
        if 0 <= i < n:
            return i
        if g.padding_mode == "zeros":
            return None
        if g.padding_mode == "replicate":
            return min(max(i, 0), n - 1)
        return i % n if g.padding_mode == "circular" else (-i if i < 0 else 2 * (n - 1) - i)

    y = x.new_zeros(*x.shape[:2], height + top + bottom, width + left + right)
    for i, j in itertools.product(range(y.shape[2]), range(y.shape[3])):
        row, column = place(i - top, height), place(j - left, width)
        if row is not None and column is not None:
            y[:, :, i, j] = x[:, :, row, column]
    return y


@torch.no_grad()
def witness(x: Tensor, layer: GPSA2d, kinds: list[HeadKind], targets: list[int | None]) -> Tensor:
    """Σ_h A_h X W_val W_out^h + b with A_h one-hot at its tap, content alone, the paper's Eq. 4, or 0."""
    g = layer.geometry
    padded = padded_by_index(x, layer)
    height, width = padded.shape[-2:]
    spans = [d * (k - 1) for k, d in zip(g.kernel_size, g.dilation, strict=True)]
    rows, columns = ((n - span - 1) // s + 1 for n, span, s in zip((height, width), spans, g.stride, strict=True))
    out = x.new_zeros(x.shape[0], layer.out_channels, rows, columns)
    per_group = layer.in_channels // layer.groups
    outputs = layer.out_channels // layer.groups
    keys = list(itertools.product(range(height), range(width)))
    for b, i, j in itertools.product(range(x.shape[0]), range(rows), range(columns)):
        corner = i * g.stride[0], j * g.stride[1]
        asking = corner[0] + spans[0] // 2, corner[1] + spans[1] // 2
        total = x.new_zeros(layer.out_channels)
        for h, kind in enumerate(kinds):
            if kind == "dropped":
                continue
            if kind == "convolution":
                tap = targets[h]
                assert tap is not None
                row, column = divmod(tap, g.kernel_size[1])
                brought = padded[b, :, corner[0] + row * g.dilation[0], corner[1] + column * g.dilation[1]]
            else:
                d = layer.head_dim
                wq, wk = layer.query[h * d : (h + 1) * d], layer.key[h * d : (h + 1) * d]
                q = wq @ padded[b, :, asking[0], asking[1]]
                weights = torch.softmax(torch.stack([q @ (wk @ padded[b, :, y, z]) for y, z in keys]) / d**0.5, 0)
                if kind == "attention":
                    alpha = torch.log1p(torch.exp(5 * layer.locality_raw[h])) / 5 / layer.position_temperature
                    centre = layer.attention_centers[h]
                    distances = torch.stack(
                        [(y - asking[0] - centre[0]) ** 2 + (z - asking[1] - centre[1]) ** 2 for y, z in keys]
                    )
                    gate = 1 / (1 + torch.exp(-layer.gating_param[h] / layer.gate_temperature))
                    weights = (1 - gate) * weights + gate * torch.softmax(-alpha * distances, 0)
                brought = sum(w * padded[b, :, y, z] for w, (y, z) in zip(weights, keys, strict=True))
            value = layer.value @ brought
            for group in range(layer.groups):
                w_out = layer.proj[group * outputs : (group + 1) * outputs, h * per_group : (h + 1) * per_group]
                total[group * outputs : (group + 1) * outputs] += (
                    w_out @ value[group * per_group : (group + 1) * per_group]
                )
        out[b, :, i, j] = total if layer.bias is None else total + layer.bias
    return out


def folding(layer: GPSA2d, kinds: list[HeadKind], seed: int = 0) -> tuple[FoldedGPSA2d, list[int | None]]:
    """The folded layer; convolutional heads go to taps drawn at random, so two may meet in one."""
    draw = torch.randint(layer.heads, (layer.heads,), generator=torch.Generator().manual_seed(seed)).tolist()
    targets = [tap if kind == "convolution" else None for tap, kind in zip(draw, kinds, strict=True)]
    return FoldedGPSA2d.from_gpsa2d(layer, kinds, targets), targets


def image(layer: GPSA2d, size: tuple[int, int], batch: int = 1, seed: int = 1) -> Tensor:
    shape = batch, layer.in_channels, *size
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(case: dict[str, object], **more: object) -> tuple[GPSA2d, Tensor]:
    options = {**case, **more}
    size = options.pop("size", (4, 5))
    layer = trained(**options)  # type: ignore[arg-type]
    return layer, image(layer, size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "mixing"),
    [
        *(pytest.param(case, True, marks=pytest.mark.slow if number % 4 else ()) for number, case in enumerate(CASES)),
        *(pytest.param(case, False, marks=() if case is CASES[8] else pytest.mark.slow) for case in CASES),
    ],
    ids=str,
)
def test_all_kinds_together(case: dict[str, object], mixing: bool, relative_error: Callable[..., float]) -> None:
    layer, x = made(case, mixing=mixing)
    kinds = [KINDS[h % 4] for h in range(layer.heads)]
    layer_folded, targets = folding(layer, kinds)
    assert relative_error(layer_folded(x), witness(x, layer, kinds, targets)) < 1e-13


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case", [CASES[8], *(pytest.param(CASES[n], marks=pytest.mark.slow) for n in (0, 3, 7))], ids=str
)
def test_one_kind_alone(kind: HeadKind, case: dict[str, object], relative_error: Callable[..., float]) -> None:
    layer, x = made(case)
    kinds = [kind] * layer.heads
    layer_folded, targets = folding(layer, kinds)
    expected = witness(x, layer, kinds, targets)
    assert relative_error(layer_folded(x), expected) < 1e-13
    names = {name for name, _ in layer_folded.named_parameters()}
    assert ("gating_param" in names) == (kind == "attention")
    assert ("query" in names) == (kind in ("attention", "content"))
    assert ("weight" in names) == (kind in ("convolution", "dropped"))


def test_nothing_folded_is_the_layer_itself(relative_error: Callable[..., float]) -> None:
    layer, x = made(CASES[0], seed=5)
    kinds: list[HeadKind] = ["attention"] * 9
    assert relative_error(folding(layer, kinds)[0](x), layer(x)) < 1e-13


def settled(case: dict[str, object], content: str) -> tuple[GPSA2d, Tensor, list[HeadKind]]:
    """A layer with a content scope whose heads *are* what they are to become, as far as float64 can tell."""
    layer, x = made(case, content=content)
    kinds = [KINDS[h % 4] for h in range(layer.heads)]
    taps = positions.tap_offsets(layer.geometry).double()
    with torch.no_grad():
        for h, kind in enumerate(kinds):
            if kind == "convolution":
                layer.gating_param[h], layer.locality_raw[h], layer.attention_centers[h] = 1e3, 1e3, taps[h]
            elif kind == "content":
                layer.gating_param[h] = -1e3
            elif kind == "dropped":
                layer.proj[:, h * layer.proj.shape[1] // layer.heads : (h + 1) * layer.proj.shape[1] // layer.heads] = 0
    return layer, x, kinds


@pytest.mark.parametrize("content", ["window:2", "window:3", "pooled:2", "pooled:3"])
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[6], CASES[9]], ids=str)
def test_heads_that_stay_see_what_they_saw(
    case: dict[str, object], content: str, relative_error: Callable[..., float]
) -> None:
    layer, x, kinds = settled(case, content)
    found = FoldedGPSA2d.from_gpsa2d(layer, kinds, list(range(layer.heads)))
    with use_backend("reference"):  # proved against the formula in test_scope_formula
        expected = layer(x)
    assert relative_error(found(x), expected) < 1e-13
    with torch.no_grad():  # with what is kept from one call to the next
        assert relative_error(found(x), expected) < 1e-13
        assert torch.equal(found(x), found(x))


@torch.no_grad()
def test_what_is_kept_is_dropped_when_a_parameter_changes() -> None:
    layer, x = made(CASES[0])
    found = folding(layer, ["content"] * 4 + ["attention"] * 5)[0]
    for parameter in found.parameters():
        before = found(x)
        parameter.mul_(1.5)
        assert not torch.equal(found(x), before)
        assert torch.equal(found(x), copy.deepcopy(found)(x))  # a copy has kept nothing


def test_w_val_is_absorbed_where_it_can_be() -> None:
    for groups, mixing, stays in ((1, True, False), (2, True, True), (2, False, False)):
        layer = trained(3, mixing=mixing, groups=groups, padding=1)
        found = folding(layer, ["convolution"] * 9)[0]
        assert (found.value is not None) == stays
        assert found.weight is not None
        assert found.weight.shape == (6, 4 // groups, 3, 3)


def test_large_maps_are_done_in_parts(monkeypatch: pytest.MonkeyPatch, relative_error: Callable[..., float]) -> None:
    layer, x = made({"kernel_size": 3, "padding": 1, "size": (9, 7)})
    found = folding(layer, [KINDS[h % 4] for h in range(9)])[0]
    whole = found(x)
    monkeypatch.setattr(chunks, "plan_for", lambda heads: chunks.ChunkPlan(1, 2, 0))
    assert relative_error(found(x), whole) < 1e-14


def test_what_a_layer_has_to_do() -> None:
    """One image without a batch, half precision, and gradients for whatever is left."""
    layer, x = made(CASES[0])
    found = folding(layer, [KINDS[h % 4] for h in range(9)])[0]
    whole = found(x)
    assert torch.equal(found(x[0]), whole[0])
    assert found.half()(x.half()).dtype == torch.float16
    found = folding(layer, [KINDS[h % 4] for h in range(9)])[0]
    found(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in found.parameters())


@pytest.mark.slow
def test_it_is_compiled_without_a_break() -> None:
    layer, x = made(CASES[0])
    found = folding(layer, [KINDS[h % 4] for h in range(9)])[0]
    compiled = torch.compile(found, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(x), found(x), rtol=1e-12, atol=1e-12)


def test_it_says_what_it_is() -> None:
    found = folding(trained(3, padding=1), [KINDS[h % 4] for h in range(9)])[0]
    assert "convolution=3, content=2, attention=2, dropped=2" in repr(found)
    assert (found.kernel_size, found.stride, found.dilation) == ((3, 3), (1, 1), (1, 1))
    assert isinstance(found, nn.Module)
