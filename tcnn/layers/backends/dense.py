"""The attention without its padding, in two matrix products over all maps at once.

Zero padding has no bias behind it, so a padded pixel's value is 0 and its content logit is 0: it needs no row in any
product. A few keys of zeros behind the others, the sinks, stand for all of them: to their logits the logarithm of how
many each stands for is added; in the positional attention their columns are dropped after normalisation. Exact, not an
approximation. There are as many as bring the keys to a multiple of 8, for which matrix products are up to half as fast
again.

Shapes: B batch, C channels, h×w map without padding, R = h·w its pixels, R' = R and the sinks, if there are any, Ho×Wo
output map, M = Ho·Wo queries, K heads, d head width, G groups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms import attention, positions
from tcnn.layers.terms.eager import is_transformed
from tcnn.layers.terms.parameters import Parameters, at_least_float32, needed_matrix
from tcnn.layers.terms.positions import Geometry
from tcnn.layers.terms.products import linear


class Heads(NamedTuple):
    """What meets in the attention."""

    query: Tensor
    """Q/√d, (B, K, M, d)."""
    key: Tensor
    """(B, K, R', d)."""
    value: Tensor
    """X W_val, (B, R', C_in)."""
    rows: Tensor
    """Of the positional attention, (K, Ho, h)."""
    columns: Tensor
    """(K, Wo, w)."""
    gate: Tensor
    """(K,)."""
    sinks: int | None
    """How many pixels of the padding the sinks stand for, 0 if they are no keys; None where there is no padding."""
    placed: Tensor | None = None
    """`place` of these heads, where it was prepared."""

    @property
    def pixels(self) -> int:
        """R."""
        return self.rows.shape[2] * self.columns.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What gradients can be asked for."""
        return self[:6]

    def with_tensors(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor, gate: Tensor
    ) -> "Heads":
        """The same with other `tensors`."""
        return self._replace(query=query, key=key, value=value, rows=rows, columns=columns, gate=gate)


def heads_of(
    x: Tensor,
    padded: Tensor,
    geometry: Geometry,
    factors: tuple[Tensor, Tensor],
    parameters: Parameters,
    placed: Tensor | None = None,
    padding: bool = True,
) -> Heads:
    """Queries, keys and values of a map.

    Args:
        x: (B, C_in, h, w). padded: the same after `positions.pad`.
        factors: of `positions.positional_attention` on the padded map, (K, Ho, H) and (K, Wo, W).
        padding: whether zeros around the map are among the keys.
    """
    p = parameters
    rows, columns = inside(factors, x.shape[-2:], geometry)
    zeros = positions.zero_padded(geometry)
    # In order once, (B, R', C_in), and not again in each of the products.
    tokens, sinks = attention.tokens(padded).contiguous(), None
    if zeros:
        tokens = F.pad(attention.tokens(x), (0, 0, 0, sinks_beside(x.shape[-2] * x.shape[-1])))
        sinks = padded.shape[-2] * padded.shape[-1] - x.shape[-2] * x.shape[-1] if padding else 0
    scale = p.head_dim**-0.5
    if asks_every_pixel(geometry):
        both = both_of(p) if p.query_key is None else p.query_key
        query, key = linear(tokens, both).unflatten(2, (2, p.heads, -1)).permute(2, 0, 3, 1, 4)  # (2, B, K, R', d)
        query = query[:, :, : x.shape[-2] * x.shape[-1]]
    else:
        asking = attention.tokens(positions.at_queries(padded, geometry))
        query = attention.split(asking, needed_matrix(p.query), p.heads) * scale
        key = attention.split(tokens, needed_matrix(p.key), p.heads)
    value = tokens.to(query.dtype) if p.value is None else linear(tokens, p.value)
    return Heads(query, key, value, rows, columns, p.gate, sinks, placed)


def asks_every_pixel(geometry: Geometry) -> bool:
    """Whether queries and keys come from the same pixels, so that one product gives both."""
    return geometry.asks_everywhere and positions.zero_padded(geometry)


def both_of(parameters: Parameters) -> Tensor:
    """W_qry/√d above W_key, (2·K·d, C_in)."""
    query, key = parameters.query, parameters.key
    assert isinstance(query, Tensor) and isinstance(key, Tensor)  # noqa: S101 - packed matrices are put together before
    return torch.cat((query * parameters.head_dim**-0.5, key))


def attend(heads: Heads, parameters: Parameters) -> Tensor:
    """The output tokens of whole maps, (B, M, C_out)."""
    content = content_attention(heads.query, heads.key, heads.sinks, heads.key.shape[2] - heads.pixels)
    placed = place(heads)
    # Queries outside, heads inside: then what the heads bring together lies as the projection reads it.
    maps = torch.addcmul(placed, (1 - heads.gate)[:, None], content.transpose(1, 2))  # (B, M, K, R')
    mixed = torch.bmm(maps.to(heads.value.dtype).flatten(1, 2), heads.value)
    return project(mixed.unflatten(1, (-1, heads.gate.shape[0])), parameters)


def place(heads: Heads) -> Tensor:
    """gate_h · P_h, (M, K, R'), at least float32."""
    if heads.placed is not None:
        return heads.placed
    placed = (heads.gate[:, None, None] * attention.outer(heads.rows, heads.columns)).transpose(0, 1)
    return placed if heads.sinks is None else F.pad(placed, (0, sinks_beside(heads.pixels)))


def sinks_beside(pixels: int) -> int:
    """How many keys of zeros stand behind so many others; one where a tracer would have to follow the sum."""
    return 1 if is_transformed() else 8 - pixels % 8


def project(mixed: Tensor, parameters: Parameters) -> Tensor:
    """What the heads bring together, (B, M, K, C_in), to the output tokens, (B, M, C_out)."""
    if parameters.groups == 1:
        return linear(mixed.flatten(2), parameters.proj, parameters.bias)
    return attention.project(mixed.transpose(1, 2), parameters.proj, parameters.bias, parameters.groups)


def content_attention(query: Tensor, key: Tensor, sinks: int | None, last: int = 1) -> Tensor:
    """softmax_k(Q Kᵀ), where the `last` keys stand for `sinks`: (B, K, M, d), (B, K, R', d) to (B, K, M, R').

    At least float32.
    """
    logits = at_least_float32(query @ key.transpose(-1, -2))
    if sinks is not None:
        many = (logits.new_full((last,), sinks) / last).log()  # of no sinks at all: −∞, which is nothing
        logits = logits + torch.cat((many.new_zeros(key.shape[2] - last), many))
    return torch.softmax(logits, dim=-1)


def inside(factors: tuple[Tensor, Tensor], size: Sequence[int], geometry: Geometry) -> tuple[Tensor, Tensor]:
    """The factors over the pixels that are computed: those of zeros around a map of `size` (h, w) are left out."""
    rows, columns = factors
    if not positions.zero_padded(geometry):
        return rows, columns
    top, left = positions.origin(size, geometry)
    return rows[..., top : top + size[0]], columns[..., left : left + size[1]]
