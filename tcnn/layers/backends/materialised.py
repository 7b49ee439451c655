"""Materialised backend: on a GPU, attention whose maps are in memory once, by few kernels (`triton.materialised`).

Which layers it computes, whether there is memory for it, and what their inputs are to it. Shapes: B batch, C channels,
h×w map, H×W padded map, K heads.
"""

from math import prod

import torch
from torch import Tensor

from tcnn.layers.backends.chunks import SAVED_SHARE, total_memory
from tcnn.layers.backends.dense import queries_are_keys
from tcnn.layers.terms import attention, kinds, positions
from tcnn.layers.terms.execution import is_eager, needs_gradients
from tcnn.layers.terms.isotropic import Isotropic
from tcnn.layers.terms.parameters import Parameters, require, require_matrix
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.scopes import Scope
from tcnn.layers.triton import custom_operator, materialised
from tcnn.layers.triton.attention import DTYPES, MAX_HEAD_DIM, plain_autograd, runs_on
from tcnn.layers.triton.materialised_inputs import Inputs, Sizes, bytes_kept

HALF = (torch.float16, torch.bfloat16)
MAX_SIDE = 1024
"""Longest side of a padded map: a kernel holds it in registers."""


def supported(x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope) -> bool:
    """Whether `attend` supports such inputs here: 16 bits on a GPU with Triton, any in its interpreter.

    A compiler is not asked of sizes, so that one graph serves all.
    """
    p, kind = parameters, x.device.type
    if not isinstance(p.position, Isotropic) or p.groups > 1 or p.head_dim % 8 or not 0 < p.head_dim <= MAX_HEAD_DIM:
        return False
    if require(p.gate_temperature).requires_grad or require(p.position_temperature).requires_grad:
        return False
    if not runs_on(x.device) or _dtype(x) not in (DTYPES if kind == "cpu" else HALF) or not plain_autograd():
        return False
    if torch.compiler.is_compiling():
        return True
    if not is_eager(x, p.proj) or not len(x):  # type: ignore[arg-type]
        return False
    sizes = _sizes(x, parameters, geometry, scope)
    return prod(sizes.query) > 0 and max(sizes.padded) <= MAX_SIDE and _fits(x, parameters, sizes)


def _fits(x: Tensor, p: Parameters, sizes: Sizes) -> bool:
    """Whether the maps may be kept for the backward pass; without one they may take an eighth of the memory."""
    training = needs_gradients((x, *vars(p).values(), *kinds.tensors_of(p.position)))
    held = _held(x, sizes, 0 if training else x.shape[1])  # in training what is mixed can be computed again
    return held <= total_memory(x.device) // (SAVED_SHARE if training else 8)


def _held(x: Tensor, sizes: Sizes, channels: int) -> int:
    return bytes_kept(len(x), channels, sizes, _dtype(x).itemsize)


def attend(x: Tensor, parameters: Parameters, geometry: Geometry, scope: Scope) -> Tensor:
    """Output tokens of the attention, (B, M, C_out)."""
    p, compiling = parameters, torch.compiler.is_compiling()
    x, sizes, asking = x.to(_dtype(x)), _sizes(x, parameters, geometry, scope), None
    if not queries_are_keys(geometry):
        padded = positions.pad(x, geometry)
        asking = attention.to_tokens(positions.take_query_pixels(padded, geometry)).contiguous()
        x = x if positions.zero_padded(geometry) else padded
    query, key = (p.query_key, None) if asking is None and p.query_key is not None else (p.query, p.key)
    assert isinstance(p.position, Isotropic)  # noqa: S101 - see `supported`
    inputs = Inputs(
        attention.to_tokens(x), asking, require_matrix(query), key, p.value,  # type: ignore[arg-type]
        require(p.gating_param), require(p.gate_temperature), *p.position.tensors,
        require(p.position_temperature), p.plain_proj, p.bias,
    )  # fmt: skip
    if compiling:
        return custom_operator.attend(inputs, sizes)
    return materialised.attend(
        inputs, sizes, keep_mixed=_held(x, sizes, x.shape[1]) <= total_memory(x.device) // SAVED_SHARE
    )


def _dtype(x: Tensor) -> torch.dtype:
    """Of the map, on a processor or a GPU, or of autocast where that is active."""
    kind = x.device.type  # of another one autocast could not be asked, and a compiler could not ask whether it can be
    mixed = x.dtype == torch.float32 and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if mixed else x.dtype


def _sizes(x: Tensor, p: Parameters, geometry: Geometry, scope: Scope) -> Sizes:
    inner = x.shape[-2], x.shape[-1]
    padded = positions.padded_size(inner, geometry)
    together = queries_are_keys(geometry) and p.query_key is not None  # then they are scaled already
    scale = 1.0 if together else p.head_dim**-0.5
    asked, grid = positions.output_size(padded, geometry), (geometry.centre, geometry.stride)
    if not positions.zero_padded(geometry):
        return Sizes(p.heads, asked, padded, padded, (0, 0), *grid, 0, scale)
    sinks = prod(padded) - prod(inner) if scope.padding else 0
    return Sizes(p.heads, asked, inner, padded, positions.origin(inner, geometry), *grid, sinks, scale)
