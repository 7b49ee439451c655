"""The parameters of a GPSA layer, and the gates and locality strengths that follow from them, as pure functions.

Shapes: C channels, G groups, K heads, P ≤ K of them with a positional part, d head width.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.execution import at_least_float32, holds_for_all
from tcnn.layers.terms.kinds import Position
from tcnn.layers.terms.products import Matrix, Packed, linear


@dataclass(frozen=True, eq=False)
class Parameters:
    """The parameters of one GPSA layer (Transformed CNNs, Eq. 4–7), as described in `GPSA2d`."""

    query: Matrix | None
    """W_qry, (K·d, C_in); None, like `key`, where `query_key` holds both."""
    key: Matrix | None
    """W_key, (K·d, C_in)."""
    value: Tensor | None
    """W_val, (C_in, C_in); None where it is folded into `proj`."""
    proj: Matrix
    """W_out, (C_out, K·C_in/G)."""
    bias: Tensor | None
    """b, (C_out,)."""
    gating_param: Tensor | None
    """λ, (P,); None if P = 0, like `position` and both temperatures."""
    position: Position | None
    """The positional term of these heads, with its parameters."""
    gate_temperature: Tensor | None
    """Temperature τ of the gates, ()."""
    position_temperature: Tensor | None
    """Temperature τ of the positional attention, ()."""
    heads: int
    """Number of heads K. The last K − P have no positional part: their gate is exactly 0."""
    groups: int = 1
    query_key: Matrix | None = None
    """W_qry/√d stacked on W_key, (2·K·d, C_in), where it was precomputed."""

    @property
    def content_heads(self) -> int:
        """Number of heads without a positional part, K − P."""
        return self.heads - (0 if self.gating_param is None else self.gating_param.shape[0])

    @property
    def positional(self) -> "Parameters":
        """The parameters of the heads with a positional part, with W_val and the bias."""
        return self.parts[0] if self.content_heads else self

    @property
    def content(self) -> "Parameters":
        """The parameters of the content heads, without a bias."""
        return self.parts[1]

    @property
    def parts(self) -> tuple["Parameters", "Parameters"]:
        """`positional` and `content`, as views; the matrices must not be packed."""
        count = self.content_heads
        query, key = self.query, self.key
        assert isinstance(query, Tensor) and isinstance(key, Tensor)  # noqa: S101 - only whole layers are prepared
        taps = self.heads - count
        # Cut once, and not a slice for each of the two: their gradients are then put together by one operation.
        queries, keys = (
            [part.flatten(0, 1) for part in matrix.unflatten(0, (self.heads, -1)).split([taps, count])]
            for matrix in (query, key)
        )
        projs = [part.flatten(1) for part in self.plain_proj.unflatten(1, (self.heads, -1)).split([taps, count], 1)]
        positional = replace(self, query=queries[0], key=keys[0], proj=projs[0], heads=taps)
        return positional, self._alone(queries[1], keys[1], projs[1], count)

    def _alone(self, query: Tensor, key: Tensor, proj: Tensor, count: int) -> "Parameters":
        """Of so many content heads."""
        return replace(
            self,
            query=query, key=key, proj=proj, heads=count, bias=None, gating_param=None, position=None,
            gate_temperature=None, position_temperature=None,
        )  # fmt: skip

    @property
    def head_dim(self) -> int:
        """Head width d."""
        rows = require_matrix(self.query_key).shape[0] // 2 if self.query is None else self.query.shape[0]
        return int(rows) // self.heads  # a tracer would have it a tensor of its own

    @property
    def in_channels(self) -> int:
        """Number of input channels C_in."""
        return require_matrix(self.query_key if self.query is None else self.query).shape[1]

    @property
    def plain_proj(self) -> Tensor:
        """`proj` as a tensor; raises `TypeError` if it is packed."""
        if isinstance(self.proj, Packed):
            raise TypeError("a packed matrix cannot be read back")
        return self.proj

    @property
    def gate(self) -> Tensor:
        """Gate g = σ(λ/τ_gate), (K,), at least float32: 1 is positional attention only, 0 content attention only."""
        if self.gating_param is None:
            of = self.proj.weight if isinstance(self.proj, Packed) else self.proj
            return at_least_float32(of.new_zeros(self.heads))
        gate = torch.sigmoid(at_least_float32(self.gating_param) / at_least_float32(require(self.gate_temperature)))
        return F.pad(gate, (0, self.content_heads)) if self.content_heads else gate

    @property
    def temperature(self) -> Tensor:
        """Temperature τ of the positional attention, (), at least float32."""
        return at_least_float32(require(self.position_temperature))


def require(tensor: Tensor | None) -> Tensor:
    """The tensor, which must not be None; raises `TypeError`."""
    if tensor is None:
        raise TypeError("the layer has no such tensor")
    return tensor


def require_matrix(matrix: Matrix | None) -> Matrix:
    """The matrix, packed or not, which must not be None; raises `TypeError`."""
    if matrix is None:
        raise TypeError("the layer has no such matrix")
    return matrix


def query_and_key(parameters: Parameters) -> tuple[Matrix, Matrix]:
    """W_qry and W_key, (K·d, C_in) each, taken apart where they were stacked."""
    p = parameters
    if p.query_key is None or p.query is not None:
        return require_matrix(p.query), require_matrix(p.key)
    both = p.query_key.weight if isinstance(p.query_key, Packed) else p.query_key
    query, key = both.chunk(2)
    return query * p.head_dim**0.5, key


def fold_value(parameters: Parameters) -> Parameters:
    """Multiply W_val into W_out (W_out^h W_val), so that it costs nothing in the forward pass.

    With grouped channels the product would not be grouped: then W_val stays, unless it is the identity.
    """
    value, proj = parameters.value, parameters.plain_proj
    if value is None:
        return parameters
    if parameters.groups > 1:
        return replace(parameters, value=None) if is_identity(value) else parameters
    if is_identity(value):
        return replace(parameters, value=None)
    heads = proj.double().unflatten(1, (-1, value.shape[0]))  # (C_out, K, C_in)
    return replace(parameters, value=None, proj=(heads @ value.double()).flatten(1).to(value.dtype))


def value_in_projection(parameters: Parameters, x: Tensor) -> Parameters:
    """The same as W_out^h W_val, differentiably, where that is less work than W_val on the pixels of x (B, C_in, h, w).

    W_val costs C_in² multiply-adds for each pixel, or for each row of each W_out^h: a training step of a large batch
    saves its three products, and what they would leave in memory. Exact where W_val is the identity, and elsewhere the
    same sum in another order. Not with grouped channels, nor of sizes that a compiler or an exporter leaves open.
    """
    p = parameters
    if p.value is None or p.groups > 1 or isinstance(p.proj, Packed):
        return p
    if not holds_for_all(x.shape[0] * x.shape[2] * x.shape[3] > p.proj.shape[0] * p.heads):
        return p
    return replace(p, value=None, proj=linear(p.proj.unflatten(1, (p.heads, -1)), p.value.t()).flatten(1))


def is_identity(matrix: Tensor) -> bool:
    """Whether a square matrix equals the identity matrix exactly."""
    return torch.equal(matrix.detach(), torch.eye(len(matrix), device=matrix.device, dtype=matrix.dtype))
