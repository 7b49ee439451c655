"""What a compiler sees of materialised attention where its operators are transparent: traced with tensors of a GPU that
is not there, in a process of its own, since Triton's kernels are no interpreter's there.
"""

import os
import subprocess
import sys
from unittest.mock import patch

import pytest
import torch
from forked import Interpreter
from materialised_layers import Case, make, materialised
from torch import Tensor

pytest.importorskip("triton.backends.compiler")

TRACED = """
import contextlib, json, os, sys
from unittest.mock import patch
import torch
from functorch.compile import aot_function
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from tcnn.layers.triton import custom_operator
from tcnn.layers.triton.materialised_inputs import Inputs, Sizes

class NoDriver:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

driver.set_active(NoDriver())
form, side = sys.argv[1], int(sys.argv[2])
HEADS, WIDTH, CHANNELS, IMAGES = 9, 8, 16, 2
TRANSPARENT = os.environ["TCNN_TRANSPARENT_OPERATORS"] == "1"
asked = side if form == "same pixels" else side // 2
grid = (1, 1), (side // asked,) * 2
sizes = Sizes(HEADS, (asked,) * 2, (side,) * 2, (side + 2,) * 2, (1, 1), *grid, 4 * side + 4, 1.0)
graphs = []

def keep(graph, _):
    graphs.append(graph)
    return graph

def gpu(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="cuda")

def nodes(graph):
    found = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and "getitem" not in str(node.target):
            found.append([str(node.target), sorted(node.kwargs.get("tensors_to_clone", []))])
    return found

with FakeTensorMode(), patch("torch.cuda.device", lambda _: contextlib.nullcontext()), torch.no_grad():
    apart = form != "same pixels"
    inputs = Inputs(
        gpu(IMAGES, side**2, CHANNELS), gpu(IMAGES, asked**2, CHANNELS) if apart else None,
        gpu(HEADS * WIDTH * (1 if apart else 2), CHANNELS), gpu(HEADS * WIDTH, CHANNELS) if apart else None, None,
        gpu(HEADS), gpu(dtype=torch.float32), gpu(HEADS), gpu(HEADS, 2), gpu(dtype=torch.float32),
        gpu(CHANNELS, HEADS * CHANNELS), gpu(CHANNELS),
    )
    there = [one for one in inputs if one is not None]
    absent = [one is None for one in inputs]
    flat = [n for pair in sizes[1:7] for n in pair]
    wanted = [not gone and "temperature" not in name for gone, name in zip(absent, Inputs._fields)]
    kept = custom_operator.materialised_attention(*inputs, HEADS, flat, sizes.sinks, 1.0, TRANSPARENT)[1:]

    def forward(*given):
        given = iter(given)
        return custom_operator.attend(Inputs(*(None if gone else next(given) for gone in absent)), sizes)

    def backward(gradient, *given):
        tensors, kept = list(given[: len(there)]), list(given[len(there) :])
        return custom_operator.materialised_attention_backward(
            gradient, tensors, absent, kept, HEADS, flat, sizes.sinks, 1.0, TRANSPARENT, wanted
        )

    aot_function(forward, fw_compiler=keep)(*there)
    aot_function(backward, fw_compiler=keep)(gpu(IMAGES, asked**2, CHANNELS), *there, *kept)
print(json.dumps([nodes(graph) for graph in graphs]))
"""

Nodes = list[list[object]]


def traced(form: str, side: int, transparent: bool) -> tuple[Nodes, Nodes]:
    """Nodes of the graphs of both ways: operators, and what Triton's kernels among them write to."""
    import json

    environment = os.environ | {"TCNN_TRANSPARENT_OPERATORS": str(int(transparent))}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", TRACED, form, str(side)], capture_output=True, text=True, check=False, env=environment
    )
    assert not done.returncode, done.stderr
    forward, backward = json.loads(done.stdout.splitlines()[-1])
    return forward, backward


def written(nodes: Nodes) -> list[object]:
    return [writes for name, writes in nodes if "triton_kernel_wrapper" in str(name)]


@pytest.mark.parametrize(
    ("form", "side", "kernels"),
    [
        pytest.param("same pixels", 14, [["grads", "sums"]], marks=pytest.mark.slow),
        pytest.param("strided", 14, [["grads", "sums"]], marks=pytest.mark.slow),
        pytest.param("same pixels", 32, [["expected", "grads", "sums"], ["grads"]], marks=pytest.mark.slow),
    ],
)
def test_a_compiler_sees_products_and_kernels(form: str, side: int, kernels: list[list[str]]) -> None:
    """What a kernel does not write a compiler must not copy for it: every one writes what is its own, and no view."""
    forward, backward = traced(form, side, transparent=True)
    assert written(forward) == [["out"], ["lse", "maps"]]
    assert written(backward) == [*kernels, ["parts"], ["grad_centres", "grad_gating", "grad_raws"]]
    assert not any("materialised" in str(name) for name, _ in forward + backward)
    assert sum("mm" in str(name) for name, _ in forward) == (3 if form == "same pixels" else 4)


@pytest.mark.slow  # a graph says it below, in no process of its own
def test_by_default_it_sees_one_operator() -> None:
    forward, backward = traced("same pixels", 14, transparent=False)
    assert not written(forward + backward)
    assert [sum("materialised" in str(name) for name, _ in nodes) for nodes in (forward, backward)] == [1, 1]


def graphs_of_both_ways() -> list[bool]:
    """What graphs say of the operator, compiled with the variable unset, set, and unset again in one process."""
    layer, x = make(Case())
    said: list[bool] = []

    def note(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        said.extend(node.args[-1] for node in graph.graph.nodes if "materialised_attention" in str(node.target))
        return graph

    for wanted in ("0", "1", "0"):
        torch.compiler.reset()
        with patch.dict(os.environ, {"TCNN_TRANSPARENT_OPERATORS": wanted}), materialised():
            torch.compile(layer, backend=note, fullgraph=True)(x)
    return said


def test_a_graph_says_whether_its_operators_are_transparent(interpreter: Interpreter) -> None:
    """Compilers keep what they made of a graph: one that looks the same must be the same."""
    assert interpreter(graphs_of_both_ways) == [False, True, False]
