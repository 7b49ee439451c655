"""Isotropic quadratic positional attention, one strength and one centre for every head (Cordonnier et al. 2020, Eq. 9).

Logits −(α_h/τ)·‖δ − Δ_h‖². Shapes: P heads with a positional part, H×W padded map, Ho×Wo output map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tcnn.layers.terms import positions
from tcnn.layers.terms.execution import at_least_float32, is_jit_tracing
from tcnn.layers.terms.positions import Factors, Geometry

SOFTPLUS_BETA = 5
"""β of α = softplus(raw) (Transformed CNNs, note 1)."""
UNIT = 1 + math.log(-math.expm1(-SOFTPLUS_BETA)) / SOFTPLUS_BETA
"""softplus⁻¹(1) at β = 5: the raw parameter at which a strength is 1."""
SUM_RADIUS = 64
"""Radius in pixels over which positional attention is summed; a head with a larger span is far from a tap."""


@dataclass(frozen=True, eq=False)
class Isotropic:
    """Locality strengths and attention centres."""

    locality_raw: Tensor
    """softplus⁻¹ of α, (P,)."""
    attention_centers: Tensor
    """Δ, (P, 2): row and column, pixels."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All parameters, in order."""
        return self.locality_raw, self.attention_centers

    @property
    def strength(self) -> Tensor:
        """Locality strength α > 0, (P,), in 1/pixel² at τ = 1, at least float32."""
        return strength_of(self.locality_raw)

    def attention(self, temperature: Tensor, size: Sequence[int], geometry: Geometry, query: object = None) -> Factors:
        """Row factor (P, Ho, H) and column factor (P, Wo, W) of the attention on a padded map of `size` (H, W)."""
        centres = at_least_float32(self.attention_centers)
        return positions.positional_attention(self.strength / temperature, centres, size, geometry)

    def margin(self) -> Tensor:
        """How far below a tap's logit every other pixel's lies, at τ = 1, where the centre is that tap: α, (P,)."""
        return self.strength

    def aims_at_taps(self, geometry: Geometry) -> bool:
        """Whether the centre of every head is its own tap."""
        taps: list[list[float]] = self.attention_centers.tolist()
        return taps == positions.tap_coordinates(geometry)

    def summary(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Strengths α/τ (P,), in 1/pixel², and centres Δ (P, 2), for people and pictures."""
        return self.strength / temperature, at_least_float32(self.attention_centers)

    def peaks(self, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """The pixel nearest to every head's centre, (P, 2), and its smallest weight on any map, (P,), in float64."""
        centres = self.attention_centers.double()
        pixels = centres.round()
        return pixels, positional_peak(self.strength.double() / temperature.double(), centres - pixels)

    def take(self, heads: Sequence[int]) -> "Isotropic":
        """Of these heads only."""
        return Isotropic(self.locality_raw[list(heads)], self.attention_centers[list(heads)])


def strength_of(raw: Tensor) -> Tensor:
    """Softplus of a raw parameter, at least float32: (1/β)·log(1 + exp(β·raw)), β = 5."""
    raw = at_least_float32(raw)
    if is_jit_tracing():  # the same, with gradients that differ in the last bits
        return F.softplus(SOFTPLUS_BETA * raw) / SOFTPLUS_BETA
    return F.softplus(raw, beta=SOFTPLUS_BETA)


def of_convolution(geometry: Geometry) -> Isotropic:
    """The term that a convolution becomes: every head at its tap with α = 1, float64 on the CPU."""
    taps = positions.tap_offsets(geometry)
    return Isotropic(torch.full((len(taps),), UNIT, dtype=taps.dtype, device=taps.device), taps)


def positional_peak(strength: Tensor, offset: Tensor) -> Tensor:
    """Smallest weight, on any map, of the pixel nearest to the centre in positional attention, (P,).

    Args:
        strength: α/τ, (P,), in 1/pixel².
        offset: from that pixel to the centre, (P, 2), within ±½ pixel.

    A softmax over a larger map only has more terms, so the unbounded grid has the smallest weight; its axes are
    independent.
    """
    n = torch.arange(-SUM_RADIUS, SUM_RADIUS + 1, device=strength.device, dtype=strength.dtype)
    logits = -strength[:, None, None] * ((n - offset[..., None]).square() - offset[..., None].square())
    return (1 / logits.exp().sum(-1)).prod(-1)
