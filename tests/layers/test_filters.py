"""Reading a convolution: which filter it applies, how it pads, and which convolutions are refused with what reason;
and the way back to a weight-standardised convolution, where there is one.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from timm.layers.conv2d_same import Conv2dSameExport
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from tcnn.errors import UnsupportedLayerError
from tcnn.layers import GPSA2d, filters
from tcnn.layers.filters import effective_filter, load_filter
from tcnn.layers.terms.positions import Geometry

FILTER_TOLERANCE = 1e-14
"""Absolute, on float64 filters with values of order one."""

CONVOLUTIONS: dict[str, Callable[[], nn.Conv2d]] = {
    "Conv2d": lambda: nn.Conv2d(4, 6, (3, 2), groups=2),
    "Conv2d, no bias": lambda: nn.Conv2d(4, 6, 3, bias=False),
    "StdConv2d": lambda: StdConv2d(4, 6, 3, padding=0, groups=2, eps=1e-2),
    "StdConv2dSame": lambda: StdConv2dSame(4, 6, (2, 3), padding="valid", bias=True),
    "ScaledStdConv2d": lambda: ScaledStdConv2d(4, 6, 3, padding=0, gamma=1.7, eps=1e-2),
    "ScaledStdConv2dSame": lambda: ScaledStdConv2dSame(4, 6, 3, padding="valid", groups=2, gamma=0.6),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_effective_filter_is_the_impulse_response(name: str) -> None:
    torch.manual_seed(0)
    conv = CONVOLUTIONS[name]().double()
    detune(conv)
    weight = filters.effective_filter(conv)
    assert not weight.requires_grad
    torch.testing.assert_close(densified(weight, conv.groups), impulse_response(conv), rtol=0, atol=FILTER_TOLERANCE)
    assert filters.is_standardised(conv) == ("Std" in name)


@torch.no_grad()
def detune(conv: nn.Conv2d) -> None:
    """Move the weights away from mean 0 and variance 1, and the gains, where there are any, away from 1."""
    conv.weight.mul_(3).add_(0.4)
    if hasattr(conv, "gain"):
        conv.gain.copy_(torch.linspace(-1.5, 2, conv.out_channels).reshape(-1, 1, 1, 1))


@torch.no_grad()
def impulse_response(conv: nn.Conv2d) -> Tensor:
    """What an unpadded convolution applies, measured from outside: (C_out, C_in, kh, kw), zero between its groups."""
    shape = (conv.in_channels, *conv.kernel_size)
    count = torch.Size(shape).numel()
    impulses = torch.eye(count, dtype=torch.float64).reshape(count, *shape)
    response = conv(impulses) - conv(torch.zeros(1, *shape, dtype=torch.float64))
    return response[:, :, 0, 0].T.reshape(conv.out_channels, *shape)


def densified(weight: Tensor, groups: int) -> Tensor:
    """(C_out, C_in / groups, kh, kw) → (C_out, C_in, kh, kw), zero between the groups."""
    outputs, inputs = weight.shape[:2]
    dense = weight.new_zeros(outputs, inputs * groups, *weight.shape[2:])
    for o in range(outputs):
        first = o // (outputs // groups) * inputs
        dense[o, first : first + inputs] = weight[o]
    return dense


GEOMETRIES = [
    (nn.Conv2d(2, 2, 3), Geometry((3, 3))),
    (nn.Conv2d(2, 2, (4, 1), (2, 1), (2, 0), (1, 3)), Geometry((4, 1), (2, 1), (1, 3), (0, 0, 2, 2))),
    (nn.Conv2d(2, 2, 3, padding="valid"), Geometry((3, 3))),
    (nn.Conv2d(2, 2, (2, 4), padding="same", dilation=(3, 1)), Geometry((2, 4), (1, 1), (3, 1), (1, 2, 1, 2))),
    (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), Geometry((3, 3), (1, 1), (1, 1), (1,) * 4, "circular")),
    (StdConv2d(2, 2, 3), Geometry((3, 3), padding=(1, 1, 1, 1))),
    (Conv2dSame(2, 2, 3, 2), Geometry((3, 3), (2, 2), (1, 1), "dynamic")),
    (Conv2dSameExport(2, 2, 3, 2), Geometry((3, 3), (2, 2), (1, 1), "dynamic")),
    (StdConv2dSame(2, 2, 3, 2), Geometry((3, 3), (2, 2), (1, 1), "dynamic")),
    # timm turns "same" into a fixed padding where it does not depend on the size of the map
    (ScaledStdConv2dSame(2, 2, 3, 1), Geometry((3, 3), padding=(1, 1, 1, 1))),
    (ScaledStdConv2dSame(2, 2, 3, 2, padding="valid"), Geometry((3, 3), (2, 2))),
]


@pytest.mark.parametrize(("conv", "expected"), GEOMETRIES, ids=lambda value: type(value).__name__)
def test_geometry(conv: nn.Conv2d, expected: Geometry) -> None:
    assert filters.refusal(conv) is None
    assert filters.geometry_of(conv) == expected


class OwnForward(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OwnConvForward(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, 2 * weight, bias)


class OwnCall(nn.Conv2d):
    def __call__(self, *args: Tensor) -> Tensor:
        return 2 * super().__call__(*args)


def with_hook(register: str, on: str | None = None) -> nn.Conv2d:
    conv = nn.Conv2d(2, 2, 3)
    getattr(getattr(conv, on) if on else conv, register)(lambda *_: None)
    return conv


def with_child() -> nn.Conv2d:
    conv = nn.Conv2d(2, 2, 3)
    conv.lora_down = nn.Linear(2, 1)
    return conv


def with_attribute(conv: nn.Conv2d, name: str, value: object) -> nn.Conv2d:
    setattr(conv, name, value)
    return conv


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "linear": (lambda: nn.Linear(2, 2), "Linear is not an nn.Conv2d"),
    "1-D": (lambda: nn.Conv1d(2, 2, 3), "Conv1d is not an nn.Conv2d"),
    "transposed": (lambda: nn.ConvTranspose2d(2, 2, 3), "ConvTranspose2d is not an nn.Conv2d"),
    "lazy": (lambda: nn.LazyConv2d(2, 3), "not known before the first forward pass"),
    "own forward": (lambda: OwnForward(2, 2, 3), "OwnForward has a forward of its own"),
    "own _conv_forward": (lambda: OwnConvForward(2, 2, 3), "OwnConvForward has a forward of its own"),
    "replaced forward": (
        lambda: with_attribute(nn.Conv2d(2, 2, 3), "forward", functools.partial(torch.mul, other=2)),
        "replaced on the instance",
    ),
    "replaced _conv_forward": (
        lambda: with_attribute(nn.Conv2d(2, 2, 3), "_conv_forward", lambda x, weight, bias: x),
        "its _conv_forward was replaced on the instance",
    ),
    "own __call__": (lambda: OwnCall(2, 2, 3), "OwnCall has a forward of its own"),
    "forward hook": (lambda: with_hook("register_forward_hook"), "it has forward hooks, which a replacement would"),
    "forward pre-hook": (lambda: with_hook("register_forward_pre_hook"), "it has forward pre-hooks, which a"),
    "backward hook": (lambda: with_hook("register_full_backward_hook"), "it has backward hooks, which a replacement"),
    "backward pre-hook": (lambda: with_hook("register_full_backward_pre_hook"), "it has backward pre-hooks, which a"),
    "state dict hook": (lambda: with_hook("register_state_dict_post_hook"), "it has state dict hooks, which a"),
    "loading hook": (lambda: with_hook("register_load_state_dict_post_hook"), "it has load state dict post-hooks"),
    "hook on the filter": (lambda: with_hook("register_hook", "weight"), "it has hooks on weight, which a replacement"),
    "hook on the bias": (lambda: with_hook("register_post_accumulate_grad_hook", "bias"), "it has hooks on bias"),
    "parameter of its own": (
        lambda: with_attribute(nn.Conv2d(2, 2, 3), "scale", nn.Parameter(torch.ones(2))),
        "it holds scale beside its weight and bias, which a replacement would lose",
    ),
    "layer of its own": (with_child, "it holds lora_down beside its weight and bias"),
    "weight norm": (lambda: parametrizations.weight_norm(nn.Conv2d(2, 2, 3)), "it is parametrised"),
    "spectral norm": (lambda: parametrizations.spectral_norm(StdConv2d(2, 2, 3)), "it is parametrised"),
    "pruned": (lambda: prune.l1_unstructured(nn.Conv2d(2, 2, 3), "weight", 4), "hooks, which a replacement would lose"),
    "hook-based spectral norm": (
        lambda: nn.utils.spectral_norm(nn.Conv2d(2, 2, 3)),
        "hooks, which a replacement would lose",
    ),
    "timm, foreign padding mode": (
        lambda: with_attribute(StdConv2d(2, 2, 3), "padding_mode", "reflect"),
        "StdConv2d ignores padding_mode 'reflect'",
    ),
    "hook-based weight norm": (
        lambda: nn.utils.weight_norm(nn.Conv2d(2, 2, 3)),
        "forward pre-hooks, which a replacement would lose: remove them, or bake weight norm, spectral norm or pruning",
    ),
    "complex": (lambda: nn.Conv2d(2, 2, 3, dtype=torch.complex64), "expected a floating-point type"),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str) -> None:
    make, reason = REFUSED[name]
    module = make()
    assert reason in (filters.refusal(module) or "")
    with pytest.raises(UnsupportedLayerError) as caught:
        GPSA2d.from_conv2d(module)  # type: ignore[arg-type]
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refusing_does_not_touch_a_power_iteration() -> None:
    """Reading the weight of a spectrally normalised layer in training mode moves its singular vectors."""
    conv = parametrizations.spectral_norm(nn.Conv2d(4, 6, 3)).train()
    before = copy.deepcopy(conv.state_dict())
    assert filters.refusal(conv) is not None
    for name, value in conv.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the source changed"


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_what_was_baked_in_is_accepted() -> None:
    normed, pruned = nn.utils.weight_norm(nn.Conv2d(2, 2, 3)), prune.l1_unstructured(nn.Conv2d(2, 2, 3), "weight", 4)
    assert filters.refusal(nn.utils.remove_weight_norm(normed)) is None
    assert filters.refusal(prune.remove(pruned, "weight")) is None
    spectral = nn.utils.spectral_norm(nn.Conv2d(2, 2, 3))
    assert filters.refusal(nn.utils.remove_spectral_norm(spectral)) is None
    parametrised = parametrizations.weight_norm(nn.Conv2d(2, 2, 3))
    assert filters.refusal(nn.utils.parametrize.remove_parametrizations(parametrised, "weight")) is None


def test_a_padding_layer_that_timm_adds_in_the_first_forward_pass_is_its_own() -> None:
    conv = Conv2dSameExport(2, 2, 3, 2)
    conv(torch.zeros(1, 2, 7, 7))
    assert "pad" in conv._modules and filters.refusal(conv) is None


def test_lazy_is_accepted_once_it_knows_its_shape() -> None:
    conv = nn.LazyConv2d(3, 3)
    conv(torch.zeros(1, 2, 5, 5))
    assert filters.refusal(conv) is None


def test_subclass_without_arithmetic_of_its_own_is_accepted() -> None:
    class Named(nn.Conv2d):
        """Only a name, as many code bases have it."""

    assert filters.refusal(Named(2, 2, 3)) is None


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
