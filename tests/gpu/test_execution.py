"""How a GPU runs a layer: compiled, captured in a graph, and without waiting for its host."""

from collections.abc import Callable, Iterator

import pytest
import timm
import torch
from gpsa_cases import CASES, SHAPE, RelativeError, drawn, gradients, on
from torch import Tensor, nn

import tcnn

pytestmark = pytest.mark.gpu

SAME_FUNCTION = 1e-4
"""Relative L2 in float32, of two ways to run the same operations."""


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["hard", "soft, τ = 1", "window", "pooled"])
def test_compiles_to_one_graph_forward_and_backward(
    name: str, device: torch.device, relative_error: RelativeError
) -> None:
    """By Triton on a GPU; on a CPU the captured graph runs as it is, where a C++ compiler would take minutes."""
    results = []
    for compiled in (False, True):
        layer, x = on(device, name)
        backend = "inductor" if device.type == "cuda" else "aot_eager"
        y = (torch.compile(layer, fullgraph=True, backend=backend) if compiled else layer)(x)
        y.backward(drawn(tuple(y.shape), 2).to(device))
        results.append({"y": y, **gradients(layer, x)})
    least = 1e-6 * float(results[0]["proj"].norm())
    for key, eager in results[0].items():
        error = float((results[1][key] - eager).detach().norm())
        assert error < SAME_FUNCTION * max(float(eager.detach().norm()), least), key


def replayed(module: nn.Module, x: Tensor, other: Tensor) -> Tensor:
    """What a graph of the module, captured with one input, says to another."""
    static = x.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries set themselves up in the first calls, which no graph could hold
            module(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = module(static)
    static.copy_(other)
    graph.replay()
    torch.cuda.synchronize()
    return output


@pytest.mark.gpu(only="a CPU captures no graphs")
@pytest.mark.parametrize("fused", [False, True], ids=["as it is", "fused"])
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_cuda_graph_of_a_layer(name: str, fused: bool, device: torch.device, relative_error: RelativeError) -> None:
    layer, x = on(device, name)
    module: nn.Module = nn.Sequential(layer).eval()
    if fused:
        module = tcnn.fuse(module)
    other = drawn(SHAPE, 3).to(device)
    assert relative_error(replayed(module, x.detach(), other), module(other)) < SAME_FUNCTION


@pytest.mark.gpu(only="a CPU captures no graphs")
@pytest.mark.parametrize("temperature", [1 / 46, 1.0], ids=["hard", "soft"])
@torch.no_grad()
def test_a_cuda_graph_of_a_fused_model(temperature: float, device: torch.device, relative_error: RelativeError) -> None:
    torch.manual_seed(0)
    model = tcnn.convert(timm.create_model("test_resnet"), temperature=temperature).model
    model = tcnn.fuse(model.eval()).to(device, memory_format=torch.channels_last)
    one, other = (drawn((2, 3, 96, 96), seed).to(device, memory_format=torch.channels_last) for seed in (3, 4))
    assert relative_error(replayed(model, one, other), model(other)) < SAME_FUNCTION


@pytest.fixture
def waiting_is_an_error(device: torch.device) -> Iterator[Callable[[], None]]:
    """Once called, PyTorch raises where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(before)


@pytest.mark.gpu(only="a CPU's host is its device")
@pytest.mark.parametrize("arithmetic", ["float32", "autocast"])
@pytest.mark.parametrize("name", CASES)
def test_training_never_waits_for_the_device(
    name: str, arithmetic: str, device: torch.device, waiting_is_an_error: Callable[[], None]
) -> None:
    """Forward, backward and update, twice: the second is of parameters that were written."""
    layer, x = on(device, name, arithmetic)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=arithmetic == "autocast"):
            y = layer(x)
        y.backward(torch.ones_like(y))
        optimizer.step()
        optimizer.zero_grad()

    step()  # after a change of τ the layer may ask once
    torch.cuda.synchronize()
    waiting_is_an_error()
    step()
    step()
