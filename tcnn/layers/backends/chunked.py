"""Chunked backend: attention computed in chunks of bounded memory, with a hand-written backward pass.

Queries are independent of each other, and so are images, so both can be cut into chunks. A chunk saves its content
attention and its mixed values for the backward pass while the memory budget lasts; those of the other chunks are
recomputed, which costs the product of queries and keys, and that of maps and values, once more. To autograd it is one
function (the passes are in `chunked_passes`).

Shapes: B batch, C channels, M queries, R' keys, K heads, d head width.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tcnn.layers.backends import chunked_passes, dense
from tcnn.layers.backends.chunked_passes import Gradients
from tcnn.layers.backends.chunks import ChunkPlan
from tcnn.layers.backends.dense import Heads
from tcnn.layers.terms.execution import (
    differentiable_gradients,
    differentiated_by_pytorch,
    needs_gradients,
    runs_eagerly,
    without_autocast,
)
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.products import Matrix, Packed


class _Passes(NamedTuple):
    """What is computed of heads and a projection, chunk by chunk."""

    forward: Callable[[Heads, Parameters, ChunkPlan, list[Tensor] | None], Tensor]
    """Output tokens, (B, M, C_out); what the backward pass is to be given is added to the list."""
    backward: Callable[[Heads, Parameters, ChunkPlan, tuple[Tensor, ...], Tensor], Gradients]
    """From what the forward pass has added, and the gradient of its tokens, contiguous."""


class _Rest(NamedTuple):
    """What needs no gradient."""

    sinks: int | None
    groups: int
    plan: ChunkPlan


def supported(heads: Heads, parameters: Parameters) -> bool:
    """Whether this backend can be used: its backward pass does not support function transforms of PyTorch.

    Nor does it know of positions that depend on content, for it sums over images what it cuts by queries.
    """
    proj = parameters.proj
    if heads.depend_on_content:
        return False
    if isinstance(proj, Packed):
        return runs_eagerly(*heads.tensors) and len(heads.value) > 0 and not needs_gradients(heads.tensors)
    return runs_eagerly(*heads.tensors, proj, parameters.bias) and len(heads.value) > 0


def attend(heads: Heads, parameters: Parameters, plan: ChunkPlan) -> Tensor:
    """Output tokens of attention over whole maps, (B, M, C_out); of content heads alone where there are no gates."""
    if parameters.gating_param is not None:
        passes = _Passes(chunked_passes.gated_forward, chunked_passes.gated_backward)
    else:
        passes = _Passes(chunked_passes.content_forward, chunked_passes.content_backward)
    proj, bias = _projection_for(heads, parameters)
    given = (*heads.tensors, proj, bias)
    with without_autocast(heads.value.device.type):
        if needs_gradients(given):
            tokens: Tensor = _Attention.apply(passes, _Rest(heads.sinks, parameters.groups, plan), *given)
            return tokens
        return passes.forward(heads, replace(parameters, proj=proj, bias=bias), plan, None)


def _projection_for(heads: Heads, parameters: Parameters) -> tuple[Matrix, Tensor | None]:
    """W_out and bias in the dtype of the values, as under autocast; a packed matrix stays packed in float32."""
    proj, bias, dtype = parameters.proj, parameters.bias, heads.value.dtype
    if isinstance(proj, Tensor) or dtype != torch.float32:
        proj = (proj if isinstance(proj, Tensor) else proj.weight).to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return proj, bias


class _Attention(torch.autograd.Function):
    """Chunked attention as an autograd function, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, rest: _Rest, *given: Any) -> Tensor:
        ctx.passes, ctx.rest = passes, rest
        activations: list[Tensor] = []
        tokens = passes.forward(*_unpack(given, rest), rest.plan, activations)
        ctx.save_for_backward(*given, *activations)
        ctx.count = len(given)
        return tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        given, activations, rest = saved[: ctx.count], saved[ctx.count :], ctx.rest
        with without_autocast(gradient.device.type):  # of whoever calls backward; the dtypes are the forward pass's
            if differentiated_by_pytorch(gradient):

                def plain(*places: Any) -> Tensor:
                    return dense.attend(*_unpack(places, rest))

                found = tuple(differentiable_gradients(plain, given, ctx.needs_input_grad[2:], gradient))
            else:
                found = ctx.passes.backward(*_unpack(given, rest), rest.plan, activations, gradient.contiguous())
        return None, None, *found


def _unpack(given: tuple[Any, ...], rest: _Rest) -> tuple[Heads, Parameters]:
    """Heads, and parameters of which only the projection is used."""
    *tensors, proj, bias = given
    heads = Heads(*tensors, rest.sinks)  # type: ignore[call-arg]
    count = heads.gate.shape[0]
    return heads, Parameters(proj, proj, None, proj, bias, None, None, None, None, count, rest.groups)
