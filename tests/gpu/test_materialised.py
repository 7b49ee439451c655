"""The materialised backend on a GPU: its formula in float64, equal runs, compiled, in a graph, and the tuner's word."""

import warnings

import pytest
import torch
from materialised_layers import Case, compare, found_by, make, materialised, relative, tuned

import tcnn
from tcnn.layers.triton.attention import runs_on

pytestmark = pytest.mark.gpu(only="the kernels run in Triton's interpreter there, in tests/layers")

HALF = {torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Relative L2 of output and gradients. Measured on an H100: at most 1.2e-2 in bfloat16, as plain operations."""
WIDE = (64, 48)
CASES = [
    Case(kernel=(3, 3), size=size, width=width, channels=WIDE, dtype=torch.bfloat16, content_heads=content, form=form)
    for form, size, width, content in (
        ("padding", (14, 14), 56, 0), ("padding", (7, 7), 56, 0), ("padding", (32, 32), 56, 0),
        ("padding", (20, 17), 24, 2), ("padding", (4, 4), 16, 1), ("padding", (12, 12), 128, 0),
        ("padding", (9, 9), 256, 0), ("padding", (1, 1), 56, 0), ("stride", (28, 28), 56, 0),
        ("no padding", (14, 14), 40, 0),
    )
]  # fmt: skip


@pytest.fixture(autouse=True)
def can_run_them(device: torch.device) -> None:
    if not runs_on(device):
        pytest.skip("the kernels need Triton and compute capability 8.0")


@pytest.mark.parametrize("case", [*CASES, CASES[0]._replace(dtype=torch.float16)], ids=str)
def test_equals_the_formula_in_every_run(case: Case, device: torch.device) -> None:
    found = compare(case, device.type)
    assert found.chosen_from == ["in chunks materialised"] * 2
    assert found.same, "two runs differ"
    for name, error in found.errors.items():
        assert error < max(HALF[case.dtype], 1.5 * found.plain[name]), name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("side", [7, 14, 32])
def test_the_tuner_finds_all_implementations_alike(side: int, fused: bool, device: torch.device) -> None:
    layer, x = make(
        Case(kernel=(3, 3), size=(side, side), width=24, channels=(216, 216), images=8, dtype=torch.bfloat16)
    )
    layer, x = layer.to(device), x.to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        if fused:
            with torch.no_grad():
                chosen = tuned(tcnn.fuse(layer), x)
        else:
            chosen = tuned(layer, x.requires_grad_())
    assert list(chosen) == ["in chunks materialised"]


@pytest.mark.parametrize("transparent", [False, True])
@pytest.mark.parametrize("mode", ["eager", "autocast"])
def test_compiled_to_one_graph(
    mode: str, transparent: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TCNN_TRANSPARENT_OPERATORS", str(int(transparent)))
    dtype = torch.float32 if mode == "autocast" else torch.bfloat16
    layer, x = (
        one.to(device) for one in make(Case(kernel=(3, 3), size=(14, 14), width=56, channels=WIDE, dtype=dtype))
    )
    torch.compiler.reset()
    whole = torch.compile(layer, fullgraph=True)
    with materialised(), torch.autocast(device.type, torch.bfloat16, enabled=mode == "autocast"):
        found, expected = found_by(whole, x), found_by(layer, x)
    errors = relative(dict(zip(expected, found.values(), strict=True)), expected)
    assert max(errors.values()) < 1e-2, errors


def test_a_training_step_in_a_cuda_graph(device: torch.device) -> None:
    layer, x = (
        one.to(device)
        for one in make(Case(kernel=(3, 3), size=(14, 14), width=56, channels=WIDE, dtype=torch.bfloat16))
    )
    leaf = x.clone().requires_grad_()

    def step() -> None:
        layer.zero_grad(set_to_none=False)
        leaf.grad = None
        layer(leaf).float().square().sum().backward()

    with materialised():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        expected = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(p.grad, expected[name]) for name, p in layer.named_parameters() if p.grad is not None)
