"""What the tests of the layer share."""

import os
from collections.abc import Callable, Iterator
from multiprocessing import forkserver

import pytest
from forked import Interpreter
from operations import Operations
from torch import Tensor

from tcnn.layers.backends.selection import Backend, use_backend


def pytest_collection_finish(session: pytest.Session) -> None:
    """The process from which the interpreter is forked loads torch while the first tests run. Of several processes of
    tests one alone needs it.
    """
    alone = "PYTEST_XDIST_WORKER" not in os.environ and not session.config.option.collectonly
    if alone and any("interpreter" in getattr(item, "fixturenames", ()) for item in session.items):
        forkserver.ensure_running()


@pytest.fixture(params=["reference", "dense"])
def every_way(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The test runs once for every way to compute attention; `fused` is `dense` in parts (test_gpsa_memory.py)."""
    with use_backend(request.param):
        yield request.param


@pytest.fixture(scope="session")
def relative_error() -> Callable[[Tensor, Tensor], float]:
    """‖found − expected‖ / ‖expected‖ in L2, taken in float64; the shapes must agree, NaN anywhere is infinite."""

    def relative_error(found: Tensor, expected: Tensor) -> float:
        assert found.shape == expected.shape, f"expected shape {tuple(expected.shape)}, got {tuple(found.shape)}"
        found, expected = found.detach().double(), expected.detach().double()
        if not (found.isfinite().all() and expected.isfinite().all()):
            return float("inf")
        scale = expected.norm().item()
        assert scale > 0, "the reference is all zeros: the comparison would prove nothing"
        return (found - expected).norm().item() / scale

    return relative_error


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    """One process for all files: to load torch takes as long as a file's tests."""
    interpreter = Interpreter()
    yield interpreter
    interpreter.end()


@pytest.fixture
def operations() -> Operations:
    return Operations()
