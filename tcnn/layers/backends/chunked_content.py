"""Chunked backend for content heads (no positional chunk), with a hand-written backward pass.

As `chunked`, but nothing is added to the content attention: maps are head-major, as the softmax returns them, in the
dtype of the product of queries and keys, and used so in the next product.

Shapes: those of `chunked`.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tcnn.layers.backends import chunked, dense
from tcnn.layers.backends.chunks import Chunk, ChunkPlan, chunks_of
from tcnn.layers.backends.dense import Heads
from tcnn.layers.backends.maps import content_attention
from tcnn.layers.terms.execution import differentiable_gradients, without_autocast
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.products import batched


def attend(heads: Heads, parameters: Parameters, plan: ChunkPlan) -> Tensor:
    """Output tokens of content attention over whole maps, (B, M, C_out); rows, columns and gates are not used."""
    proj, bias = chunked.projection_for(heads, parameters)
    given = (heads.query, heads.key, heads.value, proj, bias)
    with without_autocast(heads.value.device.type):
        if chunked.needs_gradients(given):
            rest = heads.rows, heads.columns, heads.gate, heads.sinks, heads.gated
            tokens: Tensor = _Attention.apply(*given, rest, parameters.groups, plan)
            return tokens
        return _forward(heads, replace(parameters, proj=proj, bias=bias), plan, None)


class _Attention(torch.autograd.Function):
    """Chunked content attention as an autograd function."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        heads, parameters, plan = _unpack(given)
        activations: list[Tensor] = []
        tokens = _forward(heads, parameters, plan, activations)
        ctx.save_for_backward(*given[:5], *activations)
        ctx.rest = given[5:]
        return tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        heads, parameters, plan = _unpack((*saved[:5], *ctx.rest))
        with without_autocast(gradient.device.type):  # of whoever calls backward; the dtypes are the forward pass's
            if torch.is_grad_enabled():  # second derivatives: every step must be differentiable by PyTorch

                def plain(*places: Any) -> Tensor:
                    return dense.attend(*_unpack((*places, *ctx.rest))[:2])

                found = differentiable_gradients(plain, saved[:5], ctx.needs_input_grad[:5], gradient)
            else:
                found = list(_backward(heads, parameters, plan, saved[5:], gradient.contiguous()))
        return (*found, None, None, None)


def _unpack(given: tuple[Any, ...]) -> tuple[Heads, Parameters, ChunkPlan]:
    *tensors, proj, bias, rest, groups, plan = given
    heads = Heads(*tensors, *rest)
    return heads, chunked.projection_parameters(proj, bias, heads.gate.shape[0], groups), plan


def _forward(heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: list[Tensor] | None) -> Tensor:
    count = len(heads.gate)

    def attention(chunk: Chunk) -> tuple[Tensor, Tensor]:
        content = content_attention(heads, chunk)
        mixed = batched(content.flatten(1, 2), chunk.value)
        return content, _query_major(mixed, count)

    return chunked.forward_chunks(heads, parameters, plan, activations, lambda _: attention)


def _backward(
    heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, proj and bias, from that of the tokens (B, M, C_out)."""
    count, stored = len(heads.gate), iter(activations)
    inputs = chunked.InputGradients(heads, plan)
    proj: Tensor | None = None
    for chunk in (chunk for _, chunks in chunks_of(heads, plan) for chunk in chunks):
        content, mixed = next(stored, None), next(stored, None)
        content = content_attention(heads, chunk) if content is None else content
        maps = content.flatten(1, 2)  # (b, K·m, R')
        mixed = _query_major(batched(maps, chunk.value), count) if mixed is None else mixed
        grad_mixed, grad_proj = chunked.projection_gradients(gradient[chunk.images, chunk.queries], mixed, parameters)
        proj = grad_proj if proj is None else proj.add_(grad_proj)
        grad_mixed = _head_major(grad_mixed, count)
        inputs.add_value(chunk, maps, grad_mixed)
        grad_maps = batched(grad_mixed, chunk.value.transpose(1, 2)).view_as(content)
        del maps, mixed, grad_mixed
        logits = torch._softmax_backward_data(grad_maps, content, -1, content.dtype)  # (b, K, m, R')
        del grad_maps
        inputs.add_logits(chunk, logits.flatten(0, 1))
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return (*inputs.all, proj, bias)


def _query_major(mixed: Tensor, heads: int) -> Tensor:
    """Make mixed values query-major: (b, K·m, C) to (b, m·K, C), as the projection reads it."""
    return mixed.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1, 2)


def _head_major(mixed: Tensor, heads: int) -> Tensor:
    """Make mixed values head-major: (b, m·K, C) to (b, K·m, C)."""
    return mixed.unflatten(1, (-1, heads)).transpose(1, 2).flatten(1, 2)
