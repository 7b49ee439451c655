"""The choice among exact ways: what is measured, when, how often, and that the measurement leaves no trace.

A timer of the test's own tells how long each way takes; the ways run for real.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tcnn.layers.backends import autotune
from tcnn.layers.backends.autotune import fastest
from tcnn.layers.terms import products


class Ways:
    """Two ways that note who runs, and a timer that knows how long each of them takes."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.ran: list[str] = []
        self.gradients: list[str] = []
        self.by_name = {name: self.way(name) for name in seconds}

    def way(self, name: str) -> Callable[..., Tensor]:
        def run(x: Tensor, weight: Tensor) -> Tensor:
            self.ran.append(name)
            out = x @ weight
            if out.requires_grad:
                out.register_hook(lambda gradient: self.gradients.append(name))
            return out

        return run

    def time(self, run: Callable[[], object], device: torch.device) -> float:
        run()
        return self.seconds[self.ran[-1]]

    def __call__(self, *inputs: Tensor) -> str:
        return fastest(self.by_name, inputs, self.time)


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    autotune.clear_cache()
    yield
    autotune.clear_cache()


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor]:
    return torch.ones(3, 4), torch.ones(4, 5, requires_grad=True)


@pytest.mark.parametrize("seconds", [{"dense": 2.0, "kernel": 1.0}, {"dense": 1.0, "kernel": 2.0}], ids=str)
def test_the_fastest_is_chosen_and_measured_once(seconds: dict[str, float], inputs: tuple[Tensor, Tensor]) -> None:
    ways = Ways(**seconds)
    assert [ways(*inputs) for _ in range(3)] == [min(seconds, key=lambda name: seconds[name])] * 3
    assert ways.ran == ["dense", "dense", "kernel", "kernel"], "timed, then compared"
    ways(inputs[0] + 1, inputs[1] * 2)
    assert len(ways.ran) == 4, "other values are the same kind"


def test_every_kind_of_inputs_is_measured(inputs: tuple[Tensor, Tensor]) -> None:
    x, weight = inputs
    ways = Ways(dense=1, kernel=2)
    kinds = [(x, weight), (torch.cat((x, x)), weight), (x.double(), weight.double()), (x, weight.detach())]
    for kind in kinds:
        ways(*kind)
    with torch.no_grad():
        ways(x, weight)
    assert len(ways.ran) == 2 * 2 * (len(kinds) + 1)


def test_backward_is_measured_where_it_will_be_run(inputs: tuple[Tensor, Tensor]) -> None:
    ways = Ways(dense=1, kernel=2)
    with torch.no_grad():
        ways(*inputs)
    ways(inputs[0], inputs[1].detach())
    assert ways.gradients == []
    ways(*inputs)
    assert ways.gradients == ["dense", "dense", "kernel", "kernel"]


def test_a_measurement_leaves_no_trace(inputs: tuple[Tensor, Tensor]) -> None:
    """Gradients, random numbers, and hooks on what is saved, by which a checkpoint counts."""

    def never(tensor: Tensor) -> Tensor:
        raise AssertionError("seen by the caller's hooks")

    before = torch.get_rng_state()
    with torch.autograd.graph.saved_tensors_hooks(never, never):
        assert Ways(dense=2, kernel=1)(*inputs) == "kernel"
    assert inputs[1].grad is None
    assert torch.equal(torch.get_rng_state(), before)


def test_autocast_is_in_force(inputs: tuple[Tensor, Tensor]) -> None:
    dtypes = []

    def way(x: Tensor, weight: Tensor) -> Tensor:
        dtypes.append((x @ weight).dtype)
        return x @ weight

    def time(run: Callable[[], object], device: torch.device) -> float:
        run()
        return 1.0

    with torch.autocast("cpu", dtype=torch.bfloat16):
        fastest({"dense": way, "kernel": way}, inputs, time)
    assert dtypes == [torch.bfloat16] * 4


def test_what_cannot_run_is_not_chosen(inputs: tuple[Tensor, Tensor]) -> None:
    def memory(*_: Tensor) -> Tensor:
        raise torch.OutOfMemoryError

    def compiler(*_: Tensor) -> Tensor:
        raise RuntimeError("no compiler")

    ways = Ways(dense=1)
    assert fastest({"large": memory, **ways.by_name}, inputs, ways.time) == "dense"
    with pytest.warns(UserWarning, match="kernel does not run here and will not be used: no compiler"):
        assert fastest({"kernel": compiler, **ways.by_name}, inputs, ways.time) == "dense"
    assert fastest({"large": memory, "larger": memory}, inputs, ways.time) == "large", "whoever runs it will be told"


class Halved(torch.autograd.Function):
    """A product whose second gradient lacks half of it, as a compiler once made a kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.mT, x.mT @ gradient / 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "wrong",
    [lambda x, w: x @ w + 0.5 * x.mean(), lambda x, w: x @ w * float("nan"), Halved.apply],
    ids=["another output", "NaN", "another gradient"],
)
def test_what_computes_something_else_is_not_chosen(
    wrong: Callable[..., Tensor], dtype: torch.dtype, inputs: tuple[Tensor, Tensor]
) -> None:
    given = tuple(tensor.detach().to(dtype).requires_grad_() for tensor in inputs)
    ways = {"right": torch.matmul, "wrong": wrong, "other order": lambda x, w: (w.mT @ x.mT).mT}
    seconds = iter([3.0, 1.0, 2.0])

    def time(run: Callable[[], object], device: torch.device) -> float:
        run()
        return next(seconds)

    with pytest.warns(UserWarning, match="wrong does not compute the same here and will not be used"):
        assert fastest(ways, given, time) == "other order"


def test_where_nothing_is_measured(inputs: tuple[Tensor, Tensor]) -> None:
    ways, found = Ways(dense=2, kernel=1), []

    def ask(x: Tensor) -> Tensor:
        found.append(ways(x, inputs[1]))
        return x + 1

    x = inputs[0]
    torch.compile(ask, fullgraph=True, backend="eager")(x)
    torch.jit.trace(ask, (x,), check_trace=False)
    torch.vmap(ask)(x)
    torch.func.jvp(ask, (x,), (x,))
    make_fx(ask, tracing_mode="fake")(x)
    with FakeTensorMode():
        ways(torch.ones(3, 4), torch.ones(4, 5))
    torch.use_deterministic_algorithms(True)
    try:
        ask(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert fastest(ways.by_name, inputs) == "dense", "a CPU, with the GPU's timer"
    assert set(found) == {"dense"} and ways.ran == []


@pytest.mark.skipif(not products.packable(torch.ones(2, 2)), reason="NOT TESTED: no oneDNN in this PyTorch")
@pytest.mark.parametrize(("maker", "mkl"), [("Intel Xeon", True), ("Intel Xeon", False), ("AMD EPYC", True)])
def test_products_are_mkls_on_intels_processors(maker: str, mkl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for packed matrices. What is known of this processor is forgotten before and after."""
    known = products.blas_is_intels_own, products.blas_lacks_avx512
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": maker}, raising=False)
    monkeypatch.setattr(products, "MIN_MULTIPLY_ADDS", 1)
    for each in known:
        each.cache_clear()
    try:
        product = products.linear(torch.ones(4, 24).requires_grad_(), torch.ones(10, 24))
        theirs = "_Linear" not in str(product.grad_fn.next_functions[0][0])  # type: ignore[union-attr]
        assert theirs == (mkl and maker == "Intel Xeon")
        assert isinstance(products.pack(torch.ones(10, 24)), products.Packed)
    finally:
        for each in known:
            each.cache_clear()
