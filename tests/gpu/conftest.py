"""What the tests on a GPU share: the device, and arithmetic that is what its name says.

`make test` does not collect them. `make gpu` runs them with `--confcutdir`, so that nothing beyond tcnn's own
dependencies and pytest has to be there: tests/conftest.py loads the service.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))  # what all tests share

from gpsa_cases import RelativeError

from tcnn.models.precision import exact_arithmetic


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the tests run: a GPU, or what `TCNN_GPU_DEVICE` says; `gpu(only="why")` marks what a CPU cannot show."""
    wanted = os.environ.get("TCNN_GPU_DEVICE", "cuda")
    if wanted not in ("cuda", "cpu"):
        raise pytest.UsageError(f"TCNN_GPU_DEVICE: expected cuda or cpu, found {wanted!r}")
    if wanted == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU; TCNN_GPU_DEVICE=cpu runs what makes sense without one")
    for mark in request.node.iter_markers("gpu"):
        if wanted == "cpu" and "only" in mark.kwargs:
            pytest.skip(f"only on a GPU: {mark.kwargs['only']}")
    return torch.device(wanted)


@pytest.fixture(autouse=True)
def full_float32() -> Iterator[None]:
    """No TF32, which convolutions would use by default."""
    with exact_arithmetic():
        yield


@pytest.fixture(scope="session")
def relative_error() -> RelativeError:
    """‖found − expected‖ / ‖expected‖ in L2, taken in float64 on the CPU; NaN anywhere is infinite."""

    def relative_error(found: Tensor, expected: Tensor) -> float:
        assert found.shape == expected.shape
        found, expected = (tensor.detach().cpu().double() for tensor in (found, expected))
        error = float((found - expected).norm() / expected.norm())
        return error if found.isfinite().all() else float("inf")

    return relative_error
