"""Chunked backend: attention computed in chunks of bounded memory, with a hand-written backward pass.

Queries are independent of each other, and so are images, so both can be cut into chunks. A chunk saves its content
attention and its mixed values for the backward pass while the memory budget lasts; those of the other chunks are
recomputed, which costs the product of queries and keys, and that of maps and values, once more.

Shapes: B batch, C channels, R' keys, Ho×Wo output map, M = Ho·Wo queries, K heads, d head width; b images of a chunk, m
queries of a chunk.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tcnn.layers.backends import dense
from tcnn.layers.backends.chunks import Chunk, ChunkPlan, chunks_of
from tcnn.layers.backends.dense import Heads
from tcnn.layers.backends.maps import maps_for
from tcnn.layers.terms.execution import differentiable_gradients, runs_eagerly, without_autocast
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.products import Matrix, Packed, batched, batched_into, linear

AttentionOf = Callable[[Heads], Callable[[Chunk], tuple[Tensor, Tensor]]]


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


def needs_gradients(tensors: Iterable[object]) -> bool:
    """Whether autograd will ask for the gradient of one of these."""
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def attend(heads: Heads, parameters: Parameters, plan: ChunkPlan) -> Tensor:
    """Output tokens of attention over whole maps, (B, M, C_out)."""
    proj, bias = projection_for(heads, parameters)
    given = (*heads.tensors, proj, bias)
    with without_autocast(heads.value.device.type):
        if needs_gradients(given):
            tokens: Tensor = _Attention.apply(*given, heads.sinks, parameters.groups, plan)
            return tokens
        return _forward(heads, replace(parameters, proj=proj, bias=bias), plan, None)


def projection_for(heads: Heads, parameters: Parameters) -> tuple[Matrix, Tensor | None]:
    """W_out and bias in the dtype of the values, as under autocast; a packed matrix stays packed in float32."""
    proj, bias, dtype = parameters.proj, parameters.bias, heads.value.dtype
    if isinstance(proj, Tensor) or dtype != torch.float32:
        proj = (proj if isinstance(proj, Tensor) else proj.plain()).to(dtype)
        bias = None if bias is None else bias.to(dtype)
    return proj, bias


class _Attention(torch.autograd.Function):
    """Chunked attention as an autograd function."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        ctx.heads, ctx.parameters, ctx.plan = _unpack(given)
        activations: list[Tensor] = []
        tokens = _forward(ctx.heads, ctx.parameters, ctx.plan, activations)
        ctx.save_for_backward(*given[:8], *activations)
        ctx.rest = given[8:]
        del ctx.heads, ctx.parameters
        return tokens

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved = gradients, ctx.saved_tensors  # read once: checkpointing unpacks what is read
        given, activations = saved[:8], saved[8:]
        heads, parameters, plan = _unpack((*given, *ctx.rest))
        with without_autocast(gradient.device.type):  # of whoever calls backward; the dtypes are the forward pass's
            if torch.is_grad_enabled():  # second derivatives: every step must be differentiable by PyTorch

                def plain(*places: Any) -> Tensor:
                    return dense.attend(*_unpack((*places, *ctx.rest))[:2])

                found = differentiable_gradients(plain, given, ctx.needs_input_grad[: len(given)], gradient)
            else:
                found = list(_backward(heads, parameters, plan, activations, gradient.contiguous()))
        return (*found, None, None, None)


def _unpack(given: tuple[Any, ...]) -> tuple[Heads, Parameters, ChunkPlan]:
    *tensors, proj, bias, sinks, groups, plan = given
    heads = Heads(*tensors, sinks)  # type: ignore[call-arg]
    return heads, projection_parameters(proj, bias, heads.gate.shape[0], groups), plan


def projection_parameters(proj: Matrix, bias: Tensor | None, heads: int, groups: int) -> Parameters:
    """`Parameters` of which only the projection is used."""
    return Parameters(proj, proj, None, proj, bias, None, None, None, None, heads, groups)


def forward_chunks(
    heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: list[Tensor] | None, attention_of: AttentionOf
) -> Tensor:
    """Forward pass over all chunks: output tokens, (B, M, C_out).

    Args:
        activations: receives what is kept and the mixed values of the chunks that fit into `plan.saved` bytes.
        attention_of: called with the heads restricted to some query rows; returns a function that maps a chunk of these
            rows to what is kept of its content attention, (b, K, m, R'), and its mixed values, (b, m·K, C_in).
    """
    left = plan.saved
    batch, count, queries, _ = heads.query.shape
    tokens = None if plan.covers(heads) else heads.value.new_empty(batch, queries, parameters.proj.shape[0])
    for some, chunks in chunks_of(heads, plan):
        attention = attention_of(some)
        for chunk in chunks:
            content, mixed = attention(chunk)
            projected = dense.project(mixed.unflatten(1, (-1, count)), parameters)
            if tokens is None:
                tokens = projected
            else:
                tokens[chunk.images, chunk.queries] = projected
            left -= content.nbytes + mixed.nbytes
            if activations is not None and left >= 0:
                activations += content, mixed
    assert tokens is not None  # noqa: S101 - there is one chunk at least
    return tokens


def _forward(heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: list[Tensor] | None) -> Tensor:
    share, maps = 1 - heads.gate, maps_for(heads)

    def attention_of(some: Heads) -> Callable[[Chunk], tuple[Tensor, Tensor]]:
        gated = dense.gated_positional(some).contiguous()

        def attention(chunk: Chunk) -> tuple[Tensor, Tensor]:
            kept = maps.kept(chunk)
            return kept, batched(maps.maps(kept, gated, share, chunk.value.dtype), chunk.value)

        return attention

    return forward_chunks(heads, parameters, plan, activations, attention_of)


class InputGradients:
    """Gradients of queries, keys and values over the chunks of a backward pass, each product written where it belongs.

    Where a chunk has all queries of its images nothing is written twice, and nothing need be zero before. Room is made
    when it is first needed, beside fewer maps.
    """

    def __init__(self, heads: Heads, plan: ChunkPlan) -> None:
        self._once = plan.query_rows >= heads.query_rows
        self._like = {"query": heads.query, "key": heads.key, "value": heads.value}
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            make = torch.empty_like if self._once else torch.zeros_like
            self._made[name] = make(self._like[name], memory_format=torch.contiguous_format)
        return self._made[name]

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of queries, keys and values."""
        return self["query"], self["key"], self["value"]

    def add_value(self, chunk: Chunk, maps: Tensor, mixed: Tensor) -> None:
        """Add a chunk's: its maps, (b, m·K, R') or head-major, and the gradient of its mixed values in this order."""
        self._add(self["value"][chunk.images], maps.transpose(1, 2), mixed)

    def add_logits(self, chunk: Chunk, logits: Tensor) -> None:
        """Add a chunk's, from the gradient of its content logits, (b·K, m, R')."""
        query = self["query"][chunk.images, :, chunk.queries]
        if self._once:
            batched_into(query.flatten(0, 1), logits, chunk.key, add=False)
        else:
            query.copy_(batched(logits, chunk.key).view_as(query))
        self._add(self["key"][chunk.images].flatten(0, 1), logits.transpose(1, 2), chunk.query)

    def _add(self, total: Tensor, one: Tensor, other: Tensor) -> None:
        batched_into(total, one, other, add=not self._once)


def _backward(
    heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: tuple[Tensor, ...], gradient: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, rows, columns, gate, proj and bias, from that of the tokens (B, M, C_out)."""
    share, stored, maps_from = 1 - heads.gate, iter(activations), maps_for(heads)
    inputs = InputGradients(heads, plan)
    grad_rows: list[Tensor] = []
    columns: Tensor | None = None
    gate, proj = columns, columns
    for some, chunks in chunks_of(heads, plan):
        leaves = [t.detach().requires_grad_() for t in (some.rows, some.gate, some.columns) if t is not None]
        with torch.enable_grad():
            parts = replace(some, rows=leaves[0], gate=leaves[1], columns=leaves[2] if len(leaves) > 2 else None)
            graph = dense.gated_positional(parts).contiguous()
        gated, grad_gated = graph.detach(), None
        for chunk in chunks:
            kept, mixed = next(stored, None), next(stored, None)
            kept = maps_from.kept(chunk) if kept is None else kept
            maps = maps_from.maps(kept, gated, share, chunk.value.dtype)
            mixed = batched(maps, chunk.value) if mixed is None else mixed
            grad_mixed, grad_proj = projection_gradients(gradient[chunk.images, chunk.queries], mixed, parameters)
            proj = _accumulate(proj, grad_proj)
            grad_maps = batched(grad_mixed, chunk.value.transpose(1, 2))
            grad_maps = grad_maps.unflatten(1, (-1, len(share)))  # (b, m, K, R')
            inputs.add_value(chunk, maps, grad_mixed)
            del maps, mixed, grad_mixed
            grad_gated = _accumulate(grad_gated, grad_maps.sum(0, dtype=gated.dtype))
            logits, sums = maps_from.gradients(kept, share, grad_maps)
            del grad_maps
            gate = _accumulate(gate, sums.sum((0, 2)).neg_())
            inputs.add_logits(chunk, logits)
        some_rows, some_gate, *some_columns = torch.autograd.grad(graph, leaves, grad_gated)
        grad_rows.append(some_rows)
        gate = _accumulate(gate, some_gate)
        columns = _accumulate(columns, some_columns[0]) if some_columns else None
    rows = grad_rows[0] if len(grad_rows) == 1 else torch.cat(grad_rows, dim=1)
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return (*inputs.all, rows, columns, gate, proj, bias)


def _accumulate(total: Tensor | None, more: Tensor) -> Tensor:
    """Add to a running sum in place; None is 0."""
    return more if total is None else total.add_(more)


def projection_gradients(gradient: Tensor, mixed: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Backward pass of the output projection: gradients of `mixed`, (b, m·K, C_in), and of W_out.

    `gradient` is that of the tokens, (b, m, C_out).
    """
    proj, groups = parameters.plain_proj, parameters.groups
    if groups == 1:
        flat, seen = gradient.flatten(0, 1), mixed.view(-1, proj.shape[1])
        return linear(flat, proj.t()).view_as(mixed), linear(flat.t(), seen.t())
    grouped = gradient.unflatten(2, (groups, -1))  # (b, m, g, o)
    weight = proj.unflatten(0, (groups, -1)).unflatten(2, (parameters.heads, -1))  # (g, o, K, c)
    seen = mixed.unflatten(1, (-1, parameters.heads)).unflatten(3, (groups, -1))  # (b, m, K, g, c)
    grad_mixed = torch.einsum("bmgo,gokc->bmkgc", grouped, weight).reshape(mixed.shape)
    return grad_mixed, torch.einsum("bmgo,bmkgc->gokc", grouped, seen).reshape(proj.shape)
