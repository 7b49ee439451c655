"""The materialised backend by Triton's kernels: against its formula in float64, second derivatives, compiled, saved.

The kernels run in Triton's interpreter, in a process of its own; what a GPU makes of them is in tests/gpu.
"""

import warnings
from typing import Any
from unittest.mock import patch

import pytest
import torch
from forked import Interpreter
from materialised_layers import Case, Found, compare, found_by, make, materialised, relative
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tcnn.layers import functional
from tcnn.layers.backends import materialised as backend
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.triton import launches
from tcnn.layers.triton.materialised_inputs import Sizes

FLOAT32 = 3e-6
"""Relative L2. Measured: at most 1e-6."""
HALF = 2e-2
"""The same in bfloat16. Measured: at most 1e-2; plain operations have 7e-3."""

QUICK = (
    Case(), Case("stride", (4, 5), unpadded=True), Case("no padding", (3, 4), content_heads=1, kernel=(2, 2)),
    Case("dilated", (2, 4), dtype=torch.bfloat16),
)  # fmt: skip
SLOW = tuple(
    case._replace(kernel=(3, 3)) for case in (
        Case("reflected", (6, 5)), Case("dilated", (7, 9)), Case("dilated", (9, 8), dtype=torch.bfloat16),
        Case(size=(6, 5), unpadded=True), Case("stride", (9, 8), content_heads=1), Case(size=(1, 1)),
        Case(size=(2, 3), images=1),
        Case(size=(6, 5), dtype=torch.bfloat16), Case(size=(4, 4), width=16),
        Case(size=(13, 11), width=128, content_heads=2),
        Case("stride", (21, 19)), Case(size=(9, 9), width=256),
        Case(size=(16, 16), width=64, images=1, dtype=torch.bfloat16),
    )
)  # fmt: skip
SLOW += (Case(size=(20, 17), content_heads=1, kernel=(2, 2)),)  # more keys than any tile, at four heads' time


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids=str)
def test_equals_the_formula(case: Case, interpreter: Interpreter) -> None:
    """Maps of one tile of keys and of several, with rows that are padded and that are not, in every geometry."""
    found: Found = interpreter(compare, case)
    assert found.chosen_from == ["in chunks materialised"] * 2
    assert found.same
    assert max(found.errors.values()) < (FLOAT32 if case.dtype == torch.float32 else HALF), found.errors


def without_what_is_mixed(case: Case) -> tuple[bool, dict[str, float]]:
    layer, x = make(case)
    with materialised():
        expected = found_by(layer, x)
        with patch.object(backend, "SAVED_SHARE", 2**60), patch.object(backend, "_fits", lambda *_: True):
            found = found_by(layer, x)
    return all(torch.equal(found[name], expected[name]) for name in found), relative(found, expected)


def test_what_is_mixed_is_computed_again_where_memory_is_short(interpreter: Interpreter) -> None:
    same, errors = interpreter(without_what_is_mixed, Case())
    assert same, errors


def frozen(case: Case, names: tuple[str, ...]) -> dict[str, float]:
    """Errors of the gradients of these parameters alone."""
    layer, x = make(case)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in names)

    def step() -> dict[str, Tensor]:
        layer.zero_grad()
        layer(x).square().sum().backward()
        return {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}

    with materialised():
        found = step()
    assert found.keys() == set(names)
    with use_backend("reference"):
        return relative(found, step())


@pytest.mark.parametrize(
    "names", [("proj", "bias"), ("value", "key"), ("gating_param",), ("query", "attention_centers")]
)
def test_frozen_parameters_get_no_gradient(names: tuple[str, ...], interpreter: Interpreter) -> None:
    errors = interpreter(frozen, Case(), names)
    assert max(errors.values()) < FLOAT32, errors


def second_derivatives(case: Case) -> dict[str, float]:
    layer, x = make(case)
    x.requires_grad_()

    def twice() -> dict[str, Tensor]:
        (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        named = {"x": x, **dict(layer.named_parameters())}
        del named["bias"]  # of which the first derivative knows nothing
        found = torch.autograd.grad(first.square().sum(), list(named.values()))
        return dict(zip(named, found, strict=True))

    with materialised():
        found = twice()
    with use_backend("reference"):
        return relative(found, twice())


@pytest.mark.parametrize("form", ["padding", "stride"])
def test_second_derivatives(form: str, interpreter: Interpreter) -> None:
    errors = interpreter(second_derivatives, Case(form, images=1))
    assert max(errors.values()) < 2e-5, errors


def compiled(case: Case, dynamic: bool, autocast: bool) -> tuple[int, list[dict[str, float]]]:
    """How many operators a compiler saw in one graph, and how far off it was on maps of three sizes."""
    layer, x = make(case)
    seen: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        from torch._dynamo.backends.debugging import aot_eager

        seen.append(sum("materialised_attention" in str(node.target) for node in graph.graph.nodes))
        return aot_eager(graph, inputs)

    torch.compiler.reset()
    whole = torch.compile(layer, backend=count, fullgraph=True, dynamic=dynamic)
    errors = []
    for rows in (0, 1, 2) if dynamic else (0,):
        x = torch.cat((x, x[:, :, :rows]), dim=2)
        with torch.autocast("cpu", enabled=autocast), materialised():
            found, expected = found_by(whole, x), found_by(layer, x)  # type: ignore[arg-type]
        errors.append(relative(dict(zip(expected, found.values(), strict=True)), expected))
    return sum(seen), errors


@pytest.mark.parametrize(
    ("form", "dynamic", "autocast"),
    [
        ("padding", False, False),
        pytest.param("stride", True, False, marks=pytest.mark.slow),
        pytest.param("padding", True, True, marks=pytest.mark.slow),
    ],
)
def test_a_compiler_sees_one_operator(form: str, dynamic: bool, autocast: bool, interpreter: Interpreter) -> None:
    count, errors = interpreter(compiled, Case(form), dynamic, autocast)
    assert count == (1 if not dynamic else count) and count >= 1
    assert all(max(one.values()) < FLOAT32 for one in errors), errors


def opcheck(form: str) -> None:
    from tcnn.layers.triton import custom_operator

    layer, x = make(Case(form))
    given: list[tuple[object, ...]] = []
    real = custom_operator.materialised_attention

    def noted(*arguments: object) -> object:
        given.append(arguments)
        return real(*arguments)

    with (
        patch.object(custom_operator, "materialised_attention", noted),
        patch.object(torch.compiler, "is_compiling", lambda: True),
    ):
        backend.attend(x, layer.tensors, layer.geometry, layer.scope)
    detached = [one.detach().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one for one in given[0]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(
            real, tuple(detached), test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_static")
        )


@pytest.mark.parametrize("form", [pytest.param("padding", marks=pytest.mark.slow), "stride"])
def test_the_operator_keeps_pytorchs_rules(form: str, interpreter: Interpreter) -> None:
    interpreter(opcheck, form)


def fused_errors() -> tuple[list[str], float]:
    layer, x = make(Case())
    with torch.no_grad(), materialised() as seen:
        fused = FusedGPSA2d(layer, packed=False)  # as on a GPU
        return seen, relative({"y": fused(x)}, {"y": layer(x)})["y"]


def test_a_fused_layer(interpreter: Interpreter) -> None:
    seen, error = interpreter(fused_errors)
    assert seen == ["in chunks materialised"] * 2
    assert error < FLOAT32


def tuned_anywhere() -> list[str]:
    """The tuner, with a timer that is none, runs both implementations and finds them alike: nothing is warned of."""
    from tcnn.layers.backends import autotune

    real, chosen = autotune.fastest, []

    def fastest(implementations: dict[str, object], inputs: list[Tensor], timer: object = None) -> str:
        chosen.append(real(implementations, inputs, lambda run, device: float(run() is None)))  # type: ignore[arg-type]
        return chosen[-1]

    with warnings.catch_warnings(), patch.object(autotune, "fastest", fastest):
        warnings.simplefilter("error")
        layer, x = make(Case(images=1))
        for each in (layer, FusedGPSA2d(layer, packed=False)):
            each(x.requires_grad_()).sum().backward()
    return chosen


def test_the_tuner_finds_all_implementations_alike(interpreter: Interpreter) -> None:
    """Also of a fused layer, whose positional attention was prepared for its own parameters."""
    assert interpreter(tuned_anywhere) == ["in chunks"] * 2


class Counted(TorchDispatchMode):
    """Operators that a GPU would launch: views and new memory are none."""

    NONE = (
        "empty",
        "view",
        "transpose",
        "permute",
        "expand",
        "slice",
        "detach",
        "alias",
        "aten.t.",
        "unsqueeze",
        "split",
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(none in str(function) for none in self.NONE):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def launches_of_a_step() -> tuple[list[str], list[str]]:
    """Operators and kernels of a forward pass, and of a backward pass; kernels are noted and not run."""
    from triton.runtime import interpreter as triton_interpreter

    layer, x = make(Case(dtype=torch.bfloat16))
    layer, x = layer.train(), x.to(memory_format=torch.channels_last).requires_grad_()
    kernels: list[str] = []

    def note(executor: Any, *_: object, **__: object) -> None:
        kernels.append(executor.fn.__name__)

    def both(counted: Counted) -> list[str]:
        found = [*counted.names, *kernels]
        kernels.clear()
        return found

    with (
        materialised(),
        patch.object(triton_interpreter.GridExecutor, "__call__", note),
        patch.object(functional, "in_hard_limit", lambda *_: False),  # on a CPU it looks at the values
    ):
        with Counted() as forward:
            y = layer(x)
        ahead = both(forward)
        upstream = torch.ones_like(y)
        with Counted() as backward:
            torch.autograd.grad(y, [x, *layer.parameters()], upstream)
    return ahead, both(backward)


def test_a_training_step_takes_few_launches(interpreter: Interpreter) -> None:
    """On a GPU each costs the host up to 40 µs; they were 124 in all, and ConViT's formulas take 100."""
    forward, backward = interpreter(launches_of_a_step)
    assert {"table", "forward"} <= set(forward)
    assert {"backward_keys", "gradients_of_queries", "gradients"} <= set(backward)
    assert len(forward) <= 10, forward
    assert len(backward) <= 15, backward


def test_where_it_is_not_supported() -> None:
    layer, x = make(Case())
    assert not backend.supported(x, layer.tensors, layer.geometry, layer.scope), "no Triton on this device"


def test_tiles_fit_maps_of_every_size() -> None:
    for side in (1, 2, 7, 14, 16, 17, 32, 60):
        for width in (8, 56, 64, 128, 256):
            sizes = Sizes(9, (side, side), (side, side), (side + 2,) * 2, (1, 1), (1, 1), (1, 1), 4, 1.0)
            assert sizes.pitch % 16 == 0 and 0 <= sizes.pitch - side * side < 16
            for kernel in ("forward", "backward_keys", "backward_queries"):
                tiles = launches.choose(kernel, sizes, width, 2)
                assert tiles.queries >= 16 and tiles.keys >= 16 and tiles.queries * tiles.keys <= 2**14
                assert not tiles.whole or tiles.keys >= sizes.pitch
