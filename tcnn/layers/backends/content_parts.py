"""Heads that have no positional part, in parts of bounded memory, differentiated by hand.

As `parts`, but nothing is added to the content attention: maps lie heads outside, as the softmax leaves them, and go
into the next product so.

Shapes: those of `parts`.
"""

from typing import Any

import torch
from torch import Tensor

from tcnn.layers.backends import dense, parts
from tcnn.layers.backends.dense import Heads
from tcnn.layers.backends.parts import Plan
from tcnn.layers.terms.parameters import Parameters, at_least_float32


def attend(heads: Heads, parameters: Parameters, plan: Plan) -> Tensor:
    """The output tokens of whole maps, (B, M, C_out); rows, columns and gates of the heads are not looked at."""
    proj, bias = parts.projection_for(heads, parameters)
    given = (*heads[:3], proj, bias)
    with parts.without_autocast(heads.value.device.type):
        if parts.needs_gradients(given):
            tokens: Tensor = _Attention.apply(*given, heads[3:], parameters.groups, plan)
            return tokens
        return _forward(heads, parameters._replace(proj=proj, bias=bias), plan, None)


class _Attention(torch.autograd.Function):
    """`_forward` and its gradients."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        heads, parameters, plan = _read(given)
        kept: list[Tensor] = []
        tokens = _forward(heads, parameters, plan, kept)
        ctx.save_for_backward(*given[:5], *kept)
        ctx.rest = given[5:]
        return tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        heads, parameters, plan = _read((*saved[:5], *ctx.rest))
        if torch.is_grad_enabled():  # somebody differentiates the gradients: every step must be PyTorch's own
            return (*parts.differentiable_gradients(heads, parameters, saved[:5], ctx.needs_input_grad, gradient),
                    None, None, None)  # fmt: skip
        return (*_backward(heads, parameters, plan, saved[5:], gradient.contiguous()), None, None, None)


def _read(given: tuple[Any, ...]) -> tuple[Heads, Parameters, Plan]:
    *tensors, proj, bias, rest, groups, plan = given
    heads = Heads(*tensors, *rest)
    return heads, parts.projection_alone(proj, bias, heads.gate.shape[0], groups), plan


def _forward(heads: Heads, parameters: Parameters, plan: Plan, kept: list[Tensor] | None) -> Tensor:
    count, left = len(heads.gate), plan.kept
    batch, _, queries, _ = heads.query.shape
    whole = plan.images >= batch and plan.lines >= heads.rows.shape[1]
    tokens = None if whole else heads.value.new_empty(batch, queries, parameters.proj.shape[0])
    for _, some in parts.parts_of(heads, plan):
        for part in some:
            content = parts.content_of(part, heads)
            mixed = _inside(torch.bmm(content.flatten(1, 2).to(part.value.dtype), part.value), count)
            seen = dense.project(mixed.unflatten(1, (-1, count)), parameters)
            if tokens is None:
                tokens = seen
            else:
                tokens[part.images, part.queries] = seen
            left -= content.nbytes + mixed.nbytes
            if kept is not None and left >= 0:
                kept += content, mixed
    assert tokens is not None  # noqa: S101 - there is one part at least
    return tokens


def _backward(
    heads: Heads, parameters: Parameters, plan: Plan, kept: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, proj and bias, from that of the tokens (B, M, C_out)."""
    count, saved = len(heads.gate), iter(kept)
    whole = plan.images >= len(heads.value) and plan.lines >= heads.rows.shape[1]
    query, key, value = heads[:3]
    if not whole:
        query, key, value = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in heads[:3])
    proj: Tensor | None = None
    for _, some in parts.parts_of(heads, plan):
        for part in some:
            content, mixed = next(saved, None), next(saved, None)
            content = parts.content_of(part, heads) if content is None else content
            maps = content.flatten(1, 2).to(part.value.dtype)  # (b, K·m, R')
            mixed = _inside(torch.bmm(maps, part.value), count) if mixed is None else mixed
            of_mixed, of_proj = parts.through_projection(gradient[part.images, part.queries], mixed, parameters)
            proj = of_proj if proj is None else proj.add_(of_proj)
            of_mixed = _outside(of_mixed, count)
            of_value = torch.bmm(maps.transpose(1, 2), of_mixed)
            of_maps = at_least_float32(torch.bmm(of_mixed, part.value.transpose(1, 2))).view_as(content)
            del maps, mixed, of_mixed
            logits = torch._softmax_backward_data(of_maps, content, -1, content.dtype)  # (b, K, m, R')
            del of_maps
            logits = logits.flatten(0, 1).to(part.query.dtype)
            of_query = torch.bmm(logits, part.key).unflatten(0, (-1, count))
            of_key = torch.bmm(logits.transpose(1, 2), part.query).unflatten(0, (-1, count))
            if whole:
                query, key, value = of_query, of_key, of_value
            else:
                query[part.images, :, part.queries] = of_query
                key[part.images] += of_key
                value[part.images] += of_value
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return query, key, value, proj, bias


def _inside(mixed: Tensor, heads: int) -> Tensor:
    """(b, K·m, C) to (b, m·K, C), as the projection reads it."""
    return mixed.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1, 2)


def _outside(mixed: Tensor, heads: int) -> Tensor:
    """(b, m·K, C) to (b, K·m, C)."""
    return mixed.unflatten(1, (-1, heads)).transpose(1, 2).flatten(1, 2)
