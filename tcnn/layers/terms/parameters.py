"""What a GPSA layer computes with: its tensors by the paper's names, and what follows from them, as pure functions.

Shapes: C channels, G groups, K heads, P ≤ K of them with a positional part, d head width.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms.products import Matrix, Packed

SOFTPLUS_BETA = 5
"""α = softplus(raw) at this β (Transformed CNNs, note 1)."""


class Parameters(NamedTuple):
    """The tensors of one layer (Transformed CNNs, Eq. 4–7); `GPSA2d` says what each is."""

    query: Matrix | None
    """W_qry, (K·d, C_in); None, like the next, where `query_key` holds both."""
    key: Matrix | None
    """W_key, (K·d, C_in)."""
    value: Tensor | None
    """W_val, (C_in, C_in); None where it is folded into `proj`."""
    proj: Matrix
    """W_out, (C_out, K·C_in/G)."""
    bias: Tensor | None
    """(C_out,)."""
    gating_param: Tensor | None
    """λ, (P,); None, like the next three, if P = 0."""
    locality_raw: Tensor | None
    """softplus⁻¹ of α, (P,)."""
    attention_centers: Tensor | None
    """Δ, (P, 2): row and column, pixels."""
    gate_temperature: Tensor | None
    """τ of the gates, ()."""
    position_temperature: Tensor | None
    """τ of the strengths, ()."""
    heads: int
    """K. The last K − P have no positional part: their gate is exactly 0."""
    groups: int = 1
    query_key: Matrix | None = None
    """W_qry/√d above W_key, (2·K·d, C_in), where it was prepared."""

    @property
    def content_heads(self) -> int:
        """K − P."""
        return self.heads - (0 if self.gating_param is None else self.gating_param.shape[0])

    @property
    def positional(self) -> "Parameters":
        """Those of the heads with a positional part, W_val and the bias with them."""
        return self._of_heads(slice(None, self.heads - self.content_heads)) if self.content_heads else self

    @property
    def content(self) -> "Parameters":
        """Those of the content heads, without a bias."""
        alone = self._of_heads(slice(self.heads - self.content_heads, None))
        return alone._replace(
            bias=None, gating_param=None, locality_raw=None, attention_centers=None, gate_temperature=None,
            position_temperature=None,
        )  # fmt: skip

    def _of_heads(self, some: slice) -> "Parameters":
        """Queries, keys and projection of some heads, views of the matrices as they are before they are prepared."""
        query, key = self.query, self.key
        assert isinstance(query, Tensor) and isinstance(key, Tensor)  # noqa: S101 - only whole layers are prepared
        count = len(range(*some.indices(self.heads)))
        return self._replace(
            query=query.unflatten(0, (self.heads, -1))[some].flatten(0, 1),
            key=key.unflatten(0, (self.heads, -1))[some].flatten(0, 1),
            proj=self.plain_proj.unflatten(1, (self.heads, -1))[:, some].flatten(1),
            heads=count,
        )

    @property
    def head_dim(self) -> int:
        """d."""
        rows = needed_matrix(self.query_key).shape[0] // 2 if self.query is None else self.query.shape[0]
        return int(rows) // self.heads  # a tracer would have it a tensor of its own

    @property
    def in_channels(self) -> int:
        """C_in."""
        return needed_matrix(self.query_key if self.query is None else self.query).shape[1]

    @property
    def plain_proj(self) -> Tensor:
        """`proj`, where it has not been packed."""
        if isinstance(self.proj, Packed):
            raise TypeError("a packed matrix cannot be read back")
        return self.proj

    @property
    def gate(self) -> Tensor:
        """g = σ(λ/τ_gate), (K,), at least float32: 1 looks at positions only, 0 at content only."""
        if self.gating_param is None:
            of = self.proj.plain() if isinstance(self.proj, Packed) else self.proj
            return at_least_float32(of.new_zeros(self.heads))
        gate = torch.sigmoid(at_least_float32(self.gating_param) / at_least_float32(needed(self.gate_temperature)))
        return F.pad(gate, (0, self.content_heads)) if self.content_heads else gate

    @property
    def strength(self) -> Tensor:
        """α/τ_position, (P,), in 1/pixel², at least float32: how fast positional attention falls off from a centre."""
        return strength_of(needed(self.locality_raw)) / at_least_float32(needed(self.position_temperature))


def needed(tensor: Tensor | None) -> Tensor:
    """A tensor that must be there for what is asked."""
    if tensor is None:
        raise TypeError("the layer has no such tensor")
    return tensor


def needed_matrix(matrix: Matrix | None) -> Matrix:
    """`needed`, of one that may be packed."""
    if matrix is None:
        raise TypeError("the layer has no such matrix")
    return matrix


def strength_of(locality_raw: Tensor) -> Tensor:
    """α > 0, (P,), at least float32: (1/β)·log(1 + exp(β·raw)), β = 5."""
    return F.softplus(at_least_float32(locality_raw), beta=SOFTPLUS_BETA)


def fold_value(parameters: Parameters) -> Parameters:
    """W_val multiplied into W_out, so that it costs nothing any more: W_out^h W_val.

    Where the channels are grouped the product would not be: there W_val stays, unless it is the identity.
    """
    value, proj = parameters.value, parameters.plain_proj
    if value is None:
        return parameters
    if parameters.groups > 1:
        return parameters._replace(value=None) if is_identity(value) else parameters
    if is_identity(value):
        return parameters._replace(value=None)
    heads = proj.double().unflatten(1, (-1, value.shape[0]))  # (C_out, K, C_in)
    return parameters._replace(value=None, proj=(heads @ value.double()).flatten(1).to(value.dtype))


def is_identity(matrix: Tensor) -> bool:
    """Whether a square matrix is I to the last bit."""
    return torch.equal(matrix.detach(), torch.eye(len(matrix), device=matrix.device, dtype=matrix.dtype))


def at_least_float32(x: Tensor) -> Tensor:
    """Softmaxes, gates and distances are never taken in half precision."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
