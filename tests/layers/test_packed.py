"""Packed matrices multiply as plain ones do; where they cannot be had, plain ones are taken."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tcnn.layers import GPSA2d, packed
from tcnn.layers.packed import Packed, linear, pack, packable
from tcnn.layers.ways import taking

RelativeError = Callable[[Tensor, Tensor], float]

FLOAT32 = 1e-6
"""Relative L2 of sums of up to 4,608 terms in float32. Measured: 4e-7."""

needs_onednn = pytest.mark.skipif(not packable(torch.ones(2, 2)), reason="NOT TESTED: no oneDNN in this PyTorch")


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 3, 5), (7, 4608, 64), (49, 17, 512), (200, 504, 33)])
def test_the_product_is_the_plain_one(
    rows: int, inputs: int, outputs: int, bias: bool, relative_error: RelativeError
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, offset = (torch.randn(*shape, generator=generator) for shape in ((outputs, inputs), (outputs,)))
    expected = torch.randn(2, rows, inputs, generator=generator)
    for x in (expected, expected.transpose(0, 1).contiguous().transpose(0, 1), expected[:, :0]):
        matrix = pack(weight)
        assert isinstance(matrix, Packed)
        assert matrix.shape == weight.shape
        found = linear(x, matrix, offset if bias else None)
        exact = x.double() @ weight.double().T + (offset.double() if bias else 0)
        assert found.shape == exact.shape
        assert found.numel() == 0 or relative_error(found, exact) < FLOAT32


@needs_onednn
def test_a_strided_weight(relative_error: RelativeError) -> None:
    weight, x = torch.randn(6, 8).T, torch.randn(5, 6)
    assert relative_error(linear(x, pack(weight)), x @ weight.T) < FLOAT32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_numbers_stay_as_they_are(dtype: torch.dtype) -> None:
    weight = torch.ones(2, 2, dtype=dtype)
    assert pack(weight) is weight
    assert pack(torch.ones(2, 2, device="meta")).device.type == "meta"  # type: ignore[union-attr]


@torch.no_grad()
def test_a_layer_without_onednn(relative_error: RelativeError, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = GPSA2d(16, 24, 3, padding=1, temperature=1.0).eval(), torch.randn(2, 16, 6, 7)
    with taking("reference"):
        expected = layer(x)
    found = [layer(x)]
    layer.train().eval()
    monkeypatch.setattr(packed, "_operators", object)
    found.append(layer(x))
    assert all(relative_error(y, expected) < FLOAT32 for y in found)


@torch.no_grad()
def test_the_bias_is_todays(relative_error: RelativeError) -> None:
    """It is not packed, so it may change without the matrices being packed anew."""
    layer, x = GPSA2d(8, 4, 3, padding=1, temperature=1.0).eval(), torch.randn(1, 8, 5, 5)
    assert layer.bias is not None
    before = layer(x)
    layer.bias.add_(1.0)
    assert relative_error(layer(x), before + 1) < FLOAT32
