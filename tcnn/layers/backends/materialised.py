"""Materialised backend: on a GPU, attention whose maps are in memory once, by few kernels (`triton.materialised`).

What a layer's inputs are to that operator, and whether there is memory for it. Shapes: B batch, C channels, h×w map,
H×W padded map, K heads.
"""

from math import prod

import torch
from torch import Tensor

from tcnn.layers.backends.chunks import SAVED_SHARE, memory_of
from tcnn.layers.backends.dense import queries_are_keys
from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import attention, positions
from tcnn.layers.terms.parameters import require, require_matrix
from tcnn.layers.triton import materialised
from tcnn.layers.triton.materialised import Inputs, Sizes

TENSORS = ("query", "key", "value", "proj", "bias", "gating_param", "query_key")
"""The parameters that it computes with, besides the factors of the positional attention."""


def supported(inputs: AttentionInputs) -> bool:
    """Whether the layer can be computed so: where its positional attention has two factors, and memory suffices."""
    p, columns = inputs.parameters, inputs.factors[1]
    if columns is None or p.gating_param is None or p.groups > 1 or require(p.gate_temperature).requires_grad:
        return False
    x = _cast(inputs.x)
    if not materialised.supported(x, _sizes(inputs), p.head_dim):
        return False
    return torch.compiler.is_compiling() or _fits(inputs, x)


def _fits(inputs: AttentionInputs, x: Tensor) -> bool:
    """Whether the maps may be kept for the backward pass; without one they may take an eighth of the memory."""
    p = inputs.parameters
    training = torch.is_grad_enabled() and (x.requires_grad or p.proj.requires_grad)  # type: ignore[union-attr]
    held = _held(inputs, x, 0 if training else x.shape[1])  # in training what is mixed can be computed again
    return held <= memory_of(x.device) // (SAVED_SHARE if training else 8)


def _held(inputs: AttentionInputs, x: Tensor, channels: int) -> int:
    return materialised.bytes_kept(len(x), channels, _sizes(inputs), x.element_size())


def attend(inputs: AttentionInputs) -> Tensor:
    """Output tokens of the attention, (B, M, C_out)."""
    x, geometry, _, (rows, columns), p = inputs
    x, sizes = _cast(x), _sizes(inputs)
    assert columns is not None  # noqa: S101 - see `supported`
    asking = None
    if not queries_are_keys(geometry):
        padded = positions.pad(x, geometry)
        asking = attention.to_tokens(positions.take_query_pixels(padded, geometry)).contiguous()
        x = x if positions.zero_padded(geometry) else padded
    query, key = (p.query_key, None) if asking is None and p.query_key is not None else (p.query, p.key)
    tensors = Inputs(
        attention.to_tokens(x).contiguous(), asking, require_matrix(query), key, p.value, rows, columns,  # type: ignore[arg-type]
        require(p.gating_param), require(p.gate_temperature), p.plain_proj, p.bias,
    )  # fmt: skip
    mixed = torch.compiler.is_compiling() or _held(inputs, x, x.shape[1]) <= memory_of(x.device) // SAVED_SHARE
    return materialised.attend(tensors, sizes, keep_mixed=mixed)


def _cast(x: Tensor) -> Tensor:
    """The map in the dtype of autocast, where that is active."""
    kind = x.device.type
    mixed = x.dtype == torch.float32 and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return x.to(torch.get_autocast_dtype(kind)) if mixed else x


def _sizes(inputs: AttentionInputs) -> Sizes:
    x, geometry, scope, _, p = inputs
    inner, padded = (x.shape[-2], x.shape[-1]), inputs.size
    together = queries_are_keys(geometry) and p.query_key is not None  # then they are scaled already
    scale = 1.0 if together else p.head_dim**-0.5
    asked = positions.output_size(padded, geometry)
    if not positions.zero_padded(geometry):
        return Sizes(p.heads, asked, padded, padded, (0, 0), 0, scale)
    sinks = prod(padded) - prod(inner) if scope.padding else 0
    return Sizes(p.heads, asked, inner, padded, positions.origin(inner, geometry), sinks, scale)
