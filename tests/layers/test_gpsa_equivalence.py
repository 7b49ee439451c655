"""`GPSA2d.from_conv2d(conv)` computes what `conv` computes, over everything that `nn.Conv2d` and timm can express."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import crossed, sampled
from timm.layers import Conv2dSame, ScaledStdConv2d, ScaledStdConv2dSame, StdConv2d, StdConv2dSame
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tcnn.errors import RequestError
from tcnn.layers import GPSA2d

pytestmark = pytest.mark.usefixtures("every_way")

RelativeError = Callable[[Tensor, Tensor], float]

TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Relative L2. Measured at most 5e-16 and 2e-7 in double and single precision, where the attention is one-hot and only
the order of summation differs; 3.0e-4 and 2.3e-3 in half precisions, where every intermediate result is rounded too."""
LEAK = 1e-18
"""Relative to ‖W‖·‖x‖. A softmax is never quite one-hot: neighbours keep exp(−46) ≈ 1e-20 each. It shows only where the
convolution's own output is exactly zero, as under a kernel that sees nothing but padding."""


@dataclass(frozen=True)
class Drawn:
    """The arguments of one `nn.Conv2d`, and the shape of one input that it accepts."""

    arguments: dict[str, object]
    shape: tuple[int, int, int, int]
    seed: int


def pairs(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def convolutions(draw: st.DrawFn) -> Drawn:
    groups = draw(st.integers(1, 4))
    channels = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))  # 1 in a group: depthwise
    kernel, dilation = draw(pairs(1, 5)), draw(pairs(1, 3))
    mode = draw(st.sampled_from(("zeros", "reflect", "replicate", "circular")))
    padding = draw(st.one_of(st.sampled_from(("same", "valid")), st.integers(0, 3), pairs(0, 3)))
    stride = (1, 1) if padding == "same" else draw(pairs(1, 3))
    size = []
    for axis in (0, 1):
        span = dilation[axis] * (kernel[axis] - 1)
        amount = padding[axis] if isinstance(padding, tuple) else padding
        before, after = {"valid": (0, 0), "same": (span // 2, span - span // 2)}.get(amount, (amount, amount))
        # reflection needs more pixels than it pads, wrapping as many, and the kernel has to fit
        needed = {"reflect": after + 1, "circular": after}.get(mode, 1)
        size.append(max(span + 1 - before - after, needed, 1) + draw(st.integers(0, 5)))
    arguments = {
        "in_channels": channels[0], "out_channels": channels[1], "kernel_size": kernel, "stride": stride,
        "padding": padding, "dilation": dilation, "groups": groups, "bias": draw(st.booleans()), "padding_mode": mode,
    }  # fmt: skip
    return Drawn(arguments, (draw(st.integers(1, 2)), channels[0], *size), draw(st.integers(0, 2**31)))


@pytest.mark.parametrize(
    ("dtype", "examples"),
    sampled(
        [(dtype, examples) for dtype in (torch.float64, torch.float32) for examples in (25, 1500)],
        [(torch.float64, 25)],
    ),
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_every_convolution(dtype: torch.dtype, examples: int) -> None:
    @settings(deadline=None, max_examples=examples, derandomize=True, database=None)
    @given(convolutions())
    def equals(drawn: Drawn) -> None:
        torch.manual_seed(drawn.seed)
        conv = nn.Conv2d(**drawn.arguments, dtype=dtype)
        x = torch.randn(drawn.shape, dtype=dtype)
        with torch.no_grad():
            found, expected = GPSA2d.from_conv2d(conv)(x), conv(x)
        assert found.shape == expected.shape
        assert found.dtype == dtype
        allowed = TOLERANCE[dtype] * expected.norm() + LEAK * conv.weight.norm() * x.norm()
        assert (found - expected).norm() <= allowed

    equals()


def baked(conv: nn.Module) -> nn.Conv2d:
    """As the refusal of a parametrised convolution tells its user to do."""
    return parametrize.remove_parametrizations(conv, "weight")


SPECIAL: dict[str, Callable[[], nn.Conv2d]] = {
    "Conv2dSame": lambda: Conv2dSame(4, 6, 3, stride=2),
    "Conv2dSame, even dilated": lambda: Conv2dSame(4, 6, (2, 4), stride=(1, 3), dilation=(3, 1), groups=2),
    "StdConv2d": lambda: StdConv2d(4, 6, 3, stride=2, eps=1e-2),
    "StdConv2d, grouped": lambda: StdConv2d(4, 8, 3, dilation=2, groups=4, bias=True, eps=1e-5),
    "StdConv2dSame": lambda: StdConv2dSame(4, 6, 3, stride=2, eps=1e-2),
    "StdConv2dSame, fixed padding": lambda: StdConv2dSame(4, 6, 3),
    "ScaledStdConv2d": lambda: ScaledStdConv2d(4, 6, 3, gamma=1.7, gain_init=0.3),
    "ScaledStdConv2dSame": lambda: ScaledStdConv2dSame(4, 6, 3, stride=2, groups=2, gamma=1.7, eps=1e-2),
    "weight norm, baked in": lambda: baked(parametrizations.weight_norm(nn.Conv2d(4, 6, 3, padding=1))),
    "spectral norm, baked in": lambda: baked(parametrizations.spectral_norm(nn.Conv2d(4, 6, 3, padding=1))),
}


@pytest.mark.parametrize(("kind", "dtype"), crossed(list(SPECIAL), [torch.float64, torch.float32], 2), ids=str)
@torch.no_grad()
def test_timm_and_baked_convolutions(kind: str, dtype: torch.dtype, relative_error: RelativeError) -> None:
    torch.manual_seed(1)
    conv = SPECIAL[kind]().to(dtype)
    if hasattr(conv, "gain"):
        conv.gain.mul_(torch.linspace(-1.5, 2, conv.out_channels, dtype=dtype).reshape(-1, 1, 1, 1))
    conv.weight.mul_(3).add_(0.4)
    layer = GPSA2d.from_conv2d(conv)
    for size in ((7, 7), (8, 8), (9, 6), (6, 11)):
        x = torch.randn(2, 4, *size, dtype=dtype)
        assert relative_error(layer(x), conv(x)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.no_grad()
def test_half_precision(dtype: torch.dtype, relative_error: RelativeError) -> None:
    """Against the same rounded weights and input in single precision."""
    torch.manual_seed(2)
    conv = nn.Conv2d(16, 12, 3, stride=2, padding=1, groups=2).to(dtype)
    x = torch.randn(2, 16, 9, 12, dtype=dtype)
    found = GPSA2d.from_conv2d(conv)(x)
    assert found.dtype == dtype
    assert relative_error(found, conv.float()(x.float())) < TOLERANCE[dtype]


def test_state_at_conversion() -> None:
    """DESIGN §1: α = λ = 1, W_val = I, W_out = filter, Δ = the taps, τ = 1/46; query and key small and random."""
    conv = nn.Conv2d(8, 6, (3, 2), dilation=(2, 1), groups=2, dtype=torch.float64)
    layer = GPSA2d.from_conv2d(conv)
    assert layer.heads == 6
    assert torch.equal(layer.value, torch.eye(8, dtype=torch.float64))
    assert torch.equal(layer.filter, conv.weight)
    assert torch.equal(layer.bias, conv.bias)
    assert torch.equal(layer.gating_param, torch.ones(6, dtype=torch.float64))
    torch.testing.assert_close(layer.locality_strength, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-15)
    assert layer.attention_centers.tolist() == [[-2, 0], [-2, 1], [0, 0], [0, 1], [2, 0], [2, 1]]
    assert layer.position_temperature.item() == 1 / 46
    assert layer.head_dim == 8
    for weight in (layer.query, layer.key):
        assert weight.shape == (6 * 8, 8)
        assert 0.018 < weight.std() < 0.022
    assert not torch.equal(layer.query, layer.key)
    assert set(dict(layer.named_buffers())) == {"gate_temperature", "position_temperature"}


def test_head_width_follows_channels_and_can_be_chosen() -> None:
    conv = nn.Conv2d(256, 4, 3)
    assert GPSA2d.from_conv2d(conv).head_dim == 24  # 256 // 9 = 28, rounded down to a multiple of 8
    assert GPSA2d.from_conv2d(nn.Conv2d(16, 4, 3)).head_dim == 8
    assert GPSA2d.from_conv2d(conv, head_dim=5).query.shape == (9 * 5, 256)


@torch.no_grad()
def test_the_papers_start_is_not_the_convolution(relative_error: RelativeError) -> None:
    """At τ = 1 the same weights drift by 79 % (DESIGN §1): were this zero, no attention would have run at all."""
    torch.manual_seed(3)
    conv = nn.Conv2d(16, 16, 3, padding=1)
    x = torch.randn(2, 16, 14, 14)
    drift = relative_error(GPSA2d.from_conv2d(conv, temperature=1.0)(x), conv(x))
    assert 0.6 < drift < 1.0


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_follows_the_source_and_leaves_it_alone(trainable: bool, training: bool, dtype: torch.dtype) -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1, dtype=dtype).train(training).requires_grad_(trainable)
    before, attributes = copy.deepcopy(conv.state_dict()), dict(vars(conv))
    layer = GPSA2d.from_conv2d(conv)
    assert layer.training == training
    tensors = (*layer.parameters(), *layer.buffers())
    assert {tensor.dtype for tensor in tensors} == {dtype}
    assert {tensor.device for tensor in tensors} == {conv.weight.device}
    assert {parameter.requires_grad for parameter in layer.parameters()} == {trainable}
    assert all(parameter.is_leaf for parameter in layer.parameters())

    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1)
    assert vars(conv) == attributes
    assert conv.weight.requires_grad == trainable
    for name, value in conv.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the source changed"


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_positive(temperature: float) -> None:
    with pytest.raises(RequestError, match=r"^temperature: expected a number above 0, got [^\n]+$"):
        GPSA2d.from_conv2d(nn.Conv2d(2, 2, 3), temperature=temperature)
    with pytest.raises(RequestError, match=r"^temperature: "):
        GPSA2d(2, 2, 3, temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-300, 1e300, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_temperature_must_be_one_that_float32_has(temperature: float, dtype: torch.dtype) -> None:
    expected = r"^temperature: expected from 1e-38 to 3e\+38, as b?float(32|16) has, got [^\n]+$"
    with pytest.raises(RequestError, match=expected):
        GPSA2d.from_conv2d(nn.Conv2d(2, 2, 3, dtype=dtype), temperature=temperature)


@torch.no_grad()
def test_temperature_must_be_one_that_the_layer_has() -> None:
    layer = GPSA2d(4, 4, 3, padding=1).half()
    for temperature in (1e-8, 1e5, 3e-5):
        with pytest.raises(RequestError, match=r"^temperature: expected from 6e-05 to 7e\+04, as float16 has, got "):
            layer.set_temperature(temperature)
    with pytest.raises(RequestError, match=r"^position_temperature: expected from 6e-05 .* as float16 has, got 1e-08$"):
        layer.set_temperatures(0.5, 1e-8)
    layer.gating_param.zero_()
    for temperature in (1e-4, 6e4):
        layer.set_temperature(temperature)
        assert layer.gate_temperature.item() == pytest.approx(temperature, rel=1e-3)
        assert layer.gate.tolist() == [0.5] * 9
    layer.float().set_temperature(1e-8)
    assert layer.position_temperature == torch.tensor(1e-8)
