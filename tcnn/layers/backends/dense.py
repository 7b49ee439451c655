"""Dense backend: attention without its padding, in two matrix products over all maps at once.

Zero padding has no bias, so the value of a padding pixel is 0 and its content logit is 0: it needs no row in any
product. A few keys of zeros after the others, the sinks, represent all of them: the logarithm of how many pixels
each represents is added to their logits; in the positional attention their columns are dropped after normalisation.
Exact, not an approximation. Their number brings the keys to a multiple of 8, for which matrix products are up to half
as fast again.

Shapes: B batch, C channels, h×w map without padding, R = h·w its pixels, R' = R and the sinks, if there are any, Ho×Wo
output map, M = Ho·Wo queries, K heads, d head width, G groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.backends.reference import AttentionInputs
from tcnn.layers.terms import attention, positions
from tcnn.layers.terms.execution import as_multiplied, at_least_float32, is_exporting, is_transformed
from tcnn.layers.terms.parameters import Parameters, require_matrix
from tcnn.layers.terms.positions import Factors, Geometry
from tcnn.layers.terms.products import batched, linear


@dataclass(frozen=True, eq=False)
class Heads:
    """Queries, keys, values, positional factors and gates of all heads."""

    query: Tensor
    """Q/√d, (B, K, M, d)."""
    key: Tensor
    """K, (B, K, R', d)."""
    value: Tensor
    """X W_val, (B, R', C_in)."""
    rows: Tensor
    """Row factor of the positional attention, (K, Ho, h); or all of it, ([B,] K, Ho, Wo, h, w), where it has none."""
    columns: Tensor | None
    """Column factor of the positional attention, (K, Wo, w)."""
    gate: Tensor
    """Gate σ(λ/τ), (K,)."""
    sinks: int | None
    """How many padding pixels the sinks represent, 0 if these are no keys; None without padding."""
    gated: Tensor | None = None
    """`gated_positional` of these heads, where it was precomputed."""

    @property
    def pixels(self) -> int:
        """Number of pixels of the unpadded map, R."""
        return self.rows.shape[-1] * (self.rows.shape[-2] if self.columns is None else self.columns.shape[-1])

    @property
    def query_rows(self) -> int:
        """Number of rows of the output map, Ho."""
        return self.rows.shape[-4] if self.columns is None else self.rows.shape[1]

    @property
    def query_columns(self) -> int:
        """Number of columns of the output map, Wo."""
        return self.rows.shape[-3] if self.columns is None else self.columns.shape[1]

    @property
    def depend_on_content(self) -> bool:
        """Whether the positional attention is another for every image."""
        return self.rows.dim() > 5

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that can need gradients."""
        return self.query, self.key, self.value, self.rows, self.columns, self.gate

    def with_tensors(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, columns: Tensor | None, gate: Tensor
    ) -> "Heads":
        """A copy with other `tensors`."""
        return replace(self, query=query, key=key, value=value, rows=rows, columns=columns, gate=gate)


def compute_heads(inputs: AttentionInputs, gated: Tensor | None = None) -> Heads:
    """Compute queries, keys and values of a feature map.

    Args:
        inputs: of the scope only `padding` is used: whether zeros around the map are among the keys.
        gated: `gated_positional` of these heads, where it was precomputed.
    """
    x, geometry, scope, factors, p = inputs.x, inputs.geometry, inputs.scope, inputs.factors, inputs.parameters
    rows, columns = crop_factors(factors, x.shape[-2:], geometry)
    pixels = x.shape[-2] * x.shape[-1]
    padded, sinks = None if queries_are_keys(geometry) else inputs.padded, None
    x = as_multiplied(x)
    # In order once, (B, R', C_in), and not again in each of the products.
    if positions.zero_padded(geometry):
        height, width = inputs.size
        sink_keys = x.new_zeros(x.shape[0], sink_count(pixels), x.shape[1])
        tokens = torch.cat((attention.to_tokens(x), sink_keys), dim=1)
        sinks = height * width - pixels if scope.padding else 0
    else:
        assert padded is not None  # noqa: S101 - without zeros queries are not taken for keys
        tokens = attention.to_tokens(padded).contiguous()
    scale = p.head_dim**-0.5
    if padded is None:
        both = stack_query_key(p) if p.query_key is None else p.query_key
        stacked = linear(tokens, both).unflatten(2, (2, p.heads, -1)).permute(2, 0, 3, 1, 4)  # (2, B, K, R', d)
        query, key = stacked.contiguous()  # once, and not in the products of every pass
        query = query[:, :, :pixels]
    else:
        query_tokens = attention.to_tokens(positions.take_query_pixels(padded, geometry))
        query = attention.split_heads(query_tokens, require_matrix(p.query), p.heads) * scale
        key = attention.split_heads(tokens, require_matrix(p.key), p.heads)
    value = tokens.to(query.dtype) if p.value is None else linear(tokens, p.value)
    return Heads(query, key, value, rows, columns, p.gate, sinks, gated)


def queries_are_keys(geometry: Geometry) -> bool:
    """Whether queries and keys are the same pixels, so that one matrix product computes both."""
    return geometry.queries_every_pixel and positions.zero_padded(geometry)


def stack_query_key(parameters: Parameters) -> Tensor:
    """W_qry/√d stacked on W_key, (2·K·d, C_in)."""
    query, key = parameters.query, parameters.key
    assert isinstance(query, Tensor) and isinstance(key, Tensor)  # noqa: S101 - packed matrices are put together before
    return torch.cat((query * parameters.head_dim**-0.5, key))


def attend(heads: Heads, parameters: Parameters) -> Tensor:
    """Output tokens of attention over whole maps, (B, M, C_out)."""
    content = content_attention(heads.query, heads.key, heads.sinks, heads.key.shape[2] - heads.pixels)
    gated = gated_positional(heads)
    # Queries outside, heads inside: the mixed values then have the memory order that the projection reads.
    maps = torch.addcmul(gated, (1 - heads.gate)[:, None], content.transpose(1, 2))  # (B, M, K, R')
    mixed = batched(maps.to(heads.value.dtype).flatten(1, 2), heads.value)
    return project(mixed.unflatten(1, (-1, heads.gate.shape[0])), parameters)


def gated_positional(heads: Heads) -> Tensor:
    """Positional attention times its gate, gate_h · P_h, ([B,] M, K, R'), at least float32."""
    if heads.gated is not None:
        return heads.gated
    if is_exporting() and heads.columns is not None:
        gated = _query_major_product(heads.gate[:, None, None] * heads.rows, heads.columns)
    else:
        positional = attention.positional_map((heads.rows, heads.columns))
        gated = (heads.gate[:, None, None] * positional).transpose(-3, -2)
    return gated if heads.sinks is None else F.pad(gated, (0, sink_count(heads.pixels)))


def gated_positional_gradients(heads: Heads, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of row factor, column factor and gate from that of `gated_positional`, (M, K, R').

    With the pairs (output row, row) down and (output column, column) across, a head's gated positional attention is a
    matrix of rank one, gate_h · rows_h columns_hᵀ: each factor's gradient is the matrix's times the other factor.
    """
    count, gate = len(heads.gate), heads.gate
    gradient = gradient[..., : heads.pixels]
    if heads.columns is None:
        whole = gradient.transpose(0, 1).reshape(heads.rows.shape)
        return gate[:, None, None, None, None] * whole, None, (whole * heads.rows).sum((1, 2, 3, 4))
    (_, down, height), (_, across, width) = heads.rows.shape, heads.columns.shape
    matrix = gradient.reshape(down, across, count, height, width).permute(2, 0, 3, 1, 4)
    matrix = matrix.reshape(count, down * height, across * width)
    rows, columns = heads.rows.reshape(count, -1, 1), heads.columns.reshape(count, -1, 1)
    of_rows, of_columns = matrix @ columns, matrix.transpose(1, 2) @ rows
    of_gate, gate = (of_rows * rows).sum((1, 2)), gate[:, None, None]
    return (gate * of_rows).view_as(heads.rows), (gate * of_columns).view_as(heads.columns), of_gate


def _query_major_product(rows: Tensor, columns: Tensor) -> Tensor:
    """`attention.outer_product` with queries before heads: (K, Ho, h) and (K, Wo, w) to (M, K, R).

    For programs that take maps of any size: the tracer orders the axes of a product by the strides of its factors, and
    of Ho·h it cannot always say that it is more than h. With the heads inside there is no such stride, and stacked they
    are no view of which it would have to say whether it is contiguous.
    """
    down, across = (torch.stack(factor.unbind(), dim=1) for factor in (rows, columns))
    return (down[:, None, :, :, None] * across[:, :, None, :]).flatten(0, 1).flatten(2)


def sink_count(pixels: int) -> int:
    """Number of sinks (keys of zeros) for so many pixels; 1 under a tracer, which would have to follow the sum."""
    return 1 if is_transformed() else 8 - pixels % 8


def project(mixed: Tensor, parameters: Parameters) -> Tensor:
    """Output projection of the mixed values, (B, M, K, C_in), to tokens, (B, M, C_out)."""
    if parameters.groups == 1:
        return linear(mixed.flatten(2), parameters.proj, parameters.bias)
    return attention.project(mixed.transpose(1, 2), parameters.proj, parameters.bias, parameters.groups)


def content_attention(query: Tensor, key: Tensor, sinks: int | None, last: int = 1) -> Tensor:
    """Content attention weights softmax_k(Q Kᵀ): (B, K, M, d), (B, K, R', d) to (B, K, M, R'), at least float32.

    The `last` keys represent `sinks` padding pixels.
    """
    logits = at_least_float32(query @ key.transpose(-1, -2))
    if sinks is not None:
        logarithm = (logits.new_full((last,), sinks) / last).log()  # of no sinks at all: −∞, which is nothing
        logits = logits + torch.cat((logarithm.new_zeros(key.shape[2] - last), logarithm))
    return torch.softmax(logits, dim=-1)


def crop_factors(factors: Factors, size: Sequence[int], geometry: Geometry) -> Factors:
    """Crop the positional factors to the computed pixels: zero padding around a map of `size` (h, w) is dropped."""
    rows, columns = factors
    if not positions.zero_padded(geometry):
        return rows, columns
    top, left = positions.origin(size, geometry)
    if is_exporting() and geometry.padding == "dynamic":
        # The ends of slices are more sizes, of which a program for all of them would have to prove that they fit.
        down, across = (first + torch.arange(n, device=rows.device) for first, n in zip((top, left), size, strict=True))
        if columns is None:
            return rows.index_select(-2, down).index_select(-1, across), None
        return rows.index_select(-1, down), columns.index_select(-1, across)
    if columns is None:
        return rows[..., top : top + size[0], left : left + size[1]], None
    return rows[..., top : top + size[0]], columns[..., left : left + size[1]]
