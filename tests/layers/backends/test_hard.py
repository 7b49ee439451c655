"""While the layer is a convolution it is computed as one: the same outputs and gradients as the attention, and not a
step further than that holds.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from operations import Operations
from torch import Tensor, nn

from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.functional import in_hard_limit
from tcnn.layers.terms.parameters import value_in_projection

RelativeError = Callable[[Tensor, Tensor], float]

REORDERED = 1e-13
"""Relative L2 in float64 where only the order of operations differs. Measured: at most 1e-15."""
CASES: tuple[tuple[dict[str, Any], tuple[int, int]], ...] = (
    ({"padding": 1}, (7, 6)),
    ({"padding": 1, "stride": 2}, (7, 8)),
    ({"padding": (2, 0), "stride": (1, 2), "bias": False}, (8, 9)),
    ({"padding": "same", "dilation": 2}, (5, 8)),
    ({"kernel_size": (2, 4), "padding": "same"}, (5, 6)),
    ({"padding": "dynamic", "stride": 2}, (7, 8)),
    ({"padding": 1, "padding_mode": "reflect"}, (6, 5)),
    ({"padding": 1, "padding_mode": "circular", "groups": 2}, (5, 5)),
    ({"padding": 1, "groups": 4}, (5, 6)),
)


def hard_layer(value: bool = True, **options: Any) -> GPSA2d:
    """In the hard limit, with matrices as after training; `value` says whether W_val is one, too."""
    torch.manual_seed(0)
    layer = GPSA2d(4, 8, **{"kernel_size": 3, "dtype": torch.float64, **options})
    if value:
        with torch.no_grad():
            layer.value.add_(0.3 * torch.randn_like(layer.value))
    return layer


def image(*size: int) -> Tensor:
    return torch.randn(3, 4, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def with_gradients(layer: GPSA2d, x: Tensor, way: Any) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    with use_backend(way):
        y = layer(leaf)
    upstream = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(2))
    return [y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], upstream)]


@pytest.mark.parametrize(("options", "size"), CASES, ids=str)
def test_outputs_and_all_gradients_are_the_attentions(
    options: dict[str, Any], size: tuple[int, int], relative_error: RelativeError
) -> None:
    layer, x = hard_layer(**options), image(*size)
    assert in_hard_limit(layer.tensors, layer.geometry)
    names = ["output", "input", *(name for name, _ in layer.named_parameters())]
    ours, theirs = (with_gradients(layer, x, way) for way in ("auto", "reference"))
    for name, found, expected in zip(names, ours, theirs, strict=True):
        if name in ("query", "key", "gating_param", "locality_raw", "attention_centers"):
            assert not found.any(), name
            assert expected.abs().max() < 1e-13, f"{name}: the attention's own gradient has vanished"
        else:
            assert relative_error(found, expected) < REORDERED, name


@pytest.mark.parametrize("value", [False, True], ids=["identity", "trained"])
@pytest.mark.parametrize(("options", "size"), CASES, ids=str)
@torch.no_grad()
def test_inference_folds_the_value_into_the_filter(
    options: dict[str, Any], size: tuple[int, int], value: bool, relative_error: RelativeError
) -> None:
    layer, x = hard_layer(value, **options).eval(), image(*size)
    with use_backend("reference"):
        expected = layer(x)
    for _ in range(2):  # computed, then remembered
        assert relative_error(layer(x), expected) < REORDERED
    with use_backend("dense"):
        assert relative_error(layer(x), expected) < REORDERED


@torch.no_grad()
def test_a_converted_layer_gives_the_very_bits_of_its_convolution() -> None:
    torch.manual_seed(0)
    for options in ({"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": 2, "groups": 2}):
        conv = nn.Conv2d(4, 6, 3, **options).eval()  # type: ignore[arg-type]
        layer, x = GPSA2d.from_conv2d(conv), torch.randn(2, 4, 9, 8)
        assert torch.equal(layer(x), conv(x))


@torch.no_grad()
def test_only_convolutions_are_run(operations: Operations) -> None:
    layer, x = hard_layer(padding=1).eval(), image(6, 6)
    layer(x)
    with operations:
        layer(x)
    assert {name for name, *_ in operations.outputs} >= {"convolution"}
    assert not {name for name, *_ in operations.outputs} & {"_softmax", "bmm", "addmm"}
    products = [shape for name, shape, _ in operations.outputs if name == "mm"]
    assert products == [(layer.proj.numel() // 4, 4)], "W_val is multiplied into the filter"


@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": 1, "stride": 2}, {"padding": 2, "dilation": 2}])
@pytest.mark.parametrize("images", [1, 12])
def test_value_is_applied_to_the_pixels_or_multiplied_into_the_filter(
    options: dict[str, Any], images: int, relative_error: RelativeError
) -> None:
    layer = hard_layer(**options)
    x = torch.randn(images, 4, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert (value_in_projection(layer.tensors, x).value is None) == (images == 12)
    names = ["output", "input", *(name for name, _ in layer.named_parameters())]
    ours, theirs = (dict(zip(names, with_gradients(layer, x, way), strict=True)) for way in ("auto", "reference"))
    for name in ("output", "input", "value", "proj", "bias"):  # the others vanish
        assert relative_error(ours[name], theirs[name]) < REORDERED, name


def test_a_large_batch_of_an_identity_is_the_convolution_to_the_last_bit() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 6, 3, padding=1)
    layer, x = GPSA2d.from_conv2d(conv).train(), torch.randn(16, 8, 9, 8)
    assert value_in_projection(layer.tensors, x).value is None
    assert torch.equal(layer(x), conv(x))


def off_by_a_bit(layer: GPSA2d) -> None:
    layer.attention_centers[3, 1] = torch.nextafter(layer.attention_centers[3, 1], torch.tensor(9.0).double())


CHANGES: dict[str, Callable[[GPSA2d], object]] = {
    "a gate below 1": lambda layer: layer.gating_param[2].fill_(0.5),
    "a weak head": lambda layer: layer.locality_raw[4].fill_(0.8),
    "a centre off its tap by one bit": off_by_a_bit,
    "temperature": lambda layer: layer.set_temperature(1 / 30),
    "written through .data": lambda layer: layer.gating_param.data.fill_(-1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@torch.no_grad()
def test_whatever_moves_a_head_brings_the_attention_back(
    change: Callable[[GPSA2d], object], relative_error: RelativeError
) -> None:
    layer, x = hard_layer(padding=1).eval(), image(6, 7)
    layer(x)
    assert in_hard_limit(layer.tensors, layer.geometry)
    change(layer)
    assert not in_hard_limit(layer.tensors, layer.geometry)
    found = layer(x)
    with use_backend("reference"):
        assert relative_error(found, layer(x)) < REORDERED


@torch.no_grad()
def test_on_a_cpu_nothing_has_to_be_held(relative_error: RelativeError) -> None:
    layer, x = hard_layer(padding=1).train(), image(6, 7)
    layer.set_temperature(1 / 46, hold=True)
    layer.gating_param[2].fill_(0.5)
    found = layer(x)
    with use_backend("reference"):
        assert relative_error(found, layer(x)) < REORDERED


@pytest.mark.parametrize(
    ("gate", "position", "begins", "stays"),
    [
        (1 / 46, 1 / 46, True, True),
        (1 / 44, 1 / 45, True, True),
        (1 / 42, 1 / 46, True, False),  # a gate of 1 to the last bit may be one just above its limit
        (1 / 40, 1 / 46, True, False),
        (1 / 46, 1 / 44, False, False),
        (1 / 39, 1 / 46, False, False),
        (1 / 46, 1 / 39, False, False),
    ],
)
@torch.no_grad()
def test_elsewhere_values_are_read_once_and_then_the_temperatures_tell(
    gate: float, position: float, begins: bool, stays: bool
) -> None:
    """Here on a CPU, where nobody asks it: the smallest λ is 0.95 and the smallest α 0.902."""
    layer = hard_layer(padding=1)
    layer.gating_param[2].fill_(0.95)
    layer.locality_raw[4].fill_(0.9)
    layer.set_temperatures(gate, position)
    assert layer._stays_hard(gate, position) == begins
    layer.set_temperatures(1 / 46, 1 / 46)
    layer.known_hard = layer._stays_hard(1 / 46, 1 / 46)
    assert layer.known_hard
    layer.gating_param[2].fill_(-1.0)  # which is not noticed: the promise was that it moves by its gradient only
    assert layer._stays_hard(gate, position) == stays


def test_a_converted_model_can_be_trained_out_of_the_limit() -> None:
    """Zeros, not missing gradients: optimizers that want them all are not disturbed, and τ then frees the heads."""
    layer, x = hard_layer(padding=1), image(6, 6)
    layer(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    assert layer.value.grad is not None
    assert layer.value.grad.any()
    layer.zero_grad()
    layer.set_temperature(1.0)
    layer(x).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.any(), name


def test_frozen_parameters_get_none() -> None:
    layer = hard_layer(padding=1).requires_grad_(False)
    layer.proj.requires_grad_()
    layer(image(6, 6)).sum().backward()
    assert [name for name, parameter in layer.named_parameters() if parameter.grad is not None] == ["proj"]


def test_second_derivatives_and_functional_transforms(relative_error: RelativeError) -> None:
    layer = hard_layer(padding=1)
    x = image(4, 4)[:1]
    assert torch.autograd.gradgradcheck(layer, x.clone().requires_grad_())

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(layer, parameters, (x,))
        return y.square().sum()

    gradients = torch.func.grad(loss)(dict(layer.named_parameters()))
    layer(x).square().sum().backward()
    assert layer.proj.grad is not None
    assert relative_error(gradients["proj"], layer.proj.grad) < REORDERED
    many = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in layer.named_parameters()}
    values = torch.func.vmap(loss)(many)
    assert values[0].item() == pytest.approx(layer(x).square().sum().item(), rel=1e-12)


@pytest.mark.slow  # soft in pytorch/test_gpsa_compile.py, exported in tests/exporting
def test_a_compiler_gets_one_graph_of_attention(relative_error: RelativeError) -> None:
    torch.compiler.reset()
    layer, x = hard_layer(padding=1), image(6, 6)
    assert relative_error(torch.compile(layer, fullgraph=True, backend="eager")(x), layer(x)) < REORDERED
    torch.compiler.reset()


def test_the_meta_device_has_no_values() -> None:
    layer = hard_layer(padding=1).to("meta")
    assert not in_hard_limit(layer.tensors, layer.geometry)
    assert layer(torch.empty(2, 4, 6, 6, device="meta", dtype=torch.float64)).shape == (2, 8, 6, 6)


def test_what_is_not_finite_reaches_as_far_as_a_convolution_takes_it() -> None:
    conv, x = nn.Conv2d(4, 8, 3, padding=1), torch.randn(1, 4, 9, 9)
    x[0, 1, 4, 4] = torch.inf
    for layer, reached in ((conv, 9), (GPSA2d.from_conv2d(conv), 9), (GPSA2d.from_conv2d(conv, temperature=1.0), 81)):
        assert (~layer(x).isfinite()).any(1).sum() == reached


def test_half_precision_is_hard_too() -> None:
    layer = copy.deepcopy(hard_layer(padding=1)).bfloat16()
    assert in_hard_limit(layer.tensors, layer.geometry)
