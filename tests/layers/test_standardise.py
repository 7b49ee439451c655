"""The way back to a weight-standardised convolution, where there is one."""

from typing import Any

import pytest
import torch
from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from torch import nn

from tcnn.layers.filters import effective_filter, load_filter

STANDARDISED = (StdConv2d, StdConv2dSame, ScaledStdConv2d, ScaledStdConv2dSame)
WITH_GAIN = (ScaledStdConv2d, ScaledStdConv2dSame)


def drawn(kind: Any, seed: int, **options: Any) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        conv = kind(8, 6, 3, bias=True, **options)
        for parameter in conv.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter) + 0.1)
    return conv


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", STANDARDISED)
def test_a_standardised_filter_finds_its_way_back(kind: Any, groups: int, dtype: torch.dtype) -> None:
    source = drawn(kind, 0, groups=groups).to(dtype)
    other = drawn(kind, 1, groups=groups).to(dtype)
    aim = effective_filter(source).clone()
    if kind in WITH_GAIN:
        aim = 3 * aim  # whatever scale training gave it
    assert load_filter(other, aim, source.bias)
    torch.testing.assert_close(effective_filter(other), aim, rtol=0, atol=3e-6 if dtype == torch.float32 else 1e-14)
    x = torch.randn(2, 8, 7, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float32).to(dtype)
    expected = nn.functional.conv2d(x, aim, source.bias, padding=other.padding, groups=groups)
    if not isinstance(other, StdConv2dSame | ScaledStdConv2dSame):  # these pad by themselves
        torch.testing.assert_close(other(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", STANDARDISED)
def test_a_filter_whose_mean_is_not_0_has_no_way_back(kind: Any) -> None:
    source = drawn(kind, 0)
    assert not load_filter(drawn(kind, 1), effective_filter(source) + 0.01, source.bias)


@pytest.mark.parametrize("kind", [StdConv2d, StdConv2dSame])
def test_without_a_gain_there_is_one_scale_only(kind: Any) -> None:
    source = drawn(kind, 0)
    assert not load_filter(drawn(kind, 1), 1.5 * effective_filter(source), source.bias)


@pytest.mark.parametrize("kind", [nn.Conv2d, Conv2dSame])
def test_a_plain_convolution_takes_any_filter_bit_for_bit(kind: Any) -> None:
    source, other = drawn(kind, 0), drawn(kind, 1)
    with torch.no_grad():
        source.weight[0] = -0.0
    weight, bias = source.weight.detach(), source.bias.detach()
    assert load_filter(other, weight, bias)
    for found, expected in ((other.weight, weight), (other.bias, bias)):
        assert torch.equal(found.detach().view(torch.int32), expected.view(torch.int32))
    with torch.no_grad():
        other.weight.add_(1)
    assert not torch.equal(other.weight, source.weight), "the filter is shared"


def test_whether_a_layer_can_be_trained_stays() -> None:
    conv = drawn(ScaledStdConv2d, 0).requires_grad_(False)
    assert load_filter(conv, effective_filter(drawn(ScaledStdConv2d, 1)), None)
    assert not any(parameter.requires_grad for parameter in conv.parameters())
