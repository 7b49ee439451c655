"""Multi-head self-attention over pixels with relative positions, the layer of Cordonnier, Loukas and Jaggi 2020.

It replaces no convolution: its heads lie where they were drawn, and nothing gates them. Without content their attention
is positions' alone and the same for every image; with content one softmax is taken of the sum of both logits.

Shapes: B batch, C channels, H×W map, N = H·W pixels, K heads, d head width, E width of an embedding.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tcnn.config import PositionKind
from tcnn.errors import RequestError
from tcnn.layers.backends.scoped import apply_positions
from tcnn.layers.terms import kinds
from tcnn.layers.terms.attention import positional_map
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.isotropic import UNIT, Isotropic
from tcnn.layers.terms.kinds import Position
from tcnn.layers.terms.positions import Factors, Geometry, Pair
from tcnn.layers.terms.quadratic import Quadratic
from tcnn.layers.terms.relative import REACH, Relative

EVERY_PIXEL = Geometry((1, 1))
"""Queries are all pixels, and there is no padding."""


class SelfAttention2d(nn.Module):
    r"""Multi-head self-attention over a map (Cordonnier et al. 2020, Eq. 4 and 8).

    Y = b + Σ_h softmax(L_h) X W_h, with L_h the logits of the positional term, or q·k/√d + q·r_δ/√d with content.

    Args:
        channels: C, of the input and the output.
        heads: K.
        position: `isotropic`, `quadratic` or `relative`: kind of the positional term (`terms.kinds`).
        content: add content attention q·k, and look for embeddings by the query, q·r_δ (Ramachandran et al. 2019)
            instead of by a vector of the head, v·r_δ. With `relative` positions only.
        embedding: E of row shifts and of column shifts; by default C/2, as in the paper (D_p = C).

    Centres are drawn from N(0, 2·I), strengths begin at 1, Σ^(-1/2) of a general Gaussian at I + N(0, 0.01·I) as far as
    a triangular matrix has these entries; embeddings and vectors are drawn as PyTorch draws those of its layers.

    Input and output (B, H, W, C).
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        position: PositionKind = "isotropic",
        content: bool = False,
        embedding: int | None = None,
    ) -> None:
        super().__init__()
        if content and position != "relative":
            raise RequestError(f"content: expected relative positions, for queries to look for, got {position}")
        if position == "relative-content":
            raise RequestError("position: give relative and content=True")
        self.heads, self.position, self.content = heads, position, content
        self.embedding = channels // 2 if embedding is None else embedding
        if content and 2 * self.embedding != channels:
            raise RequestError(
                f"embedding: queries of {channels} channels look for two embeddings of {channels // 2}, "
                f"got {self.embedding}"
            )
        for name, tensor in kinds.parameters_of(position, self._drawn()).items():
            if not (content and name == "position_vector"):
                self.register_parameter(name, nn.Parameter(tensor))
        self.query = nn.Linear(channels, heads * channels, bias=False) if content else None
        self.key = nn.Linear(channels, heads * channels, bias=False) if content else None
        self.proj = nn.Linear(heads * channels, channels)

    def _drawn(self) -> Position:
        if self.position == "relative":
            size = 2 * REACH + 1
            vector = torch.empty(self.heads, 2, self.embedding).uniform_(-1, 1) / (2 * self.embedding) ** 0.5
            return Relative(torch.randn(size, self.embedding), torch.randn(size, self.embedding), vector)
        centres = 2**0.5 * torch.randn(self.heads, 2)
        if self.position == "isotropic":
            return Isotropic(torch.full((self.heads,), UNIT), centres)
        return Quadratic(torch.tensor([UNIT, UNIT, 0.0]) + 0.1 * torch.randn(self.heads, 3), centres)

    @property
    def term(self) -> Position:
        """The positional term with its current parameters; with content its vectors are zeros."""
        own: dict[str, Tensor] = dict(self.named_parameters(recurse=False))
        if self.content:
            own["position_vector"] = own["row_embedding"].new_zeros(self.heads, 2, self.embedding)
        found = kinds.position_of(self.position, [own.get(name) for name in kinds.NAMES[self.position]])
        assert found is not None  # noqa: S101 - the parameters are there
        return found

    def take(self, heads: Sequence[int]) -> "SelfAttention2d":
        """A copy with these heads only; embeddings are those of all heads."""
        made, chosen = copy.deepcopy(self), list(heads)
        made.heads = len(chosen)
        for name, tensor in kinds.parameters_of(self.position, self.term.take(chosen)).items():
            if name in made._parameters:
                trained = made.get_parameter(name).requires_grad
                made.register_parameter(name, nn.Parameter(tensor.detach().clone(), trained))
        made.proj.in_features = len(chosen) * self.proj.out_features
        _replace(made.proj, self.proj.weight.unflatten(1, (self.heads, -1))[:, chosen].flatten(1))
        for layer in (made.query, made.key):
            if layer is not None:
                _replace(layer, layer.weight.unflatten(0, (self.heads, -1))[chosen].flatten(0, 1))
                layer.out_features = layer.weight.shape[0]
        return made

    def summary(self) -> tuple[Tensor, Tensor]:
        """Strength (K,) and centre (K, 2), row and column in pixels, of every head's positional attention."""
        return self.term.summary(self.proj.weight.new_ones(()))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1], x.shape[2]
        if self.content:
            heads = (self.attention(x) @ x.flatten(1, 2)[:, None]).transpose(1, 2)  # (B, N, K, C)
            return self.proj(heads.flatten(2)).unflatten(1, size)
        rows, columns = self.positional_factors(size)
        if columns is not None:
            return self.proj(apply_positions(rows, columns, x).flatten(3))
        maps = positional_map((rows, None)).to(x.dtype)  # (K, N, N)
        return self.proj((maps[None] @ x.flatten(1, 2)[:, None]).transpose(1, 2).flatten(2)).unflatten(1, size)

    def attention(self, x: Tensor) -> Tensor:
        """The maps that `forward` applies: (B, K, N, N), or (K, N, N) without content."""
        if not self.content:
            return positional_map(self.positional_factors((x.shape[1], x.shape[2])))
        query, key, positions = self.logit_parts(x)
        content = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
        return torch.softmax(at_least_float32(content + positions), dim=-1).to(x.dtype)

    def positional_factors(self, size: Pair) -> Factors:
        """Positional attention on a map of `size`, without content (`terms.positions.Factors`)."""
        return self.term.attention(at_least_float32(self.proj.weight.new_ones(())), size, EVERY_PIXEL)

    def logit_parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys (B, K, N, d) and positional logits q·r_δ/√d, (B, K, N, N), of a layer with content."""
        size, term = (x.shape[1], x.shape[2]), self.term
        if self.query is None or self.key is None or not isinstance(term, Relative):
            raise RequestError("SelfAttention2d: expected a layer with content, whose logits have these parts")
        tokens = x.flatten(1, 2)
        query, key = (layer(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key))
        looked_for = (query * query.shape[-1] ** -0.5).unflatten(2, size)  # (B, K, H, W, d)
        along = []
        for axis, embedding in enumerate((term.row_embedding, term.column_embedding)):
            own = looked_for[..., axis * self.embedding : (axis + 1) * self.embedding] @ embedding.t()
            table = term.table(axis, size, EVERY_PIXEL)
            index = table[:, None] if axis == 0 else table[None]
            along.append(own.gather(-1, index.expand(*own.shape[:-1], table.shape[-1])))
        return query, key, (along[0][..., :, None] + along[1][..., None, :]).flatten(-2).flatten(2, 3)

    def extra_repr(self) -> str:
        return f"{self.proj.out_features}, heads={self.heads}, position={self.position!r}, content={self.content}"


def _replace(layer: nn.Linear, weight: Tensor) -> None:
    layer.weight = nn.Parameter(weight.detach().clone(), layer.weight.requires_grad)
