"""Recorded attention layers: queries, keys and positional factors after a forward pass, from which maps are computed.

Shapes: B images, K heads, d head width, H×W the layer's padded map, N keys = P prefix tokens + H·W, Ho×Wo queries,
M = Ho·Wo, q some of the queries.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tcnn.formatting import few
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.self_attention import SelfAttention2d
from tcnn.layers.terms import attention, positions, scopes
from tcnn.layers.terms.attention import AttentionMaps
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.positions import Factors, Geometry, Pair, Quad
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.scopes import GLOBAL, Scope

Kind = Literal["gpsa2d", "convit", "cordonnier", "attention"]
"""Kind of a layer: GPSA of tcnn, timm's GPSA of ConViT, self-attention of Cordonnier's network, or content attention
only (ViT, DeiT, the last ConViT layers).
"""


@dataclass(frozen=True)
class Grid:
    """Positions of keys and queries, in pixels of the layer's padded map."""

    size: Pair
    """Size (H, W) of the padded map."""
    padding: Quad
    """Padding (left, right, top, bottom) in pixels of the map."""
    first: Pair
    """Position (row, column) of the first query."""
    stride: Pair
    queries: Pair
    """Number of queries, (Ho, Wo)."""

    @property
    def inner(self) -> Pair:
        """Size (h, w) of the unpadded map."""
        left, right, top, bottom = self.padding
        return self.size[0] - top - bottom, self.size[1] - left - right

    def nearest(self, y: float, x: float) -> Pair:
        """The query (i, j) nearest to a position in the image, given in shares of its sides; of two the later one.

        A pixel is as far as its middle is: pixel p of the n in the image lies at the share (p + ½)/n. The attention
        explorer's page computes the same (`nearest` in maps.js).
        """
        left, right, top, bottom = self.padding
        found = []
        for axis, (share, before, after) in enumerate(((y, top, bottom), (x, left, right))):
            inside = self.size[axis] - before - after
            steps = (before + share * inside - 0.5 - self.first[axis]) / self.stride[axis]
            found.append(min(max(math.floor(steps + 0.5), 0), self.queries[axis] - 1))
        return found[0], found[1]

    def place(self, query: Pair) -> Pair:
        """Position (row, column) of the query (i, j)."""
        row, column = (f + s * q for f, s, q in zip(self.first, self.stride, query, strict=True))
        return row, column

    def places(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Rows and columns of queries with these row-major indices (q,), (q,) each."""
        rows = self.first[0] + self.stride[0] * (queries // self.queries[1])
        columns = self.first[1] + self.stride[1] * (queries % self.queries[1])
        return rows, columns

    def distances(self, queries: Tensor) -> Tensor:
        """Distance ‖δ‖ in pixels from queries, row-major indices (q,), to every pixel of the map, (q, H·W), float64."""
        rows, columns = self.places(queries)
        down, right = (torch.arange(n, dtype=torch.float64, device=queries.device) for n in self.size)
        return torch.hypot(
            (down[None] - rows[:, None])[:, :, None], (right[None] - columns[:, None])[:, None, :]
        ).flatten(1)


class Maps(NamedTuple):
    """Attention maps of some queries, with N = P + H·W keys; a layer without a positional part has only content."""

    content: Tensor
    """Content attention, (B, K, q, N)."""
    positional: Tensor | None
    """Positional attention, (K, q, N); (B, K, q, N) where it depends on the image."""
    total: Tensor
    """Attention weights (1 − gate)·content + gate·positional, (B, K, q, N)."""


@dataclass(frozen=True)
class RecordedLayer:
    """One attention layer with its queries and keys on some images."""

    name: str
    kind: Kind
    grid: Grid
    query: Tensor
    """Queries (B, K, M, d), of the map only."""
    key: Tensor
    """Keys (B, K, N, d)."""
    bias: Tensor | None = None
    """Added to the content logits, (…, M, N)."""
    factors: Factors | None = None
    """The positional attention: a row factor (K, Ho, H) and a column factor (K, Wo, W), or maps and None."""
    gate: Tensor | None = None
    """Gate (K,)."""
    strength: Tensor | None = None
    """Locality strength α/τ, (P,), of the first P ≤ K heads, which have a positional part, in 1/pixel²."""
    spans: Tensor | None = None
    """Attention span 1/α at τ = 1, (P,), in pixels²."""
    centres: Tensor | None = None
    """Attention centres Δ, (P, 2), (row, column), pixels; NaN where α is not above 0 and there is no centre."""
    precision: Tensor | None = None
    """Precision matrices of heads whose positional attention is a Gaussian of any shape, (P, 2, 2), in 1/pixel²."""
    temperature: float = 1.0
    """Temperature τ of the positional attention."""
    gate_temperature: float = 1.0
    """Temperature τ of the gates."""
    scope: Scope = GLOBAL
    """Scope of content attention."""
    geometry: Geometry | None = None
    """Geometry of the convolution that a layer of tcnn was; None for others."""

    @property
    def heads(self) -> int:
        """Number of heads K."""
        return self.query.shape[1]

    @property
    def gates(self) -> list[float | None] | None:
        """The gate of every head, None for content heads, which have none; None for a layer without positions."""
        if self.gate is None:
            return None
        positional = 0 if self.strength is None else len(self.strength)
        return [gate if head < positional else None for head, gate in enumerate(self.gate.tolist())]

    @property
    def prefix(self) -> int:
        """Number P of prefix keys without a position in the image: class, distillation and register tokens."""
        return self.key.shape[2] - self.grid.size[0] * self.grid.size[1]

    def cpu(self) -> "RecordedLayer":
        """A copy on the CPU, which computes in float64 where some devices do not."""
        moved: dict[str, Any] = {name: value.cpu() for name, value in vars(self).items() if isinstance(value, Tensor)}
        factors: Factors | None = None
        if self.factors is not None:
            rows, columns = self.factors
            factors = rows.cpu(), None if columns is None else columns.cpu()
        return replace(self, factors=factors, **moved)

    def maps(self, queries: Tensor) -> Maps:
        """Attention maps of the queries with these row-major indices, (q,); every row sums to 1."""
        query = self.query[:, :, queries]
        if self.bias is None:
            grid = self.grid
            left, _, top, _ = grid.padding
            content = scopes.content(
                self.scope, query, self.key, grid.size, grid.inner, (top, left), *grid.places(queries)
            )
        else:
            logits = (query * query.shape[-1] ** -0.5) @ self.key.transpose(-1, -2)
            content = torch.softmax(at_least_float32(logits + self.bias[..., queries, :]), dim=-1)
        if self.factors is None or self.gate is None:
            return Maps(content, None, content)
        rows, columns = self.factors
        i, j = queries // self.grid.queries[1], queries % self.grid.queries[1]
        if columns is None:
            positional = rows[..., i, j, :, :].flatten(-2)
        else:
            positional = (rows[:, i, :, None] * columns[:, j, None, :]).flatten(2)
        return Maps(content, positional, AttentionMaps(content, positional, self.gate).total)


@dataclass
class Recording:
    """What is recorded of the attention layers of a model while it runs."""

    layers: dict[str, RecordedLayer] = field(default_factory=dict)
    """By dotted name, in the order in which they run; later passes of the same layer as `name (2)`, `name (3)`."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Layers with attention of which no map can be told, by the reason."""
    _passes: Counter[str] = field(default_factory=Counter)

    def keep(self, layer: RecordedLayer) -> None:
        """Keep a pass of a layer; each has a map of its own, maybe of another size."""
        self._passes[layer.name] += 1
        number = self._passes[layer.name]
        name = layer.name if number == 1 else f"{layer.name} ({number})"
        self.layers[name] = replace(layer, name=name)

    def leave_out(self, name: str, reason: str) -> None:
        """Note that a layer is not kept, once however often it runs."""
        names = self.left_out.setdefault(reason, [])
        if name not in names:
            names.append(name)

    @property
    def notes(self) -> list[str]:
        """What is left out and why, in lines."""
        return [f"left out: {few(names)}, as {reason}" for reason, names in self.left_out.items()]


def record_gpsa2d(name: str, layer: GPSA2d, x: Tensor) -> RecordedLayer:
    """Record a tcnn layer on its input (B, C_in, h, w), by the functions of its forward pass."""
    geometry = layer.geometry
    padded = positions.pad(x, geometry)
    factors = layer.positional_factors((padded.shape[-2], padded.shape[-1]), x)
    grid = Grid(
        size=(padded.shape[-2], padded.shape[-1]),
        padding=positions.padding_of(x.shape[-2:], geometry),
        first=geometry.centre,
        stride=geometry.stride,
        queries=positions.output_size(padded.shape[-2:], geometry),
    )
    query = attention.split_heads(
        attention.to_tokens(positions.take_query_pixels(padded, geometry)), layer.query, layer.heads
    )
    key = attention.split_heads(attention.to_tokens(padded), layer.key, layer.heads)
    term = layer.positional_term
    return RecordedLayer(
        name,
        "gpsa2d",
        grid,
        query,
        key,
        factors=factors,
        gate=layer.gate,
        strength=layer.strength,
        spans=1 / layer.locality_strength,
        centres=layer.head_centres,
        precision=term.precision if isinstance(term, Quadratic) else None,
        temperature=layer.position_temperature.item(),
        gate_temperature=layer.gate_temperature.item(),
        scope=layer.scope,
        geometry=geometry,
    )


def record_self_attention(name: str, layer: SelfAttention2d, x: Tensor) -> RecordedLayer:
    """Record a layer of Cordonnier's network on its input (B, H, W, C), by the functions of its forward pass.

    Without content it is positions alone: its gate is 1, and queries and keys are zeros. With content both logits are
    under one softmax, so that neither has a map of its own.
    """
    size = x.shape[1], x.shape[2]
    grid = Grid(size=size, padding=(0, 0, 0, 0), first=(0, 0), stride=(1, 1), queries=size)
    if layer.content:
        query, key, positional = layer.logit_parts(x)
        return RecordedLayer(name, "cordonnier", grid, query, key, bias=positional)
    nothing = x.new_zeros(len(x), layer.heads, size[0] * size[1], 1)
    strength, centres = layer.summary()
    term = layer.term
    return RecordedLayer(
        name,
        "cordonnier",
        grid,
        nothing,
        nothing,
        factors=layer.positional_factors(size),
        gate=x.new_ones(layer.heads),
        strength=strength,
        spans=1 / strength,
        centres=centres,
        precision=term.precision if isinstance(term, Quadratic) else None,
    )
