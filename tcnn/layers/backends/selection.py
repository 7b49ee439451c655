"""Select the backend that computes the layer. All are exact: the same output and the same gradients, to rounding.

reference   every map as the formula is written, with the padding
dense       all maps at once, without the padding, differentiated by autograd (`dense.py`)
fused       no map is saved: on a GPU one kernel over the keys where available, elsewhere chunks of bounded memory
            whose maps are recomputed in the backward pass (`chunked.py`)
auto        the default: a convolution while the layer is in the hard limit (`convolution.py`); else on a GPU, in 16
            bits, whole maps by few kernels (`materialised.py`), elsewhere chunks that save for the backward pass what
            the memory allows

The environment variable `TCNN_ATTENTION` forces one, `use_backend` does for a while. Inspecting attention, and
verifying that it equals a convolution, depend on neither. Windowed or pooled content attention has one backend besides
the reference (`scoped.py`). On a GPU `attend` takes what is fastest there.

Shapes: B batch, C channels, M queries.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from tcnn.errors import RequestError
from tcnn.layers.backends import autotune, chunked, chunks, dense, materialised
from tcnn.layers.backends.dense import Heads
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import kinds
from tcnn.layers.terms.isotropic import Isotropic
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.scopes import Scope
from tcnn.layers.triton import attention as triton_attention

Backend = Literal["auto", "reference", "dense", "fused"]
BACKENDS: tuple[Backend, ...] = ("auto", "reference", "dense", "fused")

_forced: ContextVar[Backend | None] = ContextVar("backend", default=None)
_forcing: list[Backend] = []
"""What contexts of any thread force, the last one last: what a compiler reads, which before torch 2.12 could not read a
context variable."""
_changing = threading.Lock()


def backend() -> Backend:
    """The selected backend; raises `RequestError` if `TCNN_ATTENTION` names an unknown one."""
    if not _forcing:
        return _from_environment()
    return (_forcing[-1] if torch.compiler.is_compiling() else _forced.get()) or _from_environment()


@contextmanager
def use_backend(wanted: Backend) -> Iterator[None]:
    """Context that forces a backend in this thread or task."""
    token = _forced.set(wanted)
    with _changing:
        _forcing.append(wanted)
    try:
        yield
    finally:
        with _changing:
            _forcing.remove(wanted)
        _forced.reset(token)


def _from_environment() -> Backend:
    wanted = os.environ.get("TCNN_ATTENTION", "auto")
    for known in BACKENDS:
        if wanted == known:
            return known
    raise RequestError(f"TCNN_ATTENTION: expected one of {', '.join(BACKENDS)}, found {wanted!r}")


InputsOf = Callable[[Tensor, Parameters], tuple[AttentionInputs, Tensor | None]]
"""What backends compute from, of a map and parameters, and `dense.gated_positional` where it was prepared."""


def attend(
    x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope, backend: Backend, inputs: InputsOf
) -> Tensor:
    """Output tokens (B, M, C_out) of attention over a whole map (B, C_in, h, w), by `dense`, `fused` or `auto`."""
    if backend == "auto" and materialised.supported(x, parameters, geometry, scope):
        return _attend_materialised(x, parameters, geometry, scope, inputs)
    return _attend_heads(dense.compute_heads(*inputs(x, parameters)), parameters, backend)


def _attend_materialised(
    x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope, inputs: InputsOf
) -> Tensor:
    """The same with maps in memory by few kernels, or in chunks if that is faster here."""
    if torch.compiler.is_compiling():
        return materialised.attend(x, parameters, geometry, scope)
    tensors = _tensors(parameters)
    own = list(tensors.values())

    def of(given: Sequence[Tensor]) -> Parameters:
        if given[0] is own[0]:
            return parameters
        others = dict(zip(tensors, given, strict=True))
        position = Isotropic(*(others.pop(name) for name in kinds.NAMES["isotropic"]))
        return replace(parameters, position=position, **others)  # type: ignore[arg-type]

    def in_chunks(x: Tensor, *given: Tensor) -> Tensor:
        heads = dense.compute_heads(*inputs(x, of(given)))
        if not chunked.supported(heads, of(given)):
            return dense.attend(heads, of(given))
        return chunked.attend(heads, of(given), chunks.plan_for(heads))

    def by_few_kernels(x: Tensor, *given: Tensor) -> Tensor:
        return materialised.attend(x, of(given), geometry, scope)

    implementations: dict[str, autotune.Implementation] = {"in chunks": in_chunks, "materialised": by_few_kernels}
    return implementations[autotune.fastest(implementations, (x, *own))](x, *own)


def _tensors(parameters: Parameters) -> dict[str, Tensor]:
    """All parameters but the temperatures by name, those of the positions too."""
    named = vars(parameters) | (vars(parameters.position) if parameters.position else {})
    return {name: one for name, one in named.items() if isinstance(one, Tensor) and "temperature" not in name}


def _attend_heads(heads: Heads, parameters: Parameters, backend: Backend) -> Tensor:
    """The same from heads, by the backend `dense`, `fused` or `auto`."""
    if backend == "dense" or not chunked.supported(heads, parameters):
        return dense.attend(heads, parameters)
    plan = chunks.plan_for(heads)
    if backend == "fused":
        plan = plan._replace(saved=0)

    # Zeros after the map are keys of no kernel, and what is drawn in the tensors' place has none.
    keys, values = heads.key, heads.value
    if heads.sinks is not None:
        keys, values = keys[:, :, : heads.pixels], values[:, : heads.pixels]

    def in_chunks(query: Tensor, key: Tensor, value: Tensor, *others: Tensor) -> Tensor:
        if query is heads.query:
            return chunked.attend(heads, parameters, plan)
        zeros = (0, 0, 0, heads.key.shape[2] - key.shape[2])
        drawn = heads.with_tensors(query, pad(key, zeros), pad(value, zeros), *others)
        return chunked.attend(replace(drawn, gated=None), parameters, plan)

    def by_kernel(query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor) -> Tensor:
        mixed = triton_attention.attend(query, key, value, rows, columns, gate, heads.sinks, 1.0)
        return dense.project(mixed, parameters)

    # The kernel multiplies two factors; where positions have none they are computed in chunks.
    if heads.columns is None or not triton_attention.supported(heads.query, heads.value):
        return chunked.attend(heads, parameters, plan)
    tensors = (heads.query, keys, values, heads.rows, heads.columns, heads.gate)
    implementations: dict[str, autotune.Implementation] = {"in chunks": in_chunks, "by kernel": by_kernel}
    name = "by kernel" if backend == "fused" else autotune.fastest(implementations, tensors)
    return implementations[name](*tensors)
