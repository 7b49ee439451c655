"""Outputs and gradients on a GPU against float64 on the CPU, in every scope, geometry, precision and backend."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from gpsa_cases import ARITHMETIC, CASES, RelativeError, drawn, dtype_of, expected, gradients, on
from torch import nn

import tcnn
from tcnn.layers.backends.selection import BACKENDS, use_backend
from tcnn.layers.triton import attention as triton_attention

pytestmark = pytest.mark.gpu


def autocast(device: torch.device, arithmetic: str) -> AbstractContextManager[object]:
    return torch.autocast(device.type, torch.bfloat16) if arithmetic == "autocast" else nullcontext()


CHUNKS = "in chunks"
"""Whatever is measured to be faster: products by the library, between logits and maps a kernel."""
FORCED = [
    *(("float32", backend) for backend in BACKENDS if backend not in ("auto", "reference")),
    *((arithmetic, CHUNKS) for arithmetic in ARITHMETIC),
]


@contextmanager
def forced(backend: str) -> Iterator[None]:
    with ExitStack() as stack:
        if backend == CHUNKS:
            stack.enter_context(patch.object(triton_attention, "supported", lambda *_: False))
        else:
            stack.enter_context(use_backend(backend))  # type: ignore[arg-type]
        yield


@pytest.mark.parametrize(("arithmetic", "backend"), [*((arithmetic, "auto") for arithmetic in ARITHMETIC), *FORCED])
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(
    name: str, arithmetic: str, backend: str, device: torch.device, relative_error: RelativeError
) -> None:
    layer, x = on(device, name, arithmetic)
    y_expected, expectations = expected(name, dtype_of(arithmetic))
    with forced(backend), autocast(device, arithmetic):
        y = layer(x)
    y.backward(drawn(tuple(y.shape), 2).to(y))
    tolerance = ARITHMETIC[arithmetic]
    assert y.device.type == device.type
    assert relative_error(y, y_expected) < tolerance
    least = 1e-6 * float(expectations["proj"].norm())  # in the hard limit some gradients are zeros, or e⁻⁴⁰ beside them
    for key, gradient in gradients(layer, x).items():
        error = float((gradient.cpu().double() - expectations[key]).norm())
        assert error < tolerance * max(float(expectations[key].norm()), least), key


@pytest.mark.parametrize("arithmetic", ARITHMETIC)
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_fused_for_inference(name: str, arithmetic: str, device: torch.device, relative_error: RelativeError) -> None:
    layer, x = on(device, name, arithmetic)
    fused = tcnn.fuse(nn.Sequential(layer).eval())
    with autocast(device, arithmetic):
        found = fused(x)
    y_expected, _ = expected(name, dtype_of(arithmetic))
    assert relative_error(found, y_expected) < ARITHMETIC[arithmetic]


@pytest.mark.parametrize("name", CASES)
def test_channels_last_in_and_out(name: str, device: torch.device, relative_error: RelativeError) -> None:
    layer, x = on(device, name)
    y_expected, expectations = expected(name, torch.float32)
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    y = layer.to(memory_format=torch.channels_last)(last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.backward(drawn(tuple(y.shape), 2).to(device, memory_format=torch.channels_last))
    assert relative_error(y, y_expected) < ARITHMETIC["float32"]
    assert relative_error(last.grad, expectations["x"]) < ARITHMETIC["float32"]
    assert layer(x).is_contiguous()
