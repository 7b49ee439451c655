"""Non-isotropic quadratic positional attention: a Gaussian with two widths and a rotation for every head.

Logits −(1/τ)·(δ − Δ_h)ᵀ M_h (δ − Δ_h) with a positive definite precision matrix M_h = L Lᵀ, L lower triangular with a
positive diagonal (Cordonnier et al. 2020, App. E, Eq. 19, where M = Σ⁻¹/2). Rows and columns are coupled, so that the
softmax is no product of two: a head has one map, the same for every image.

Shapes: P heads with a positional part, H×W padded map, Ho×Wo output map.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tcnn.layers.terms import positions
from tcnn.layers.terms.execution import at_least_float32
from tcnn.layers.terms.isotropic import SUM_RADIUS, UNIT, strength_of
from tcnn.layers.terms.positions import Factors, Geometry, without_traces


@dataclass(frozen=True, eq=False)
class Quadratic:
    """Precision matrices and attention centres."""

    precision_raw: Tensor
    """softplus⁻¹ of L₁₁ and of L₂₂, and L₂₁, (P, 3)."""
    attention_centers: Tensor
    """Δ, (P, 2): row and column, pixels."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All parameters, in order."""
        return self.precision_raw, self.attention_centers

    @property
    def cholesky(self) -> tuple[Tensor, Tensor, Tensor]:
        """L₁₁, L₂₁ and L₂₂ of every head, (P,) each, at least float32."""
        diagonal = strength_of(self.precision_raw[:, :2])
        return diagonal[:, 0], at_least_float32(self.precision_raw[:, 2]), diagonal[:, 1]

    @property
    def precision(self) -> Tensor:
        """M = L Lᵀ at τ = 1, (P, 2, 2), (row, column), in 1/pixel²; symmetric and positive definite."""
        a, b, c = self.cholesky
        return torch.stack((a * a, a * b, a * b, b * b + c * c), dim=1).unflatten(1, (2, 2))

    def attention(self, temperature: Tensor, size: Sequence[int], geometry: Geometry, query: object = None) -> Factors:
        """The whole attention on a padded map of `size` (H, W), (P, Ho, Wo, H, W), which has no second factor."""
        a, b, c = (part / temperature.sqrt() for part in self.cholesky)
        centres = at_least_float32(self.attention_centers)
        down, across = (  # (P, Ho, H) and (P, Wo, W)
            positions.shifts(axis, size, geometry, centres.device) - centres[:, axis, None, None] for axis in (0, 1)
        )
        # ‖Lᵀ(δ − Δ)‖², with the first component a sum of a row's and a column's part.
        first = (a[:, None, None] * down)[:, :, None, :, None] + (b[:, None, None] * across)[:, None, :, None, :]
        second = (c[:, None, None] * across).square()[:, None, :, None, :]
        weights = torch.softmax(-(first.square() + second).flatten(3), dim=-1)
        return without_traces(weights).unflatten(3, tuple(size)), None

    def margin(self) -> Tensor:
        """How far below a tap's logit every other pixel's lies, at τ = 1, where the centre is that tap, (P,).

        At least the smaller eigenvalue of M, for no other pixel is nearer than 1.
        """
        a, b, c = self.cholesky
        half = (a * a + b * b + c * c) / 2
        return half - (half.square() - (a * c).square()).clamp(min=0).sqrt()

    def aims_at_taps(self, geometry: Geometry) -> bool:
        """Whether the centre of every head is its own tap."""
        taps: list[list[float]] = self.attention_centers.tolist()
        return taps == positions.tap_coordinates(geometry)

    def summary(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Strengths √det M/τ (P,), those of circles of the ellipses' area, and centres Δ (P, 2)."""
        a, _, c = self.cholesky
        return a * c / temperature, at_least_float32(self.attention_centers)

    def peaks(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The pixel with the largest weight, (P, 2), and its smallest weight on any map, (P,), in float64."""
        centres = self.attention_centers.double()
        steps = torch.arange(-SUM_RADIUS, SUM_RADIUS + 1, device=centres.device, dtype=centres.dtype)
        grid = torch.cartesian_prod(steps, steps)  # a softmax over a larger map only has more terms
        shift = grid + (centres.round() - centres)[:, None]
        precision = self.precision.double() / temperature.double()
        logits = -torch.einsum("pni,pij,pnj->pn", shift, precision, shift)
        weight, nearest = torch.softmax(logits, dim=1).max(dim=1)
        return centres.round() + grid[nearest], weight

    def take(self, heads: Sequence[int]) -> "Quadratic":
        """Of these heads only."""
        return Quadratic(self.precision_raw[list(heads)], self.attention_centers[list(heads)])


def of_convolution(geometry: Geometry) -> Quadratic:
    """The term that a convolution becomes: every head at its tap with M = I, float64 on the CPU."""
    taps = positions.tap_offsets(geometry)
    return Quadratic(torch.tensor([UNIT, UNIT, 0.0], dtype=taps.dtype, device=taps.device).repeat(len(taps), 1), taps)
