"""Trace a model as a `torch.export` program, with as many dynamic axes as the model supports.

The program is traced in evaluation mode on an example (B, C, H, W). Where a size is built into the model, or the tracer
cannot follow what depends on it, the axis is fixed, and the reason is recorded.
"""

import inspect
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export import export as trace_program
from torch.export.graph_signature import OutputKind, TensorArgument
from torch.utils._pytree import KeyPath, tree_flatten_with_path, tree_unflatten

from tcnn.errors import RequestError, one_line, shorten
from tcnn.exporting.interface import AXES, Axis, ExportAxis
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.folded import FoldedGPSA2d
from tcnn.layers.fused import FusedGPSA2d
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.state import same_start

POSITION: dict[Axis, int] = {"batch": 0, "height": 2, "width": 3}
"""Index of an axis in (B, C, H, W)."""


class Program(NamedTuple):
    """A traced model."""

    program: ExportedProgram
    axes: tuple[ExportAxis, ...]
    symbols: dict[str, Axis]
    """The tracer's symbol of each dynamic axis."""


def free_axes(model: nn.Module, wanted: Collection[Axis]) -> tuple[list[tuple[Axis, ...]], list[str]]:
    """Sets of dynamic axes to try, the largest first, and notes on what is not tried."""
    full = tuple(axis for axis in AXES if axis in wanted)
    reason = next(filter(None, map(_follows_size, model.modules())), None)
    notes = []
    if reason is not None and set(full) - {"batch"}:
        notes.append(f"height and width are fixed: {reason}")
        full = tuple(axis for axis in full if axis == "batch")
    fewer: list[tuple[Axis, ...]] = [("batch",), ()]
    return [full, *(axes for axes in fewer if set(axes) < set(full))], notes


@contextmanager
def silence_logging() -> Iterator[None]:
    """Context that disables logged warnings: tracer and translator log failures, with tracebacks, that are retried."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _follows_size(module: nn.Module) -> str | None:
    """The reason why the tracer cannot follow the map size through this layer (its formulas never end), or None."""
    ours = module if isinstance(module, GPSA2d | FoldedGPSA2d | FusedGPSA2d) else None
    if type(module).__name__.endswith("Same") or (ours and ours.geometry.padding == "dynamic"):  # timm's names
        return "the model's padding follows the size of the map (SAME)"
    if ours and ours.scope.kind == "window":
        return f"the windows of content {ours.scope} follow the size of the map"
    return None


def _drop_filters_that_nobody_reads(program: ExportedProgram, model: nn.Module) -> None:
    """Take the filters that fused layers keep for models that read them out of a program that does not."""
    ours = {f"{name}.filter".lstrip(".") for name, one in model.named_modules() if isinstance(one, FusedGPSA2d)}
    inputs = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    signature = program.graph_signature
    for spec in list(signature.input_specs):
        if spec.target in ours and not inputs[spec.arg.name].users:
            program.graph.erase_node(inputs[spec.arg.name])
            signature.input_specs.remove(spec)
            del program.state_dict[spec.target]
    program.graph_module.recompile()


def trace(model: nn.Module, example: Tensor, axes: Sequence[Axis]) -> Program:
    """Trace a model in evaluation mode with these axes dynamic.

    The attention is traced whatever `TCNN_ATTENTION` says, also where an unfused layer is in the hard limit.

    Raises: `RequestError` if the tracer cannot, or would freeze one of the axes.
    """
    try:
        with torch.no_grad(), use_backend("auto"), same_start(model), silence_logging():
            program = trace_program(model, (example,), dynamic_shapes=_dynamic_shapes(model, axes))
    except Exception as error:  # the tracer raises whatever it stumbles over
        raise RequestError(f"torch.export cannot trace it ({shorten(one_line(error), 160)})") from error
    _drop_filters_that_nobody_reads(program, model)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # names the exporting machine's files
    name = program.graph_signature.user_inputs[0]
    shape = next(node for node in program.graph.nodes if node.name == name).meta["val"].shape
    symbols = {str(shape[POSITION[axis]]): axis for axis in axes}
    frozen = [axis for axis in axes if not str(shape[POSITION[axis]]).isidentifier()]
    if frozen or len(symbols) < len(axes):
        raise RequestError(f"the model ties or fixes {' and '.join(frozen or axes)}")
    bounds = {
        symbols[str(symbol)]: bound for symbol, bound in program.range_constraints.items() if str(symbol) in symbols
    }
    capped = [axis for axis, bound in bounds.items() if str(bound.upper).isdigit()]
    if capped:  # a map of one pixel at the example's size: the tracer has specialised on it
        raise RequestError(
            f"{' and '.join(capped)} could not grow beyond the example's {'×'.join(map(str, example.shape[2:]))}"
        )
    found = []
    for axis in AXES:
        size = example.shape[POSITION[axis]]
        # The tracer takes 0 and 1 for special and says 2 where it has not looked: a batch of one is tried as any other.
        least = 1 if axis == "batch" else int(bounds[axis].lower) if axis in bounds else size
        found.append(ExportAxis(name=axis, dynamic=axis in axes, size=size, minimum=least if axis in axes else size))
    return Program(program, tuple(found), symbols)


def _dynamic_shapes(model: nn.Module, axes: Sequence[Axis]) -> tuple[object, ...] | None:
    """The dynamic axes as `torch.export` takes them, one entry for each parameter of `forward`; None without any.

    A parameter that takes all positional arguments, as ``forward(self, *args)``, gets a tuple of them.
    """
    if not axes:
        return None
    dynamic = {POSITION[axis]: Dim.AUTO for axis in axes}
    first = next(iter(inspect.signature(model.forward).parameters.values()), None)
    collects = first is not None and first.kind is inspect.Parameter.VAR_POSITIONAL
    return ((dynamic,),) if collects else (dynamic,)


def output_tensors(program: ExportedProgram) -> list[tuple[KeyPath, str]]:
    """The path of each tensor in the output structure, and the tracer's name of it; other values are left out."""
    packed = program.call_spec.out_spec
    paths = [path for path, _ in tree_flatten_with_path(tree_unflatten(list(range(packed.num_leaves)), packed))[0]]
    outputs = [spec.arg for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    return [(path, arg.name) for path, arg in zip(paths, outputs, strict=True) if isinstance(arg, TensorArgument)]
