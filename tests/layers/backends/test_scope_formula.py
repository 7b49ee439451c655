"""Content scopes against the formula, written out: masks for windows, PyTorch's own adaptive pooling for pools.

The witness shares no code with tcnn: one head at a time, a full table of queries and keys, one softmax over it.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from sampled import crossed, sampled
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers import GPSA2d
from tcnn.layers.backends import scoped
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.functional import is_global
from tcnn.layers.terms import positions, scopes

RelativeError = Callable[[Tensor, Tensor], float]

OUTPUT_TOLERANCE = 1e-12
GRADIENT_TOLERANCE = 1e-11
"""Relative L2 in float64. Measured: 1e-15 and 1e-14."""


@dataclass(frozen=True)
class Case:
    """Options of a layer beside 4 to 6 channels and a 3×3 kernel, and the size of the map."""

    size: tuple[int, int]
    options: dict[str, object] = field(default_factory=lambda: {"padding": 1})

    def __str__(self) -> str:
        return "-".join(map(str, (*self.size, *itertools.chain(*self.options.items()))))


CASES = (
    Case((6, 6)),
    Case((7, 4)),
    Case((9, 8), {"padding": 1, "stride": 2}),
    Case((5, 10), {"padding": 2, "stride": (2, 3)}),
    Case((7, 7), {"padding": "dynamic", "stride": 2}),
    Case((8, 5), {"padding": 2, "dilation": 2, "groups": 2}),
    Case((6, 7), {"padding": 1, "padding_mode": "reflect", "groups": 2, "bias": False}),
    Case((6, 5), {"padding": (2, 1), "kernel_size": (4, 2), "stride": (1, 2)}),
    Case((12, 13), {"padding": 0, "stride": 5}),  # windows without any query
)
SCOPES = ("window:1", "window:3", "window:4", "window:6", "pooled:1", "pooled:3", "pooled:4", "pooled:6")
UNPADDED = ("global,unpadded", "window:1,unpadded", "window:3,unpadded", "pooled:1,unpadded", "pooled:4,unpadded")


def arbitrary_layer(case: Case, content: str, temperature: float = 0.7) -> GPSA2d:
    """A layer in which nothing stands at its conversion value."""
    torch.manual_seed(7)
    options = {"kernel_size": 3, "head_dim": 3, **case.options}
    layer = GPSA2d(4, 6, temperature=temperature, dtype=torch.float64, content=content, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return layer


def padded_by(case: Case, x: Tensor) -> Tensor:
    """The map with its padding, by the convolution's rule."""
    padding, mode = case.options["padding"], case.options.get("padding_mode", "zeros")
    if padding == "dynamic":  # stride 2, kernel 3
        totals = [max(0, (math.ceil(n / 2) - 1) * 2 + 3 - n) for n in case.size]
        amounts = [totals[1] // 2, totals[1] - totals[1] // 2, totals[0] // 2, totals[0] - totals[0] // 2]
    else:
        rows, columns = padding if isinstance(padding, tuple) else (padding, padding)
        amounts = [columns, columns, rows, rows]
    return F.pad(x, amounts, mode="constant" if mode == "zeros" else mode)


def query_places(case: Case, size: tuple[int, int]) -> list[list[int]]:
    """Per axis, the pixels of the padded map that ask."""
    kernel, stride, dilation = (
        value if isinstance(value, tuple) else (value, value)
        for value in (
            case.options.get(key, default) for key, default in (("kernel_size", 3), ("stride", 1), ("dilation", 1))
        )
    )
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    return [[first + spans[a] // 2 for first in range(0, size[a] - spans[a], stride[a])] for a in (0, 1)]


def formula(p: dict[str, Tensor], temperature: float, x: Tensor, case: Case, content: str) -> Tensor:
    """Y = b + Σ_h ((1 − g_h)·content_h + g_h·positional_h) X W_val W_out^h on (B, C_in, h, w)."""
    padded = padded_by(case, x)
    height, width = padded.shape[-2:]
    keys = list(itertools.product(range(height), range(width)))
    rows, columns = query_places(case, (height, width))
    queries = list(itertools.product(rows, columns))
    tokens = padded.flatten(2).transpose(1, 2)
    asking = tokens[:, [keys.index(query) for query in queries]]
    scope, *without = content.split(",")
    kind, _, number = scope.partition(":")
    size = int(number or 99)
    mask = torch.zeros(len(queries), len(keys), dtype=x.dtype)
    if kind in ("window", "global"):
        # As few windows as suffice for the map's own pixels, all alike.
        sides = [math.ceil(n / math.ceil(m / size)) for n, m in zip((height, width), x.shape[-2:], strict=True)]
        for (m, query), (n, key) in itertools.product(enumerate(queries), enumerate(keys)):
            if any(a // side != b // side for a, b, side in zip(query, key, sides, strict=True)):
                mask[m, n] = -math.inf
        if without:
            # A pixel is the map's own if padding ones with zeros leaves it a one.
            own = padded_by(
                replace(case, options={**case.options, "padding_mode": "zeros"}), torch.ones_like(x[:1, :1])
            )
            mask[:, own.flatten() == 0] = -math.inf
        seen = tokens
    else:
        pooled = x if without else padded
        grid = [min(size, n) for n in pooled.shape[-2:]]
        seen = F.adaptive_avg_pool2d(pooled, grid).flatten(2).transpose(1, 2)
        mask = mask[:, : seen.shape[1]]
    blind = (mask == -math.inf).all(1)  # in a window of padding alone, where that is no key
    mask[blind] = 0
    delta = torch.tensor([[(k[0] - q[0], k[1] - q[1]) for k in keys] for q in queries], dtype=x.dtype)

    heads, groups = len(p["gating_param"]), case.options.get("groups", 1)
    y = torch.zeros(x.shape[0], 6, len(queries), dtype=x.dtype)
    for h in range(heads):
        q = asking @ p["query"].chunk(heads)[h].T
        k = seen @ p["key"].chunk(heads)[h].T
        alpha = torch.log(1 + torch.exp(5 * p["locality_raw"][h])) / 5
        distance = ((delta - p["attention_centers"][h]) ** 2).sum(-1)
        gate = 1 / (1 + torch.exp(-p["gating_param"][h] / temperature))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + mask, dim=-1)
        by_content = weights.masked_fill(blind[:, None], 0) @ seen
        by_place = torch.softmax(-alpha / temperature * distance, dim=-1) @ tokens
        mixed = ((1 - gate) * by_content + gate * by_place) @ p["value"].T
        y = y + F.conv1d(mixed.transpose(1, 2), p["proj"].chunk(heads, dim=1)[h][..., None], groups=groups)  # type: ignore[arg-type]
    if "bias" in p:
        y = y + p["bias"][:, None]
    return y.unflatten(2, (len(rows), len(columns)))


def with_gradients(run: Callable[[Tensor], Tensor], x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """The output, and the gradient of a random functional of it by x and every parameter."""
    leaf = x.clone().requires_grad_()
    y = run(leaf)
    cotangent = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(3))
    return [y, *torch.autograd.grad(y, [leaf, *parameters], cotangent)]


@pytest.mark.parametrize(("case", "content"), crossed(CASES, SCOPES + UNPADDED, 7), ids=str)
def test_output_and_every_gradient(case: Case, content: str, relative_error: RelativeError) -> None:
    layer = arbitrary_layer(case, content)
    x = torch.randn(2, 4, *case.size, dtype=torch.float64)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    twins = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    expected = with_gradients(lambda x: formula(twins, 0.7, x, case, content), x, list(twins.values()))
    for way in ("auto", "dense", "reference"):
        with use_backend(way):  # type: ignore[arg-type]
            found = with_gradients(layer, x, list(parameters))
        assert relative_error(found[0], expected[0]) < OUTPUT_TOLERANCE, way
        for name, ours, theirs in zip(("x", *names), found[1:], expected[1:], strict=True):
            # With one pool every query sees the same, whatever it asks: the gradients of the logits are zero.
            if theirs.norm() < 1e-12:
                assert ours.norm() < 1e-12, (way, name)
            else:
                assert relative_error(ours, theirs) < GRADIENT_TOLERANCE, (way, name)


@pytest.mark.parametrize("content", SCOPES)
def test_maps_are_what_forward_mixes(content: str, relative_error: RelativeError) -> None:
    """`attention()` is over pixels for every scope; a pool's weight is shared out among its pixels."""
    layer = arbitrary_layer(Case((7, 8), {"padding": 0, "stride": 2}), content)
    x = torch.randn(2, 4, 7, 8, dtype=torch.float64)
    maps = layer.attention(x)
    assert maps.content.shape == (2, 9, 3 * 3, 7 * 8)
    mixed = maps.total @ x.flatten(2).transpose(1, 2)[:, None] @ layer.value.T
    y = mixed.transpose(1, 2).flatten(2) @ layer.proj.T + layer.bias
    assert relative_error(layer(x), y.transpose(1, 2).unflatten(2, (3, 3))) < OUTPUT_TOLERANCE
    for rows in (maps.content.sum(-1), maps.total.sum(-1)):
        torch.testing.assert_close(rows, torch.ones_like(rows))


@pytest.mark.parametrize("content", UNPADDED)
def test_padding_is_not_looked_at(content: str) -> None:
    """Not where it lies, and weights sum to 1 over the rest; positions look at all."""
    case = Case((7, 8), {"padding": (2, 1)})
    maps = arbitrary_layer(case, content).attention(torch.randn(2, 4, 7, 8, dtype=torch.float64))
    content_maps = maps.content.unflatten(3, (11, 10))
    inner = content_maps[..., 2:-2, 1:-1].sum((-2, -1)).unflatten(2, (9, 8))
    torch.testing.assert_close(content_maps.sum((-2, -1)).unflatten(2, (9, 8)), inner)
    torch.testing.assert_close(inner[:, :, 1:-1], torch.ones_like(inner[:, :, 1:-1]))
    assert bool((maps.positional.unflatten(2, (11, 10))[..., 0, :] > 0).any())


def test_a_window_is_where_the_query_lies() -> None:
    """The queries of a 3×3 kernel with stride 2 stand at 1, 3, 5; windows of 3 begin at 0, 3, 6."""
    layer = arbitrary_layer(Case((7, 8), {"padding": 0, "stride": 2}), "window:3")
    seen = layer.attention(torch.randn(1, 4, 7, 8, dtype=torch.float64)).content[0, 0].unflatten(1, (7, 8)) > 0
    first, middle, corner = seen[0].nonzero(), seen[4].nonzero(), seen[8].nonzero()
    assert (first.amin(0).tolist(), first.amax(0).tolist()) == ([0, 0], [2, 2])
    assert (middle.amin(0).tolist(), middle.amax(0).tolist()) == ([3, 3], [5, 5])
    assert (corner.amin(0).tolist(), corner.amax(0).tolist()) == ([3, 3], [5, 5])
    assert len(first) == len(middle) == 9


@pytest.mark.parametrize("content", ["window:9", "window:999999", "pooled:9", "pooled:50"])
@pytest.mark.parametrize("way", ["auto", "reference"])
def test_a_scope_as_large_as_the_map_is_global(content: str, way: str, relative_error: RelativeError) -> None:
    case = Case((6, 7), {"padding": 1})  # 8×9 with its padding
    x = torch.randn(2, 4, 6, 7, dtype=torch.float64)
    alone, local = arbitrary_layer(case, "global"), arbitrary_layer(case, content)
    with torch.no_grad(), use_backend(way):  # type: ignore[arg-type]
        assert relative_error(local(x), alone(x)) < OUTPUT_TOLERANCE
        assert way == "reference" or torch.equal(local(x), alone(x))
        assert relative_error(local.attention(x).content, alone.attention(x).content) < OUTPUT_TOLERANCE
        # The linear way is not taken here, but under a compiler it is: it gives the same.
        tokens = linear(local, x)
        assert relative_error(tokens.transpose(1, 2).unflatten(2, (6, 7)), alone(x)) < OUTPUT_TOLERANCE


@pytest.mark.parametrize("content", ["window:6", "pooled:8"])
def test_channels_and_images_are_no_pixels(content: str) -> None:
    """However many there are, the scope covers the map, and then the faster way is taken."""
    layer = GPSA2d(4, 6, 3, padding=1, content=content)
    x = torch.empty(50, 100, 6, 5)
    assert is_global(layer.scope, x, layer.geometry)
    larger = torch.empty(1, 1, 9, 5)
    assert not is_global(layer.scope, larger, layer.geometry)


@pytest.mark.parametrize("content", ["window:3", "window:3,unpadded", "pooled:2", "pooled:2,unpadded"])
def test_everything_is_made_where_the_map_is(content: str) -> None:
    """PyTorch refuses to compute with the meta device's tensors and others together, as it does with a GPU's."""
    layer = GPSA2d(4, 6, 3, padding=1, stride=2, content=content, device="meta")
    x = torch.empty(2, 4, 7, 8, device="meta")
    assert layer(x).shape == (2, 6, 4, 4)
    with use_backend("reference"):
        assert layer(x).shape == (2, 6, 4, 4)
    assert layer.attention(x).content.device.type == "meta"
    assert {pixel.device.type for pixel in scopes.query_pixels((9, 10), layer.geometry, x.device)} == {"meta"}


def linear(layer: GPSA2d, x: Tensor) -> Tensor:
    padded = positions.pad(x, layer.geometry)
    factors = layer.positional_factors((padded.shape[-2], padded.shape[-1]))
    return scoped.attend(AttentionInputs(x, layer.geometry, layer.scope, factors, layer.tensors))


def test_positions_by_two_products(relative_error: RelativeError) -> None:
    """Against the outer product, on a map that is not square, at strengths that leave no weight far from the tap."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 9, 14, 5, dtype=torch.float64, generator=generator)
    for strength in (1e-3, 1.0, 46.0, 1e4):
        geometry = positions.Geometry((3, 3), (1, 2))
        alpha = torch.full((9,), strength, dtype=torch.float64)
        centres = positions.tap_offsets(geometry) + 0.3
        rows, columns = positions.positional_attention(alpha, centres, (9, 14), geometry)
        expected = torch.einsum("kiy,kjx,byxc->bijkc", rows, columns, values)
        assert relative_error(scoped.apply_positions(rows, columns, values), expected) < 1e-14


@pytest.mark.parametrize(
    "content",
    sampled(["window:2", "pooled:2", "window:2,unpadded", "global,unpadded"], ["pooled:2", "window:2,unpadded"]),
)
def test_second_derivatives(content: str) -> None:
    torch.manual_seed(0)
    layer = GPSA2d(2, 2, 3, padding=1, temperature=1.0, dtype=torch.float64, content=content)
    x = torch.randn(1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(layer, x)
