"""Interpolation between two temperatures τ, and the weight that a kernel tap loses at τ, as pure functions.

At α = λ = 1 a head gives its own tap the weight g(τ_gate)·p(τ_position), g = σ(1/τ), p = 1/θ(τ)² (docs/math.md, Eq. 5).
So each of the two temperatures takes a share of its own from the tap: 1 − g goes to content, 1 − p to neighbours.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

Path = Literal["log", "drift"]


class Temperatures(NamedTuple):
    """Temperatures τ of the gates and of the positional attention, dimensionless."""

    gate: float
    position: float


def content_share(tau: float) -> float:
    """Share of content attention in a head, 1 − σ(1/τ); accurate where it is tiny."""
    odds = math.exp(-1 / tau)
    return odds / (1 + odds)


def neighbour_share(tau: float) -> float:
    """Share of positional attention outside its tap, 1 − 1/θ(τ)², θ = Σ exp(−n²/τ); accurate where it is tiny."""
    reach = 1 + math.ceil(math.sqrt(40 * tau))  # beyond it a pixel has less than e⁻⁴⁰ of the tap's weight
    beside = 2 * math.fsum(math.exp(-n * n / tau) for n in range(1, reach + 1))
    return beside * (2 + beside) / (1 + beside) ** 2


def tap_weight(taus: Temperatures) -> float:
    """The weight that a head at α = λ = 1 gives to its own tap: 1 is a convolution."""
    return (1 - content_share(taus.gate)) * (1 - neighbour_share(taus.position))


def interpolate(path: Path, start: Temperatures, end: Temperatures, share: float) -> Temperatures:
    """The temperatures after a share (0 to 1) of an annealing path.

    `log`: equal steps in log τ, which halve the sharpness of every softmax equally often, most of them before anything
    is lost. `drift`: equal steps of the share that content, and that neighbours, take from the tap.
    """
    if share >= 1:
        return end
    if path == "log":
        return Temperatures(*(a if a == b else a ** (1 - share) * b**share for a, b in zip(start, end, strict=True)))
    return Temperatures(
        _invert(content_share, start.gate, end.gate, share),
        _invert(neighbour_share, start.position, end.position, share),
    )


def _invert(lost: Callable[[float], float], start: float, end: float, share: float) -> float:
    """The τ at which the share lost, which grows with τ, is this far between that at `start` and that at `end`."""
    if start == end:
        return end
    wanted = (1 - share) * lost(start) + share * lost(end)
    low, high = math.log(min(start, end)), math.log(max(start, end))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if lost(math.exp(middle)) < wanted else (low, middle)
    return math.exp(high)
