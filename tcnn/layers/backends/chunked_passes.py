"""Forward and backward passes of the chunked backend: of gated attention, and of content heads alone.

To the maps of content heads nothing is added: they are head-major, as the softmax returns them, in the dtype of the
product of queries and keys, and used so in the next product.

Shapes: B batch, C channels, R' keys, Ho×Wo output map, M = Ho·Wo queries, K heads, d head width; b images of a chunk, m
queries of a chunk.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tcnn.layers.backends import dense
from tcnn.layers.backends.chunks import Chunk, ChunkPlan, chunks_of
from tcnn.layers.backends.dense import Heads
from tcnn.layers.backends.maps import content_attention, maps_for
from tcnn.layers.terms.parameters import Parameters
from tcnn.layers.terms.products import batched, batched_into, linear

AttentionOf = Callable[[Heads], Callable[[Chunk], tuple[Tensor, Tensor]]]

Gradients = tuple[Tensor | None, ...]
"""Of `Heads.tensors`, W_out and bias, in this order."""


def gated_forward(heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: list[Tensor] | None) -> Tensor:
    """Output tokens of gated attention, (B, M, C_out)."""
    share, maps = 1 - heads.gate, maps_for(heads)

    def attention_of(some: Heads) -> Callable[[Chunk], tuple[Tensor, Tensor]]:
        gated = dense.gated_positional(some).contiguous()

        def attention(chunk: Chunk) -> tuple[Tensor, Tensor]:
            kept = maps.kept(chunk)
            return kept, batched(maps.maps(kept, gated, share, chunk.value.dtype), chunk.value)

        return attention

    return _forward_chunks(heads, parameters, plan, activations, attention_of)


def gated_backward(
    heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: tuple[Tensor, ...], gradient: Tensor
) -> Gradients:
    """All gradients, from that of the tokens (B, M, C_out)."""
    share, stored, maps_from = 1 - heads.gate, iter(activations), maps_for(heads)
    inputs = _InputGradients(heads, plan)
    grad_rows: list[Tensor] = []
    columns: Tensor | None = None
    gate, proj = columns, columns
    for some, chunks in chunks_of(heads, plan):
        gated, grad_gated = dense.gated_positional(some).contiguous(), None
        for chunk in chunks:
            kept, mixed = next(stored, None), next(stored, None)
            kept = maps_from.kept(chunk) if kept is None else kept
            maps = maps_from.maps(kept, gated, share, chunk.value.dtype)
            mixed = batched(maps, chunk.value) if mixed is None else mixed
            grad_mixed, grad_proj = _projection_gradients(gradient[chunk.images, chunk.queries], mixed, parameters)
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
        assert grad_gated is not None  # noqa: S101 - there is one chunk at least
        some_rows, some_columns, some_gate = dense.gated_positional_gradients(some, grad_gated)
        grad_rows.append(some_rows)
        gate = _accumulate(gate, some_gate)
        columns = None if some_columns is None else _accumulate(columns, some_columns)
    rows = grad_rows[0] if len(grad_rows) == 1 else torch.cat(grad_rows, dim=1)
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return (*inputs.all, rows, columns, gate, proj, bias)


def content_forward(heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: list[Tensor] | None) -> Tensor:
    """Output tokens of content heads, (B, M, C_out)."""
    count = len(heads.gate)

    def attention(chunk: Chunk) -> tuple[Tensor, Tensor]:
        content = content_attention(heads, chunk)
        mixed = batched(content.flatten(1, 2), chunk.value)
        return content, _query_major(mixed, count)

    return _forward_chunks(heads, parameters, plan, activations, lambda _: attention)


def content_backward(
    heads: Heads, parameters: Parameters, plan: ChunkPlan, activations: tuple[Tensor, ...], gradient: Tensor
) -> Gradients:
    """All gradients, from that of the tokens (B, M, C_out); of rows, columns and gates there are none."""
    count, stored = len(heads.gate), iter(activations)
    inputs = _InputGradients(heads, plan)
    proj: Tensor | None = None
    for chunk in (chunk for _, chunks in chunks_of(heads, plan) for chunk in chunks):
        content, mixed = next(stored, None), next(stored, None)
        content = content_attention(heads, chunk) if content is None else content
        maps = content.flatten(1, 2)  # (b, K·m, R')
        mixed = _query_major(batched(maps, chunk.value), count) if mixed is None else mixed
        grad_mixed, grad_proj = _projection_gradients(gradient[chunk.images, chunk.queries], mixed, parameters)
        proj = _accumulate(proj, grad_proj)
        grad_mixed = _head_major(grad_mixed, count)
        inputs.add_value(chunk, maps, grad_mixed)
        grad_maps = batched(grad_mixed, chunk.value.transpose(1, 2)).view_as(content)
        del maps, mixed, grad_mixed
        logits = torch._softmax_backward_data(grad_maps, content, -1, content.dtype)  # (b, K, m, R')
        del grad_maps
        inputs.add_logits(chunk, logits.flatten(0, 1))
    bias = None if parameters.bias is None else gradient.sum((0, 1))
    return (*inputs.all, None, None, None, proj, bias)


def _forward_chunks(
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


class _InputGradients:
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


def _accumulate(total: Tensor | None, more: Tensor) -> Tensor:
    """Add to a running sum in place; None is 0."""
    return more if total is None else total.add_(more)


def _projection_gradients(gradient: Tensor, mixed: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
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


def _query_major(mixed: Tensor, heads: int) -> Tensor:
    """Make mixed values query-major: (b, K·m, C) to (b, m·K, C), as the projection reads it."""
    return mixed.unflatten(1, (heads, -1)).transpose(1, 2).flatten(1, 2)


def _head_major(mixed: Tensor, heads: int) -> Tensor:
    """Make mixed values head-major: (b, m·K, C) to (b, K·m, C)."""
    return mixed.unflatten(1, (-1, heads)).transpose(1, 2).flatten(1, 2)
