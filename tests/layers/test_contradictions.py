"""Convolutions that were changed by hand: PyTorch computes from the weight, and from what it derived of the padding
when the layer was built, whatever the attributes say. So does what replaces them, or they are refused; so is what no
attention can be, by its padding or its precision.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import StdConv2d
from torch import nn

import tcnn
from tcnn.errors import NothingToConvertError, UnsupportedLayerError
from tcnn.layers import GPSA2d, filters


def changed(conv: nn.Conv2d, **attributes: Any) -> nn.Conv2d:
    for name, value in attributes.items():
        setattr(conv, name, value)
    return conv


def cut(conv: nn.Conv2d, outputs: int, inputs: int | None = None) -> nn.Conv2d:
    """With fewer channels than its attributes say, as it is pruned by hand."""
    bias = None if conv.bias is None else nn.Parameter(conv.bias[:outputs].clone())
    return changed(conv, weight=nn.Parameter(conv.weight[:outputs, :inputs].clone()), bias=bias)


PADDED: dict[str, Callable[[], nn.Conv2d]] = {
    "none for reflect": lambda: changed(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), padding=(0, 0)),
    "none for circular": lambda: changed(nn.Conv2d(4, 4, 3, 2, 1, padding_mode="circular"), padding=(0, 0)),
    "more for replicate": lambda: changed(nn.Conv2d(4, 4, 3, padding=1, padding_mode="replicate"), padding=(2, 3)),
    "valid for reflect": lambda: changed(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), padding="valid"),
    "below 0, unused": lambda: changed(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), padding=(-1, -1)),
    "dilated, same, reflect": lambda: changed(
        nn.Conv2d(4, 4, (3, 2), padding="same", padding_mode="reflect"), dilation=(2, 2)
    ),
    "dilated, same": lambda: changed(nn.Conv2d(4, 4, (3, 2), padding="same"), dilation=(2, 2)),
    "another mode": lambda: changed(nn.Conv2d(4, 4, 3, padding=(1, 2)), padding_mode="circular"),
    "zeros again": lambda: changed(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), padding_mode="zeros"),
    "one number": lambda: changed(nn.Conv2d(4, 4, 3), padding=1, dilation=2, stride=2),
    "more zeros": lambda: changed(nn.Conv2d(4, 4, 3), padding=(3, 2)),
}


@pytest.mark.parametrize("name", PADDED)
def test_it_is_padded_as_it_is(name: str) -> None:
    torch.manual_seed(0)
    conv, images = PADDED[name]().double(), torch.randn(2, 4, 11, 9, dtype=torch.float64)
    torch.testing.assert_close(GPSA2d.from_conv2d(conv)(images), conv(images), rtol=1e-12, atol=1e-12)


REFUSED: dict[str, tuple[Callable[[], nn.Conv2d], str]] = {
    "fewer outputs": (
        lambda: cut(nn.Conv2d(4, 4, 3), 2),
        "(2, 4, 3, 3), its out_channels, in_channels, groups and ker",
    ),
    "one output": (
        lambda: cut(nn.Conv2d(4, 4, 3, bias=False), 1),
        "kernel_size say (4, 4, 3, 3): set them to what the",
    ),
    "fewer inputs": (lambda: cut(nn.Conv2d(4, 4, 3), 4, 3), "its weight has the shape (4, 3, 3, 3), its out_channels"),
    "standardised": (lambda: cut(StdConv2d(4, 4, 3), 4, 1), "its weight has the shape (4, 1, 3, 3), its out_channels"),
    "another kernel": (lambda: changed(nn.Conv2d(2, 2, 3), kernel_size=(5, 5)), "say (2, 2, 5, 5): set them to what"),
    "other groups": (lambda: changed(nn.Conv2d(4, 4, 3), groups=2), "kernel_size say (4, 2, 3, 3): set them to what"),
    "a bias of one": (
        lambda: changed(nn.Conv2d(2, 2, 3), bias=nn.Parameter(torch.ones(1))),
        "its bias has the shape (1,), its out_channels say (2,): give one that fits",
    ),
    "cropped": (
        lambda: changed(nn.Conv2d(2, 2, 5, padding_mode="reflect"), _reversed_padding_repeated_twice=[-1, 0, 1, 1]),
        "its padding is (1, -1), expected 0 or more each way",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_shape_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    with pytest.raises(UnsupportedLayerError) as caught:
        GPSA2d.from_conv2d(make())
    assert reason in str(caught.value)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_a_layer_that_pads_by_tensorflows_rule_pads_with_zeros(mode: Any) -> None:
    with pytest.raises(
        UnsupportedLayerError, match=f"^padding_mode: expected 'zeros' with padding 'dynamic'.*'{mode}'$"
    ):
        GPSA2d(4, 4, 3, padding="dynamic", padding_mode=mode)
    torch.manual_seed(0)
    layer, images = GPSA2d(4, 4, 3, padding="dynamic", padding_mode="zeros"), torch.randn(1, 4, 7, 7)
    torch.testing.assert_close(layer(images), nn.functional.conv2d(images, layer.filter, layer.bias, padding=1))


@pytest.mark.parametrize("position", ["isotropic", "quadratic"])
@pytest.mark.parametrize(("dtype", "dilation"), [(torch.bfloat16, 257), (torch.float16, 2049)])
@torch.no_grad()
def test_taps_that_a_dtype_cannot_hold_are_refused(dtype: torch.dtype, dilation: int, position: Any) -> None:
    """Where it can hold them, or needs no more than which is which, the layer is the convolution bit for bit."""
    sizes: dict[str, Any] = {"kernel_size": (3, 1), "padding": (dilation, 0), "dilation": (dilation, 1)}
    conv, told = nn.Conv2d(1, 1, **sizes), f"{dtype} cannot hold the positions of its taps, up to {dilation} pixels"
    layer = GPSA2d.from_conv2d(conv, position=position)
    conv.to(dtype)
    for make in (
        lambda: GPSA2d.from_conv2d(conv, position=position),
        lambda: GPSA2d(1, 1, **sizes, position=position, dtype=dtype),
        lambda: layer.to(dtype),
    ):
        with pytest.raises(UnsupportedLayerError, match=told):
            make()
    images = torch.randn(1, 1, dilation + 3, 1, dtype=dtype)
    assert torch.equal(GPSA2d.from_conv2d(conv, position="relative")(images), conv(images))
    conv.dilation, conv.padding = (dilation - 1, 1), (dilation - 1, 0)
    assert torch.equal(GPSA2d.from_conv2d(conv, position=position)(images), conv(images))


def test_a_model_says_so_and_is_converted_once_the_attributes_are_set() -> None:
    """Half of the channels were cut off in two layers."""
    first, last = cut(nn.Conv2d(3, 8, 3, padding=1), 4), cut(nn.Conv2d(8, 8, 3, stride=2, padding=1), 4, 4)
    model = nn.Sequential(first, last, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with pytest.raises(NothingToConvertError, match="its weight has the shape"):
        tcnn.convert(model, target="1", input_size=16)
    first.out_channels = last.in_channels = last.out_channels = 4
    assert filters.refusal(last) is None
    converted = tcnn.convert(model, target="1", input_size=16).model
    assert tcnn.verify(model, converted, input_size=(16, 16), float64=False).passed
