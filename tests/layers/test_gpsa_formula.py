"""The layer against the paper's formula, written out pair by pair (`pairwise.py`).

Everything is float64 and every parameter is arbitrary, as after training.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from pairwise import Case, formula
from torch import Tensor

from tcnn.layers import GPSA2d
from tcnn.layers.backends.convolution import is_hard
from tcnn.layers.terms.positions import tap_offsets

pytestmark = pytest.mark.usefixtures("every_way")

TEMPERATURES = (1 / 46, 0.3, 1.0)

OUTPUT_TOLERANCE = 1e-12
"""Relative L2. Both sides round in float64 (eps 2e-16) over sums of thousands of terms; measured: at most 1e-15."""
GRADIENT_TOLERANCE = 1e-11
"""Relative L2, per tensor. Wider, because at τ = 1/46 most softmax rows are nearly one-hot: the gradients of α and Δ
are then small differences of large terms. Measured: at most 2e-15 at τ = 1, 1e-12 at τ = 1/46."""


PLAIN = Case()
CASES = (
    PLAIN,
    replace(PLAIN, size=(5, 7), bias=False),
    replace(PLAIN, size=(7, 4), padding=(2, 0)),
    replace(PLAIN, kernel=(1, 1), padding=0),
    replace(PLAIN, kernel=(1, 1), padding=1, stride=(2, 1)),
    replace(PLAIN, kernel=(2, 2), padding="same"),
    replace(PLAIN, kernel=(2, 2), padding="valid", stride=(2, 2)),
    replace(PLAIN, kernel=(1, 5), padding=(0, 2)),
    replace(PLAIN, kernel=(1, 5), padding="valid", size=(4, 7)),
    replace(PLAIN, kernel=(4, 3), padding="same", size=(5, 6)),
    replace(PLAIN, kernel=(4, 3), padding=(2, 1), stride=(2, 1)),
    replace(PLAIN, stride=(2, 2)),
    replace(PLAIN, stride=(2, 2), size=(5, 7)),
    replace(PLAIN, stride=(2, 1), size=(7, 5), padding="valid"),
    replace(PLAIN, dilation=(2, 2), padding=2),
    replace(PLAIN, dilation=(3, 1), padding=(3, 1), size=(5, 6)),
    replace(PLAIN, dilation=(3, 1), padding="same", size=(6, 5)),
    replace(PLAIN, kernel=(2, 3), dilation=(3, 2), padding="same", size=(5, 6)),
    replace(PLAIN, dilation=(2, 2), stride=(2, 1), padding=(1, 2), size=(7, 6)),
    replace(PLAIN, groups=2),
    replace(PLAIN, groups=2, kernel=(2, 2), padding=1, stride=(2, 2), bias=False),
    replace(PLAIN, groups=4, channels=(4, 4)),
    replace(PLAIN, groups=4, channels=(4, 8), stride=(2, 2), dilation=(2, 2), padding=2, size=(7, 6)),
    replace(PLAIN, padding=2, mode="reflect"),
    replace(PLAIN, padding=2, mode="replicate", stride=(2, 1)),
    replace(PLAIN, padding=(1, 2), mode="circular", size=(5, 6), groups=2),
    replace(PLAIN, kernel=(4, 3), padding="same", mode="reflect"),
    replace(PLAIN, kernel=(2, 2), padding="same", mode="replicate", dilation=(3, 1), size=(5, 5)),
    replace(PLAIN, kernel=(4, 3), padding="same", mode="circular", size=(5, 7)),
    replace(PLAIN, padding="dynamic", stride=(2, 2)),
    replace(PLAIN, padding="dynamic", stride=(2, 1), kernel=(4, 3), size=(7, 5), groups=2),
    replace(PLAIN, padding="dynamic", kernel=(2, 3), dilation=(1, 2), size=(5, 6)),
)


def arbitrary_layer(case: Case, temperature: float) -> GPSA2d:
    """A layer in which nothing stands at its conversion value: centres between pixels, strengths and gates unequal."""
    torch.manual_seed(7)
    layer = GPSA2d(
        *case.channels, case.kernel, case.stride, case.padding, case.dilation, case.groups, case.bias, case.mode,
        head_dim=3, temperature=temperature, dtype=torch.float64, content_heads=case.content_heads,
    )  # fmt: skip
    with torch.no_grad():
        for weight in (layer.query, layer.key, layer.value, layer.proj):
            weight.copy_(0.5 * torch.randn_like(weight))
        layer.gating_param.copy_(0.5 * torch.randn_like(layer.gating_param) * temperature**0.5)
        layer.locality_raw.copy_(torch.rand_like(layer.locality_raw))
        layer.attention_centers.add_(0.8 * torch.rand_like(layer.attention_centers) - 0.4)
    return layer


@pytest.mark.parametrize(
    ("case", "temperature", "every_way"),
    [
        pytest.param(
            case, tau, way, id=f"{case}-{name}-{way}",
            marks=() if (way, which) in {("dense", number % 3), ("reference", number % 9)} else pytest.mark.slow,
        )
        for number, case in enumerate(CASES)
        for which, (name, tau) in enumerate(zip(("hard", "warm", "paper"), TEMPERATURES, strict=True))
        for way in ("reference", "dense")
    ],
    indirect=["every_way"],
)  # fmt: skip
def test_output_and_every_gradient(
    case: Case, temperature: float, relative_error: Callable[[Tensor, Tensor], float]
) -> None:
    compare(arbitrary_layer(case, temperature), (temperature, temperature), case, relative_error)


BESIDE = (
    replace(PLAIN, content_heads=1),
    replace(PLAIN, content_heads=3, stride=(2, 1), size=(7, 5), bias=False),
    replace(PLAIN, content_heads=2, groups=2, dilation=(2, 2), padding=2, size=(5, 6)),
    replace(PLAIN, content_heads=2, kernel=(4, 3), padding="same", mode="reflect"),
    replace(PLAIN, content_heads=2, padding="dynamic", stride=(2, 2), kernel=(2, 3), size=(5, 6)),
)
"""Layers with content heads beside the taps."""


@pytest.mark.parametrize(
    ("case", "temperatures"),
    [
        pytest.param(case, temperatures, marks=pytest.mark.slow if number > 1 and case is not BESIDE[0] else ())
        for case in (PLAIN, *BESIDE)
        for number, temperatures in enumerate(
            [(1 / 46, 1 / 46), (1.0, 0.2), (0.2, 1.0), (1 / 46, 0.3), (0.4, 1 / 46)], start=1
        )
    ],
    ids=str,
)
def test_content_heads_and_two_temperatures(
    case: Case, temperatures: tuple[float, float], relative_error: Callable[[Tensor, Tensor], float]
) -> None:
    layer = arbitrary_layer(case, 1.0)
    layer.set_temperatures(*temperatures)
    compare(layer, temperatures, case, relative_error)


@pytest.mark.parametrize("case", BESIDE, ids=str)
def test_content_heads_beside_a_convolution(case: Case, relative_error: Callable[[Tensor, Tensor], float]) -> None:
    """Taps in the hard limit are computed as a convolution, and content heads beside them as attention."""
    layer = arbitrary_layer(case, 1 / 46)
    with torch.no_grad():
        layer.gating_param.fill_(1)
        layer.locality_raw.fill_(1)
        layer.attention_centers.copy_(tap_offsets(layer.geometry))
    assert is_hard(layer.tensors, layer.geometry)
    compare(layer, (1 / 46, 1 / 46), case, relative_error)


def compare(
    layer: GPSA2d,
    temperatures: tuple[float, float],
    case: Case,
    relative_error: Callable[[Tensor, Tensor], float],
) -> None:
    """Output and every gradient against the formula."""
    x = torch.randn(2, case.channels[0], *case.size, dtype=torch.float64, requires_grad=True)
    twins = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    x_twin = x.detach().clone().requires_grad_()

    found, expected = layer(x), formula(twins, temperatures, x_twin, case)
    assert relative_error(found, expected) < OUTPUT_TOLERANCE

    cotangent = torch.randn_like(expected)
    found.backward(cotangent)
    expected.backward(cotangent)
    assert relative_error(x.grad, x_twin.grad) < GRADIENT_TOLERANCE
    assert ("bias" in twins) == case.bias
    for name, parameter in layer.named_parameters():
        expected_gradient, gradient = twins[name].grad, parameter.grad
        if expected_gradient.norm() < 1e-12 * twins[name].norm():  # in the hard limit: rounding of what vanishes
            assert gradient.norm() < 1e-12 * twins[name].norm(), name
        else:
            assert relative_error(gradient, expected_gradient) < GRADIENT_TOLERANCE, name


def test_gradients_against_finite_differences() -> None:
    """The second witness of the gradients knows no formula at all: finite differences of `forward`."""
    case = Case(size=(3, 4), kernel=(2, 1), stride=(2, 1), padding=(1, 0), groups=2, channels=(2, 2))
    layer = arbitrary_layer(case, temperature=0.7)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(1, 2, *case.size, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters))


def test_attention_maps_are_what_forward_uses(relative_error: Callable[[Tensor, Tensor], float]) -> None:
    """`attention()` is for looking at; a value of its own would show pictures of another layer."""
    layer = arbitrary_layer(replace(PLAIN, groups=1, padding=0), temperature=0.3)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    maps = layer.attention(x)
    mixed = maps.total @ x.flatten(2).transpose(1, 2)[:, None] @ layer.value.T  # (B, K, M, C_in)
    y = mixed.transpose(1, 2).flatten(2) @ layer.proj.T + layer.bias
    assert relative_error(layer(x), y.transpose(1, 2).unflatten(2, (4, 4))) < OUTPUT_TOLERANCE
    for rows in (maps.content.sum(-1), maps.positional.sum(-1), maps.total.sum(-1)):
        torch.testing.assert_close(rows, torch.ones_like(rows))
