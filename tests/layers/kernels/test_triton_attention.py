"""Attention in Triton against its formula in float64, maps and padding written out, forward and all six gradients.

The kernels run in Triton's interpreter, in a process of its own. What compilers for GPUs say to
the same kernels is in test_triton_compiled.py, and what a GPU makes of them in tests/gpu/test_kernels.py.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from forked import Interpreter
from torch import Tensor
from triton_cases import (
    BESIDE_PLAIN,
    FLOAT32,
    HALF,
    NAMES,
    Case,
    errors,
    make,
    relative_errors,
    twice,
    with_gradients,
    written_out,
)

from tcnn.layers import GPSA2d
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.triton import attention as triton_attention
from tcnn.layers.triton import tiles as triton_tiles
from tcnn.layers.triton.attention import attend, supported


@pytest.mark.parametrize(
    "case",
    [
        Case((4, 4), (7, 7), width=24, heads=1), Case((3, 2), (6, 3), channels=40, sinks=0),
        Case((1, 1), (3, 3), sinks=16), Case((2, 9), (9, 9), sinks=1000, heads=1),
        Case((3, 3), (3, 3), sinks=16, strange=True),
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in (
                Case((7, 7), (7, 7), width=56, channels=72, sinks=32, heads=1), Case((2, 3), (3, 34), heads=1),
                Case((5, 4), (5, 4), channels=20, sinks=22, images=2), Case((9, 2), (9, 10), width=64, heads=1),
                Case((2, 5), (9, 12), channels=40, sinks=46, heads=1, strange=True),
            )
        ),
    ],
    ids=str,
)  # fmt: skip
def test_equals_the_formula(case: Case, interpreter: Interpreter) -> None:
    found, _ = interpreter(errors, case)
    assert {name: error for name, error in zip(NAMES, found, strict=True) if not error < FLOAT32} == {}


@pytest.mark.parametrize(
    ("asking", "seen", "width", "dtype"),
    [
        ((5, 4), (5, 4), 56, torch.float16),
        ((5, 4), (5, 4), 56, torch.bfloat16),
        pytest.param((4, 4), (3, 90), 8, torch.bfloat16, marks=pytest.mark.slow),
        pytest.param((9, 10), (10, 12), 16, torch.float16, marks=pytest.mark.slow),
        pytest.param((4, 4), (3, 90), 8, torch.float16, marks=pytest.mark.slow),
        pytest.param((9, 10), (10, 12), 16, torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_half_precision(
    asking: tuple[int, int], seen: tuple[int, int], width: int, dtype: torch.dtype, interpreter: Interpreter
) -> None:
    case = Case(asking, seen, width, sinks=18, heads=1, dtype=dtype)
    found, plain = interpreter(errors, case)
    for name, ours, theirs in zip(NAMES, found, plain, strict=True):
        assert ours < HALF[dtype] and ours < BESIDE_PLAIN[dtype] * theirs, name


def test_the_cases_meet_one_tile_of_keys_and_several() -> None:
    """Two ways through the kernels; tiles below each other, beside each other, and both."""

    def key_tiles(case: Case) -> tuple[int, int]:
        kind = case.asking, case.seen, case.width, case.channels, case.dtype.itemsize
        keys = triton_tiles.choose("backward_keys", *kind)
        tiles = keys if keys.whole else triton_tiles.choose("backward_queries", *kind)
        return triton_tiles.count(case.seen, tiles.key)

    half = torch.float16
    assert key_tiles(Case((7, 7), (7, 7))) == key_tiles(Case((9, 10), (10, 12), dtype=half)) == (1, 1)
    assert key_tiles(Case((2, 9), (9, 9))) == (5, 1)
    assert key_tiles(Case((2, 3), (3, 34))) == (1, 5)
    assert key_tiles(Case((4, 4), (3, 90), dtype=half)) == (3, 2)


def large_logits() -> list[float]:
    inputs, _ = make(Case((4, 4), (4, 4), heads=1))
    inputs[0], inputs[1] = 1e3 * torch.ones_like(inputs[0]), -torch.ones_like(inputs[1])
    drowned = attend(*inputs[:5], torch.zeros(1), 5, 1.0)
    found = attend(*inputs[:5], torch.zeros(1), None, 1.0)
    return [drowned.abs().max().item(), (found - inputs[2].mean(1)[:, None, None]).abs().max().item()]


def test_large_logits_do_not_overflow(interpreter: Interpreter) -> None:
    padding, mean = interpreter(large_logits)
    assert padding == 0, "all attention goes to the padding"
    assert mean < 1e-6


def test_two_runs_agree_in_every_bit(interpreter: Interpreter) -> None:
    """On a GPU that follows from there being no atomics, see triton_compiled.py."""
    assert interpreter(twice, Case((2, 2), (3, 4), sinks=7, images=2, heads=1))


def second_derivatives(case: Case) -> list[float]:
    inputs, upstream = make(case)

    def second(way: Callable[..., Tensor], inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
        out = way(*inputs, 7, 0.3)
        first = torch.autograd.grad(out, inputs, upstream, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))

    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    return relative_errors(second(attend, inputs, upstream), second(written_out, exact, upstream.double()))


def test_second_derivatives(interpreter: Interpreter) -> None:
    assert max(interpreter(second_derivatives, Case((3, 4), (4, 4)))) < FLOAT32


def frozen_and_shared() -> list[float]:
    """A frozen matrix, and one tensor that is queries and keys."""
    inputs, upstream = make(Case((3, 4), (3, 4)))
    results = []
    for dtype, way in ((torch.float32, attend), (torch.float64, written_out)):
        both, value, *factors = (inputs[n].detach().to(dtype) for n in (0, 2, 3, 4, 5))
        out = way(both.requires_grad_(), both, value, *factors, 7, 0.3)
        (first,) = torch.autograd.grad(out, [both], upstream.to(dtype), create_graph=True)
        results.append([first, *torch.autograd.grad(first.square().sum(), [both])])
    return relative_errors(*results)


def test_frozen_inputs_and_one_tensor_twice(interpreter: Interpreter) -> None:
    assert max(interpreter(frozen_and_shared)) < FLOAT32


def compiled() -> tuple[int, bool]:
    """Graphs, and whether anything differs."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    def mixed(*inputs: Tensor) -> Tensor:
        if not supported(inputs[0], inputs[2]):
            raise AssertionError("not under a compiler")
        return attend(*inputs, 7, 0.3)

    ours, same = torch.compile(mixed, fullgraph=True, dynamic=True, backend=backend), []
    # No two sizes of the first case are the same: a compiler would take them for one.
    for case in (Case((3, 7), (5, 6), images=4), Case((2, 3), (5, 4), images=3, channels=24)):
        runs = [with_gradients(way, *make(case)) for way in (mixed, ours)]
        same += [torch.equal(first, second) for first, second in zip(*runs, strict=True)]
    return len(graphs), all(same)


@pytest.mark.slow  # a compiler's start; the layer's own graph in test_gpsa_compile.py stays
def test_one_graph_for_every_size(interpreter: Interpreter) -> None:
    assert interpreter(compiled) == (1, True)


def empty_and_autocast() -> dict[str, object]:
    inputs, upstream = make(Case((3, 3), (3, 3)))
    none = [tensor[:0] for tensor in inputs[:3]]
    out = attend(*none, *inputs[3:], 7, 0.3)
    gradients = torch.autograd.grad(out.sum(), inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = attend(*inputs, 7, 0.3)
    return {
        "shape": tuple(out.shape), "zeros": all(not g.any() for g in gradients), "autocast": mixed.dtype,
        "gradients": {g.dtype for g in torch.autograd.grad(mixed, inputs, upstream.bfloat16())},
    }  # fmt: skip


def test_no_images_and_autocast(interpreter: Interpreter) -> None:
    assert interpreter(empty_and_autocast) == {
        "shape": (0, 9, 2, 16), "zeros": True, "autocast": torch.bfloat16, "gradients": {torch.float32},
    }  # fmt: skip


def layer_by_kernel(options: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Relative errors of a layer's output and gradients against its formula; runs of the kernel, `fused` and `auto`."""
    torch.manual_seed(0)
    layer = GPSA2d(4, 6, kernel_size=2, head_dim=8, temperature=1.0, **options)
    x = torch.randn(1, 4, 3, 4, requires_grad=True)
    found, runs = [], []
    for backend in ("reference", "fused", "auto"):
        with use_backend(backend), patch.object(triton_attention, "attend", wraps=attend) as kernel:
            y = layer(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
        runs.append(kernel.call_count)
    return [
        ((ours - expected).norm() / expected.norm()).item()
        for way in found[1:]
        for ours, expected in zip(way, found[0], strict=True)
    ], runs


@pytest.mark.parametrize("options", [{"padding": 1}, pytest.param({}, marks=pytest.mark.slow)], ids=str)
def test_a_layer_by_the_kernel(options: dict[str, Any], interpreter: Interpreter) -> None:
    """Where a CPU can choose, it does not choose the kernel, which is for GPUs."""
    errors, runs = interpreter(layer_by_kernel, options)
    assert max(errors) < 10 * FLOAT32
    assert runs == [0, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case((14, 14), (14, 14), 56, 200, 60, heads=1), Case((10, 20), (10, 20), 24, 40, 64, heads=1),
        Case((7, 7), (14, 14), 56, 512, 60, heads=1), Case((17, 3), (32, 32), 64, 64, 132, heads=1),
        Case((5, 5), (64, 64), 8, 16, None, heads=1), Case((8, 17), (16, 33), 256, 24, 102, heads=1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_equals_the_formula_on_the_maps_it_was_made_for(
    case: Case, dtype: torch.dtype, interpreter: Interpreter
) -> None:
    found, plain = interpreter(errors, case._replace(dtype=dtype))
    for name, ours, theirs in zip(NAMES, found, plain, strict=True):
        if dtype == torch.float32:
            assert ours < FLOAT32, name
        else:
            assert ours < HALF[dtype] and ours < BESIDE_PLAIN[dtype] * theirs, name


def checked_by_torch() -> set[str]:
    inputs, upstream = make(Case((3, 4), (4, 5), images=2))
    arguments = *inputs, 7, 0.3
    results = torch.library.opcheck(triton_attention.gated_attention, arguments)
    _, lse = triton_attention.gated_attention(*arguments)
    backward = upstream, *(tensor.detach() for tensor in (*inputs, lse)), 0.3
    results |= torch.library.opcheck(triton_attention.gated_attention_backward, backward)
    return set(results.values())


@pytest.mark.slow
def test_it_is_a_good_operator(interpreter: Interpreter) -> None:
    assert interpreter(checked_by_torch) == {"SUCCESS"}
