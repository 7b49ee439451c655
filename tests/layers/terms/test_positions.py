"""The geometry of queries and keys, against what PyTorch's own convolution and unfold do; the positional attention
against one softmax over all keys."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

from tcnn.config import HARD_TEMPERATURE
from tcnn.layers.filters import geometry_of
from tcnn.layers.terms import positions
from tcnn.layers.terms.positions import Geometry

SOFTMAX_TOLERANCE = 1e-13
"""Absolute, on probabilities: eps 2e-16 times logits of at most some hundreds."""

property_test = settings(deadline=None, max_examples=60, derandomize=True, database=None)


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def geometries_on_maps(draw: st.DrawFn) -> tuple[Geometry, tuple[int, int]]:
    """A geometry and the size of a padded map that its kernel fits into."""
    kernel, stride, dilation = draw(pairs(1, 5)), draw(pairs(1, 3)), draw(pairs(1, 3))
    spare = draw(pairs(0, 6))
    size = tuple(d * (k - 1) + 1 + extra for k, d, extra in zip(kernel, dilation, spare, strict=True))
    return Geometry(kernel, stride, dilation), size


def read_pixels(geometry: Geometry, size: tuple[int, int]) -> Tensor:
    """Which pixel of the padded map each tap of each output reads, as PyTorch unfolds it: (K, M) flat indices."""
    index = torch.arange(size[0] * size[1], dtype=torch.float64).reshape(1, 1, *size)
    patches = F.unfold(index, geometry.kernel_size, geometry.dilation, padding=0, stride=geometry.stride)
    return patches[0].long()


@property_test
@given(geometries_on_maps())
def test_output_size_is_the_convolutions(drawn: tuple[Geometry, tuple[int, int]]) -> None:
    geometry, size = drawn
    conv = nn.Conv2d(1, 1, geometry.kernel_size, geometry.stride, 0, geometry.dilation, device="meta")
    expected = conv(torch.empty(1, 1, *size, device="meta")).shape[-2:]
    assert positions.output_size(size, geometry) == tuple(expected)


@property_test
@given(geometries_on_maps())
def test_query_plus_offset_is_the_pixel_that_the_tap_reads(drawn: tuple[Geometry, tuple[int, int]]) -> None:
    geometry, (height, width) = drawn
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    asking_rows = positions.take_query_pixels(rows, geometry).flatten()  # (M,)
    asking_columns = positions.take_query_pixels(columns, geometry).flatten()
    offsets = positions.tap_offsets(geometry)
    assert offsets.shape == (geometry.heads, 2)
    looked_at = (asking_rows + offsets[:, :1]) * width + asking_columns + offsets[:, 1:]  # (K, M)
    assert torch.equal(looked_at.long(), read_pixels(geometry, (height, width)))


@property_test
@given(geometries_on_maps())
def test_hard_attention_is_one_hot_at_the_taps(drawn: tuple[Geometry, tuple[int, int]]) -> None:
    """At τ = 1/46 with α = 1 every head attends to the one pixel its tap reads: this is what makes it a convolution."""
    geometry, size = drawn
    strength = torch.full((geometry.heads,), 1 / HARD_TEMPERATURE, dtype=torch.float64)
    rows, columns = positions.positional_attention(strength, positions.tap_offsets(geometry), size, geometry)
    maps = torch.einsum("kiy,kjx->kijyx", rows, columns).flatten(3).flatten(1, 2)  # (K, M, N)
    expected = F.one_hot(read_pixels(geometry, size), size[0] * size[1]).double()
    assert torch.equal(maps == 1, expected == 1), "the attended pixel must get exactly 1"
    assert maps[expected == 0].sum() <= maps.numel() * torch.exp(torch.tensor(-46.0)), "all others at most exp(-46)"


@property_test
@given(geometries_on_maps(), st.integers(0, 2**32 - 1), st.sampled_from((HARD_TEMPERATURE, 0.3, 1.0)))
def test_separable_softmax_is_the_full_softmax(
    drawn: tuple[Geometry, tuple[int, int]], seed: int, temperature: float
) -> None:
    geometry, (height, width) = drawn
    generator = torch.Generator().manual_seed(seed)
    strength = 3 * torch.rand(geometry.heads, generator=generator, dtype=torch.float64) / temperature
    centres = positions.tap_offsets(geometry)
    centres = centres + torch.randn(centres.shape, generator=generator, dtype=torch.float64)
    rows, columns = positions.positional_attention(strength, centres, (height, width), geometry)

    outputs = positions.output_size((height, width), geometry)
    assert rows.shape == (geometry.heads, outputs[0], height)
    assert columns.shape == (geometry.heads, outputs[1], width)
    for factor in (rows, columns):
        torch.testing.assert_close(factor.sum(-1), torch.ones_like(factor[..., 0]), rtol=0, atol=SOFTMAX_TOLERANCE)

    pixels = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()  # (N, 2)
    grid = pixels.T.reshape(2, height, width)
    queries = positions.take_query_pixels(grid, geometry).flatten(1).T  # (M, 2)
    delta = pixels[None] - queries[:, None]  # (M, N, 2)
    squared_distance = (delta[None] - centres[:, None, None]).square().sum(-1)  # (K, M, N)
    full = torch.softmax(-strength[:, None, None] * squared_distance, dim=-1)
    outer = torch.einsum("kiy,kjx->kijyx", rows, columns).reshape(full.shape)
    torch.testing.assert_close(outer, full, rtol=0, atol=SOFTMAX_TOLERANCE)


def test_full_softmax_example_by_hand() -> None:
    """One head, one query in the middle of three pixels, α/τ = log 2: weights 1/4 : 1/2 : 1/4 about Δ = 0."""
    strength, centre = torch.tensor([2.0]).log(), torch.zeros(1)
    row = positions.axis_attention(strength, centre, queries=torch.tensor([1.0]), size=3)
    torch.testing.assert_close(row, torch.tensor([[[0.25, 0.5, 0.25]]]))


@property_test
@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.integers(1, 3))
def test_dynamic_padding_is_timms(size: int, kernel: int, stride: int, dilation: int) -> None:
    geometry = Geometry((kernel, 3), (stride, 2), (dilation, 1), "dynamic")
    x = torch.rand(1, 2, size, 6)
    padded = positions.pad(x, geometry)
    assert torch.equal(padded, pad_same(x, (kernel, 3), (stride, 2), (dilation, 1)))
    assert positions.output_size(padded.shape[-2:], geometry) == (-(-size // stride), 3)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"), [(7, 1, 2, 1), (11, 3, 5, 1), (9, 3, 5, 1), (9, 3, 2, 1), (10, 2, 3, 2)]
)
def test_dynamic_padding_of_a_size_that_is_left_open(size: int, kernel: int, stride: int, dilation: int) -> None:
    """A formula, of which the size that it is traced with is one case, and which asks nothing of the size."""
    shapes = ShapeEnv()
    (traced,) = FakeTensorMode(shape_env=shapes).from_tensor(torch.empty(size), static_shapes=False).shape
    found = positions.same_padding(traced, kernel, stride, dilation)
    assert isinstance(traced, torch.SymInt) and shapes.guards == []
    assert tuple(side.node.hint for side in found) == positions.same_padding(size, kernel, stride, dilation)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (2, 1, 0, 3), (0, 2, 1, 0)], ids=str)
def test_static_padding_follows_the_mode(padding: tuple[int, int, int, int], mode: str) -> None:
    """Against NumPy's padding, which knows the four modes under other names."""
    numpy_modes = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    x = torch.rand(2, 3, 5, 4)
    left, right, top, bottom = padding
    widths = ((0, 0), (0, 0), (top, bottom), (left, right))
    expected = torch.from_numpy(np.pad(x.numpy(), widths, mode=numpy_modes[mode]))
    assert torch.equal(positions.pad(x, Geometry((3, 3), padding=padding, padding_mode=mode)), expected)


@pytest.mark.parametrize(
    ("kernel", "dilation", "centre"),
    [((3, 3), (1, 1), (1, 1)), ((1, 5), (1, 1), (0, 2)), ((4, 2), (1, 1), (1, 0)), ((2, 3), (3, 2), (1, 2))],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_centre_of_the_kernel(kernel: tuple[int, int], dilation: tuple[int, int], centre: tuple[int, int]) -> None:
    """An even span has no middle: the pixel before it is taken, so that the padding of "same" puts it on the output."""
    geometry = Geometry(kernel, dilation=dilation)
    assert geometry.centre == centre
    assert geometry.heads == kernel[0] * kernel[1]
    # The first tap of a padding="same" convolution moves an impulse at the origin by the amount of padding before it.
    conv = nn.Conv2d(1, 1, kernel, padding="same", dilation=dilation, bias=False)
    impulse = torch.zeros(1, 1, 7, 6)
    impulse[..., 0, 0] = 1
    with torch.no_grad():
        conv.weight.zero_()[..., 0, 0] = 1
        assert conv(impulse)[0, 0].nonzero().tolist() == [list(geometry.centre)]


@pytest.mark.parametrize("padding", [0, 1, 2, (1, 0), (0, 1), "same"])
@pytest.mark.parametrize("kernel", [1, 2, 3, (3, 1), (1, 3), 5])
def test_whether_every_pixel_asks_and_no_other(padding: Any, kernel: Any) -> None:
    strides = (1,) if padding == "same" else (1, 2, (1, 2))  # PyTorch has no others there
    for stride, dilation in itertools.product(strides, (1, 2)):
        geometry = geometry_of(nn.Conv2d(1, 1, kernel, stride, padding, dilation))
        x = torch.arange(1.0, 1 + 11 * 12).view(1, 1, 11, 12)
        asking = positions.take_query_pixels(positions.pad(x, geometry), geometry)
        assert geometry.queries_every_pixel == torch.equal(asking, x), (stride, dilation)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_which_taps_a_dtype_has(dtype: torch.dtype) -> None:
    for dilation in (1, 127, 255, 256, 257, 258, 514, 2047, 2048, 2049, 2052, 65504, 65536):
        geometry = Geometry((3, 1), dilation=(dilation, 1))
        taps = positions.tap_offsets(geometry)
        assert positions.has_taps(dtype, geometry) == torch.equal(taps, taps.to(dtype).double()), dilation
