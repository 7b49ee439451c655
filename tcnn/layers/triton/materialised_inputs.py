"""What materialised attention computes from, and what it keeps: tensors of a layer, sizes of its maps.

Shapes: B images, C channels, h×w keys, R = h·w, Ho×Wo queries, M = Ho·Wo, H×W padded map, K heads, P of them with a
positional part, d head width. A row of a map takes R' numbers, R rounded up to a multiple of 16.
"""

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.triton.tiles import Size

Optional = Tensor | None


class Sizes(NamedTuple):
    """Everything about the maps that tensors do not say."""

    heads: int
    """K."""
    query: Size
    """Ho×Wo."""
    key: Size
    """h×w."""
    padded: Size
    """H×W, over which positional attention is normalised."""
    origin: Size
    """Where on the padded map the keys begin, (top, left)."""
    first: Size
    """Where on it the first query is."""
    stride: Size
    """From a query to the next."""
    sinks: int
    """Number of further keys whose logit and value are 0."""
    scale: float
    """Of the logits."""

    @property
    def pitch(self) -> int:
        """Numbers that a row of a map takes, R'."""
        return -(-prod(self.key) // 16) * 16


class Position(NamedTuple):
    """Parameters of gates and isotropic positional attention."""

    gating: Tensor
    """λ, (P,)."""
    gate_temperature: Tensor
    """τ of the gates, ()."""
    raws: Tensor
    """softplus⁻¹ of the strengths, (P,)."""
    centres: Tensor
    """(P, 2), contiguous."""
    temperature: Tensor
    """τ of the positional attention, ()."""


class Inputs(NamedTuple):
    """The tensors of a layer."""

    tokens: Tensor
    """Of the keys, (B, R, C)."""
    asking: Optional
    """Of the queries, (B, M, C), contiguous; None where they are those of the keys."""
    query: Tensor
    """W_qry, (K·d, C); or stacked on W_key, (2·K·d, C)."""
    key: Optional
    """W_key, (K·d, C)."""
    value: Optional
    """W_val, (C, C); None is the identity."""
    gating: Tensor
    """λ, (P,)."""
    gate_temperature: Tensor
    """τ of the gates, ()."""
    raws: Tensor
    """softplus⁻¹ of the strengths, (P,)."""
    centres: Tensor
    """(P, 2)."""
    temperature: Tensor
    """τ of the positional attention, ()."""
    proj: Tensor
    """W_out, (C_out, K·C)."""
    bias: Optional
    """(C_out,)."""

    @property
    def position(self) -> Position:
        """Parameters of gates and positions, as the kernels take them."""
        return Position(*self[5:8], self.centres.contiguous(), self.temperature)

    @property
    def stacked(self) -> Tensor:
        """W_qry stacked on W_key."""
        return self.query if self.key is None else torch.cat((self.query, self.key))


MATRICES = ("asking", "query", "key", "value", "proj", "bias")
"""What is to have the dtype of the tokens."""


class Kept(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    tokens: Tensor
    """With zeros after them, (B, R', C)."""
    queries: Tensor
    """(B, M, K·d); with the keys beside them, (B, R', 2·K·d), where they are the same pixels."""
    keys: Tensor
    """(B, R', K·d), or empty."""
    values: Tensor
    """X W_val, (B, R', C); empty where W_val is the identity."""
    maps: Tensor
    """(B, M·K, R')."""
    mixed: Tensor
    """Maps times values, (B, M·K, C); empty where it is not kept."""
    lse: Tensor
    """Base-2 logarithms of the softmax sums, (B, K, M), float32."""


def bytes_kept(images: int, channels: int, sizes: Sizes, itemsize: int) -> int:
    """Bytes of the maps and of what they mix, the largest that are kept for the backward pass."""
    return images * prod(sizes.query) * sizes.heads * (sizes.pitch + channels) * itemsize


def of_one_dtype(inputs: Inputs) -> Inputs:
    """Matrices in the dtype of the tokens, as under autocast."""
    like = inputs.tokens.dtype
    given = {name: getattr(inputs, name) for name in MATRICES}
    others = {name: one.to(like) for name, one in given.items() if one is not None and one.dtype != like}
    return inputs._replace(**others) if others else inputs
