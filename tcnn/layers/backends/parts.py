"""The attention in parts of bounded memory, differentiated by hand.

Queries do not depend on each other, nor do images, so both can be cut into parts. For the gradients a part keeps its
content attention and what its heads bring together, while the memory set aside for that lasts; the other parts' are
computed again, which costs the product of queries and keys, and that of maps and values, once more.

Shapes: B batch, C channels, R' keys, Ho×Wo output map, M = Ho·Wo queries, K heads, d head width; b images of a part, m
queries of a part.
"""

import math
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tcnn.layers.backends import dense
from tcnn.layers.backends.dense import Heads
from tcnn.layers.terms.eager import is_eager
from tcnn.layers.terms.parameters import Parameters, at_least_float32
from tcnn.layers.terms.products import Matrix, Packed, linear

CPU_PART = 2**23
"""Elements of the largest tensor of a part on a CPU: 32 MiB in float32. What is larger the C library takes from the
system anew every time, at a quarter of a millisecond a MiB."""
MOST_PARTS = 3
"""Parts into which a batch is cut for speed alone: every one costs some twenty operator calls."""


class Plan(NamedTuple):
    """How a batch is cut."""

    images: int
    """Of one part."""
    lines: int
    """Rows of the output map of one part."""
    kept: int
    """Bytes that may be kept for the gradients."""


def plan_for(heads: Heads) -> Plan:
    """How to cut a batch: it follows the device and its memory, never what is free, so that a run can be repeated."""
    images, _, _, _ = heads.query.shape
    lines, width = heads.rows.shape[1], heads.columns.shape[1]
    line = heads.gate.shape[0] * width * max(heads.key.shape[2], heads.value.shape[2])  # elements of the largest tensor
    memory = memory_of(heads.value.device)
    kept = memory // 256
    if heads.value.device.type == "cpu":
        if lines * line > CPU_PART // 2:
            return Plan(1, max(1, CPU_PART // 4 // line), kept)
        return Plan(max(CPU_PART // (lines * line), math.ceil(images / MOST_PARTS)), lines, kept)
    # Five tensors of this size are alive at once, which may take half of the memory: every part costs launches.
    most = memory // 2 // 5 // heads.value.element_size()
    if lines * line > most:
        return Plan(1, max(1, most // line), kept)
    return Plan(max(1, most // (lines * line)), lines, kept)


def memory_of(device: torch.device) -> int:
    """Bytes that a device has in all; 16 GiB where that is not known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device.type == "cpu" and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 16 * 2**30


def supported(heads: Heads, parameters: Parameters) -> bool:
    """Whether this backend may be used: its gradients are its own, which transforms of PyTorch do not know."""
    proj = parameters.proj
    if isinstance(proj, Packed):
        return is_eager(*heads.tensors) and len(heads.value) > 0 and not needs_gradients(heads.tensors)
    return is_eager(*heads.tensors, proj, parameters.bias) and len(heads.value) > 0


def needs_gradients(tensors: Iterable[object]) -> bool:
    """Whether autograd will ask for the gradient of one of these."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def attend(heads: Heads, parameters: Parameters, plan: Plan) -> Tensor:
    """The output tokens of whole maps, (B, M, C_out)."""
    proj, bias = projection_for(heads, parameters)
    given = (*heads.tensors, proj, bias)
    with without_autocast(heads.value.device.type):
        if needs_gradients(given):
            tokens: Tensor = _Attention.apply(*given, heads.sinks, parameters.groups, plan)
            return tokens
        return _forward(heads, parameters._replace(proj=proj, bias=bias), plan, None)


def projection_for(heads: Heads, parameters: Parameters) -> tuple[Matrix, Tensor | None]:
    """W_out and bias in the dtype of the values, as autocast would have it; a packed matrix stays one in float32."""
    proj, bias, dtype = parameters.proj, parameters.bias, heads.value.dtype
    if isinstance(proj, Tensor) or dtype != torch.float32:
        proj = (proj if isinstance(proj, Tensor) else proj.plain()).to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return proj, bias


def without_autocast(device: str) -> AbstractContextManager[object]:
    """Everything has the dtype that it is to have."""
    available = torch.amp.autocast_mode.is_autocast_available(device)
    return torch.autocast(device, enabled=False) if available else nullcontext()


class _Attention(torch.autograd.Function):
    """`_forward` and its gradients."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        ctx.heads, ctx.parameters, ctx.plan = _read(given)
        kept: list[Tensor] = []
        tokens = _forward(ctx.heads, ctx.parameters, ctx.plan, kept)
        ctx.save_for_backward(*given[:8], *kept)
        ctx.rest = given[8:]
        del ctx.heads, ctx.parameters
        return tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved = (
            gradients,
            ctx.saved_tensors,
        )  # read once: checkpointing unpacks what is read
        given, kept = saved[:8], saved[8:]
        heads, parameters, plan = _read((*given, *ctx.rest))
        if torch.is_grad_enabled():  # somebody differentiates the gradients: every step must be PyTorch's own
            found = differentiable_gradients(heads, parameters, given, ctx.needs_input_grad, gradient)
            return (*found, None, None, None)
        return (*_backward(heads, parameters, plan, kept, gradient.contiguous()), None, None, None)


def differentiable_gradients(
    heads: Heads, parameters: Parameters, given: tuple[Tensor, ...], wanted: tuple[bool, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of the `given` tensors that are wanted, by autograd through `dense.attend`."""
    wanted = wanted[: len(given)]
    leaves = [tensor for tensor, one in zip(given, wanted, strict=True) if one]
    tokens = dense.attend(heads, parameters)
    found = iter(torch.autograd.grad(tokens, leaves, gradient, create_graph=True, allow_unused=True))
    return tuple(next(found) if one else None for one in wanted)


def _read(given: tuple[Any, ...]) -> tuple[Heads, Parameters, Plan]:
    *tensors, proj, bias, sinks, groups, plan = given
    heads = Heads(*tensors, sinks)  # type: ignore[call-arg]
    return heads, projection_alone(proj, bias, heads.gate.shape[0], groups), plan


def projection_alone(proj: Matrix, bias: Tensor | None, heads: int, groups: int) -> Parameters:
    """Parameters of which only the projection is used."""
    return Parameters(proj, proj, None, proj, bias, None, None, None, None, None, heads, groups)


class Part(NamedTuple):
    """Some queries of some images."""

    images: slice
    queries: slice
    query: Tensor
    """(b·K, m, d)."""
    key: Tensor
    """(b·K, R', d)."""
    value: Tensor
    """(b, R', C)."""


def parts_of(heads: Heads, plan: Plan) -> Iterator[tuple[Heads, list[Part]]]:
    """Row by row of parts: the heads with the rows of these queries only, and the parts that share them."""
    width = heads.columns.shape[1]
    images = [slice(i, i + plan.images) for i in range(0, len(heads.value), plan.images)]
    for line in range(0, heads.rows.shape[1], plan.lines):
        rows = heads.rows[:, line : line + plan.lines]
        queries = slice(line * width, (line + rows.shape[1]) * width)
        yield (
            heads if images and plan.lines >= heads.rows.shape[1] else heads._replace(rows=rows, placed=None),
            [
                Part(
                    some, queries, heads.query[some, :, queries].flatten(0, 1), heads.key[some].flatten(0, 1),
                    heads.value[some],
                )
                for some in images
            ],
        )  # fmt: skip


def _forward(heads: Heads, parameters: Parameters, plan: Plan, kept: list[Tensor] | None) -> Tensor:
    share, left = (1 - heads.gate)[:, None], plan.kept
    batch, _, queries, _ = heads.query.shape
    whole = plan.images >= batch and plan.lines >= heads.rows.shape[1]
    tokens = None if whole else heads.value.new_empty(batch, queries, parameters.proj.shape[0])
    for some, parts in parts_of(heads, plan):
        placed = dense.place(some).contiguous()
        for part in parts:
            content = content_of(part, heads)
            mixed = torch.bmm(_maps(content, placed, share, part), part.value)
            seen = dense.project(mixed.unflatten(1, (-1, len(share))), parameters)
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
    """Gradients of query, key, value, rows, columns, gate, proj and bias, from that of the tokens (B, M, C_out)."""
    share, saved = (1 - heads.gate)[:, None], iter(kept)
    whole = plan.images >= len(heads.value) and plan.lines >= heads.rows.shape[1]
    query, key, value = heads[:3]
    if not whole:
        query, key, value = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in heads[:3])
    of_rows: list[Tensor] = []
    columns: Tensor | None = None
    gate, proj = columns, columns
    for some, parts in parts_of(heads, plan):
        leaves = [t.detach().requires_grad_() for t in (some.rows, some.columns, some.gate)]
        with torch.enable_grad():
            place = dense.place(some._replace(rows=leaves[0], columns=leaves[1], gate=leaves[2])).contiguous()
        placed, moved = place.detach(), None
        for part in parts:
            content, mixed = next(saved, None), next(saved, None)
            content = content_of(part, heads) if content is None else content
            maps = _maps(content, placed, share, part)
            mixed = torch.bmm(maps, part.value) if mixed is None else mixed
            of_mixed, of_proj = through_projection(gradient[part.images, part.queries], mixed, parameters)
            proj = _added(proj, of_proj)
            of_maps = torch.bmm(of_mixed, part.value.transpose(1, 2)).unflatten(1, (-1, len(share)))  # (b, m, K, R')
            of_value = torch.bmm(maps.transpose(1, 2), of_mixed)
            del maps, mixed, of_mixed
            of_maps = at_least_float32(of_maps)
            moved = _added(moved, of_maps.sum(0))
            # The softmax's own gradient: content · (of_maps − Σ content · of_maps), times the share of content.
            logits = of_maps.transpose(1, 2).mul(content)  # (b, K, m, R')
            del of_maps
            sums = logits.sum(-1, keepdim=True)
            gate = _added(gate, sums.sum((0, 2, 3)).neg_())
            logits.addcmul_(content, sums, value=-1).mul_(share[:, :, None])
            logits = logits.flatten(0, 1).to(part.query.dtype)
            of_query = torch.bmm(logits, part.key).unflatten(0, (-1, len(share)))
            of_key = torch.bmm(logits.transpose(1, 2), part.query).unflatten(0, (-1, len(share)))
            if whole:
                query, key, value = of_query, of_key, of_value
            else:
                query[part.images, :, part.queries] = of_query
                key[part.images] += of_key
                value[part.images] += of_value
        some_rows, some_columns, some_gate = torch.autograd.grad(place, leaves, moved)
        of_rows.append(some_rows)
        columns, gate = _added(columns, some_columns), _added(gate, some_gate)
    rows = of_rows[0] if len(of_rows) == 1 else torch.cat(of_rows, dim=1)
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return query, key, value, rows, columns, gate, proj, bias


def _added(total: Tensor | None, more: Tensor) -> Tensor:
    """The sum so far and one more."""
    return more if total is None else total.add_(more)


def content_of(part: Part, heads: Heads) -> Tensor:
    """Of `dense.content_attention`, (b, K, m, R')."""
    logits = at_least_float32(torch.bmm(part.query, part.key.transpose(1, 2)))
    if heads.sinks is not None:
        last = part.key.shape[1] - heads.pixels
        logits[..., -last:].fill_(math.log(heads.sinks / last) if heads.sinks else -math.inf)
    return torch.softmax(logits, dim=-1).unflatten(0, (-1, heads.gate.shape[0]))


def _maps(content: Tensor, placed: Tensor, share: Tensor, part: Part) -> Tensor:
    """A_h, queries outside and heads inside, (b, m·K, R'), in the dtype of the values."""
    maps = content.new_empty(content.shape[0], *placed.shape)
    torch.addcmul(placed, share, content.transpose(1, 2), out=maps)
    return maps.flatten(1, 2).to(part.value.dtype)


def through_projection(gradient: Tensor, mixed: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Gradients of `mixed`, (b, m·K, C_in), and of W_out, from that of the tokens, (b, m, C_out)."""
    proj, groups = parameters.plain_proj, parameters.groups
    if groups == 1:
        flat, seen = gradient.flatten(0, 1), mixed.view(-1, proj.shape[1])
        return linear(flat, proj.t()).view_as(mixed), linear(flat.t(), seen.t())
    grouped = gradient.unflatten(2, (groups, -1))  # (b, m, g, o)
    weight = proj.unflatten(0, (groups, -1)).unflatten(2, (parameters.heads, -1))  # (g, o, K, c)
    seen = mixed.unflatten(1, (-1, parameters.heads)).unflatten(3, (groups, -1))  # (b, m, K, g, c)
    of_mixed = torch.einsum("bmgo,gokc->bmkgc", grouped, weight).reshape(mixed.shape)
    return of_mixed, torch.einsum("bmgo,bmkgc->gokc", grouped, seen).reshape(proj.shape)
