"""Attention in Triton as an operator: what it supports, what it launches, and that Triton is not needed to import it.

The kernels run in Triton's interpreter, in a process of its own.
"""

import importlib
import os
import sys

import torch
from forked import Interpreter
from operations import Operations
from triton_cases import Case, make

from tcnn.layers.triton import attention as triton_attention
from tcnn.layers.triton.attention import supported


def refused() -> dict[str, bool]:
    query, value = torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, 16)
    with torch.autograd.forward_ad.dual_level():
        dual = supported(query, value)
    return {
        "plain": supported(query, value), "float64": supported(query.double(), value.double()),
        "a width of 12": supported(torch.zeros(1, 2, 4, 12), value),
        "of 264": supported(torch.zeros(1, 2, 4, 264), value),
        "no channels": supported(query, value[..., :0]), "meta": supported(query.to("meta"), value.to("meta")),
        "tangents": dual,
        "2³¹ numbers": supported(query[:, :, :1].expand(1, 2, 2**20, 8), value[..., :1].expand(1, 4, 2**10)),
        "vmap": bool(torch.vmap(lambda q: q.sum() * 0 + supported(q, value))(query[None]).any()),
    }  # fmt: skip


def test_what_is_supported(interpreter: Interpreter) -> None:
    assert interpreter(refused) == {
        "plain": True, "float64": False, "a width of 12": False, "of 264": False, "no channels": False, "meta": False,
        "tangents": False, "2³¹ numbers": False, "vmap": False,
    }  # fmt: skip
    assert not supported(torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, 16)), "a CPU without the interpreter"


def counted(case: Case) -> tuple[list[str], list[str], int]:
    """Operators beside the kernels, forward and backward, and the elements of the largest tensor among all."""
    inputs, upstream = make(case)
    inputs = [tensor.detach() for tensor in inputs]
    with Operations() as forward:
        _, lse = triton_attention.gated_attention._init_fn(*inputs, 7, 0.3)
    with Operations() as backward:
        triton_attention.gated_attention_backward._init_fn(upstream, *inputs, lse, 0.3)
    # Views and allocations launch nothing; to set and copy storages is the interpreter's way to reach memory.
    nothing = {"new_empty", "empty", "empty_like", "set_", "copy_", "view", "alias", "slice", "transpose", "unsqueeze"}
    launched = [[name for name, *_ in run.outputs if name not in nothing] for run in (forward, backward)]
    largest = max(shape.numel() for _, shape, _ in (*forward.outputs, *backward.outputs))
    return launched[0], launched[1], largest


def test_few_operators_and_no_map_in_memory(interpreter: Interpreter) -> None:
    forward, backward, largest = interpreter(counted, Case((16, 16), (16, 16), heads=1, dtype=torch.float16))
    assert forward == [], "one kernel"
    assert len(backward) <= 8, "two kernels, and what they summed over tiles is summed over images"
    assert largest * 8 <= 256 * 256


def without_triton() -> bool:
    """Whether attention is supported once it is imported again and Triton is nowhere to be found.

    In a fork, which alone has the operators twice.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            for name in [name for name in sys.modules if name.startswith("tcnn.layers.triton")]:
                del sys.modules[name]
            sys.modules["triton"] = None  # type: ignore[assignment]
            again = importlib.import_module("tcnn.layers.triton.attention")
            os.write(writing, str(again.supported(torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, 16))).encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.wait()
    with os.fdopen(reading) as pipe:
        return {"True": True, "False": False}[pipe.read()]


def test_triton_is_not_needed_to_import_it(interpreter: Interpreter) -> None:
    assert interpreter(supported, torch.zeros(1, 2, 4, 8), torch.zeros(1, 4, 16))
    assert not interpreter(without_triton)
