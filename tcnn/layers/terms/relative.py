"""Learned relative positional attention: embeddings of row and column shifts, looked at by a vector of every head.

Logits (1/τ)·(v_h + Ŵ_h q/√d)·r_δ, where r_δ is the embedding of the row shift beside that of the column shift
(Cordonnier et al. 2020, §4.3 and the two position terms of Eq. 8; Ramachandran et al. 2019). Without Ŵ nothing depends
on the image. Either way a logit is a sum of a row's and a column's part, so the softmax is a product of two.

Shifts are told apart up to R pixels; those further away share the embedding of R (Shaw et al. 2018), so that a layer
takes maps of any size.

Shapes: P heads with a positional part, E width of an embedding, d head width, H×W padded map, Ho×Wo output map.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tcnn.errors import RequestError, UnsupportedLayerError
from tcnn.formatting import some
from tcnn.layers.terms import positions
from tcnn.layers.terms.execution import at_least_float32, without_autocast
from tcnn.layers.terms.isotropic import SUM_RADIUS
from tcnn.layers.terms.positions import Factors, Geometry, without_traces

TAP_LOGIT = 2.0
"""Logit of a head's own row, and of its own column, at conversion and τ = 1; all others have 0.

At τ = 0.25 a tap of a map of 16×16 then keeps 99 % of its weight, and at τ = 1/46 all of it.
"""
REACH = 15
"""Largest shift in pixels that has an embedding of its own: 31 in all, as many as 16 positions have (their setting)."""
MANY_KEYS = 10.0
"""Logarithm of the largest number of keys along an axis, of which each takes as much as the nearest: 22,000."""


@dataclass(frozen=True, eq=False)
class Relative:
    """Embeddings of row and column shifts, and what the heads look for among them."""

    row_embedding: Tensor
    """Of the shifts −R…R, (2R + 1, E)."""
    column_embedding: Tensor
    """(2R + 1, E)."""
    position_vector: Tensor
    """v for rows and for columns, (P, 2, E)."""
    position_query: Tensor | None = None
    """Ŵ, by which a query looks for positions, (P, 2, E, d); None where positions are independent of content."""

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All parameters, in order."""
        return self.row_embedding, self.column_embedding, self.position_vector, self.position_query

    @property
    def reach(self) -> int:
        """R, in pixels."""
        return self.row_embedding.shape[0] // 2

    @property
    def logits(self) -> tuple[Tensor, Tensor]:
        """v·r of every row shift and of every column shift at τ = 1, (P, 2R + 1) each, at least float32."""
        rows, columns = at_least_float32(self.position_vector).unbind(1)
        with without_autocast(rows.device.type):
            return (
                rows @ at_least_float32(self.row_embedding).t(), columns @ at_least_float32(self.column_embedding).t()
            )  # fmt: skip

    def attention(
        self, temperature: Tensor, size: Sequence[int], geometry: Geometry, query: Callable[[], Tensor] | None = None
    ) -> Factors:
        """Attention on a padded map of `size` (H, W).

        Args:
            query: returns Q, (B, P, Ho, Wo, d); called only where positions depend on content.

        Returns: a row factor (P, Ho, H) and a column factor (P, Wo, W); where positions depend on content the whole
        map, (B, P, Ho, Wo, H, W), and None.
        """
        logits = self.logits
        tables = [self.table(axis, size, geometry) for axis in (0, 1)]
        if self.position_query is None:
            rows, columns = (
                without_traces(torch.softmax(own[:, table] / temperature, dim=-1))
                for own, table in zip(logits, tables, strict=True)
            )
            return rows, columns
        if query is None:
            raise UnsupportedLayerError("these positions depend on content, and no queries were given")
        q = at_least_float32(query())
        q = q * q.shape[-1] ** -0.5
        factors = []
        for axis, embedding in enumerate((self.row_embedding, self.column_embedding)):
            with without_autocast(q.device.type):
                looked_for = torch.einsum("bpijd,ped->bpije", q, at_least_float32(self.position_query[:, axis]))
                found = looked_for @ at_least_float32(embedding).t()
            own = found + logits[axis][:, None, None]  # (B, P, Ho, Wo, 2R + 1)
            table = tables[axis][:, None] if axis == 0 else tables[axis][None]
            index = table.expand(*own.shape[:-1], table.shape[-1])
            factors.append(torch.softmax(own.gather(-1, index) / temperature, dim=-1))
        return without_traces(factors[0][..., :, None] * factors[1][..., None, :]), None

    def table(self, axis: int, size: Sequence[int], geometry: Geometry) -> Tensor:
        """Which embedding belongs to every pair of pixels along an axis, (Ho, H) or (Wo, W)."""
        shifts = positions.shifts(axis, size, geometry, self.row_embedding.device)
        return (shifts + self.reach).clamp(0, 2 * self.reach)

    def margin(self) -> Tensor:
        """By how much the largest logit of a row or column exceeds all others at τ = 1, (P,), less what many keys take.

        In the measure of the other terms, whose pixels lie the further below the further away they are.
        """
        if self.position_query is not None and self.position_query.any():
            return self.position_vector.new_zeros(len(self.position_vector))
        gaps = [own.topk(2, dim=1).values for own in self.logits]
        least = torch.stack([gap[:, 0] - gap[:, 1] for gap in gaps]).amin(0)
        return least * (1 - MANY_KEYS / (MANY_KEYS + 40))

    def aims_at_taps(self, geometry: Geometry) -> bool:
        """Whether the largest logits of every head are those of its own tap, which lies within the reach."""
        pixels = torch.stack([own.argmax(1) - self.reach for own in self.logits], dim=1)
        return bool(pixels.abs().max() < self.reach) and pixels.tolist() == positions.tap_coordinates(geometry)

    def summary(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Of the Gaussian with the same mean and spread on a map as large as the table: α/τ (P,) and Δ (P, 2).

        Without what depends on content. The spread is no multiple of τ: where τ is small a table may give all of its
        weight to one pixel (α/τ is infinite then), and be wide at τ = 1.
        """
        shift = torch.arange(-self.reach, self.reach + 1, device=temperature.device, dtype=self.logits[0].dtype)
        weights = [torch.softmax(own / temperature, dim=1) for own in self.logits]
        means = [weight @ shift for weight in weights]
        spread = torch.stack(
            [(weight * (shift - mean[:, None]).square()).sum(1) for weight, mean in zip(weights, means, strict=True)]
        )
        return 1 / spread.sum(0), torch.stack(means, dim=1)

    def peaks(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The pixel with the largest weight, (P, 2), and that weight on a map with 64 pixels around it, in float64.

        A weight of 0 where positions depend on content.
        """
        reach = max(SUM_RADIUS, self.reach)
        shift = torch.arange(-reach, reach + 1, device=temperature.device)
        table = (shift + self.reach).clamp(0, 2 * self.reach)
        found = [torch.softmax(own.double()[:, table] / temperature.double(), dim=1).max(1) for own in self.logits]
        weight = found[0].values * found[1].values
        if self.position_query is not None:
            weight = weight * ~self.position_query.flatten(1).any(1)
        return torch.stack([shift[each.indices] for each in found], dim=1).double(), weight

    def take(self, heads: Sequence[int]) -> "Relative":
        """Of these heads only, which keep all embeddings."""
        own = None if self.position_query is None else self.position_query[list(heads)]
        return Relative(self.row_embedding, self.column_embedding, self.position_vector[list(heads)], own)


def of_convolution(geometry: Geometry, head_dim: int | None, reach: int | None = None) -> Relative:
    """The term that a convolution becomes, float64 on the CPU: embeddings that are one-hot at the taps.

    Entry h of an embedding is 1 at the shift of tap h, so that every head has a table of its own to learn.

    Args:
        head_dim: d, where positions depend on content (by Ŵ = 0 at first), else None.
        reach: R; at least one pixel beyond every tap, and `REACH` by default.
    """
    taps = positions.tap_offsets(geometry)
    furthest = int(taps.abs().max())
    reach = max(REACH, furthest + 1) if reach is None else reach
    if reach <= furthest:
        raise RequestError(
            f"position_reach: expected more than the {some(furthest, 'pixel')} of the farthest tap, for shifts beyond "
            f"it are not told apart, got {reach}"
        )
    shift = torch.arange(-reach, reach + 1, dtype=taps.dtype, device=taps.device)
    rows, columns = ((shift[:, None] == taps[:, axis]).to(taps.dtype) for axis in (0, 1))  # (2R + 1, E = P)
    own = TAP_LOGIT * torch.eye(len(taps), dtype=taps.dtype, device=taps.device)
    vector = own[:, None].repeat(1, 2, 1)
    query = None if head_dim is None else vector.new_zeros(*vector.shape, head_dim)
    return Relative(rows, columns, vector, query)
