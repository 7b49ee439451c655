"""Decide which heads of a GPSA layer can be simplified (to a tap, to content attention, or dropped) and at what cost.

The cost of a simplification is an estimate of the relative error that it causes in the layer's output: the share of the
head's attention that it moves, times the head's share of the output weights. A cost of 0 is exact: what it neglects
vanishes beside 1 in float64.

Shapes: K heads.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from tcnn.layers.folded import HeadKind, fold_value_into_taps
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.positions import tap_offsets


class Head(NamedTuple):
    """Properties of a head that decide how it can be simplified."""

    tap: int | None
    """The kernel tap at which it looks most, or None where the pixel at which it does is not in the kernel."""
    outside: float
    """Largest share of its attention outside that pixel, on any map: 1 − gate·peak."""
    gate: float
    """Share of its attention that is positional."""
    weight: float
    """‖W_out^h W_val‖ divided by that of all heads together, in the Frobenius norm."""

    @property
    def costs(self) -> dict[HeadKind, float]:
        """Estimated relative error of every simplification."""
        tap = torch.inf if self.tap is None else self.outside * self.weight
        return {"convolution": tap, "dropped": self.weight, "content": self.gate * self.weight}

    def kind(self, tolerance: float) -> HeadKind:
        """The simplest kind that this head can become at a cost within `tolerance`."""
        costs = self.costs
        # A head without weight is dropped, unless it is a tap to the last bit: then its zeros stay.
        hard = self.tap is not None and self.outside == 0
        if hard or 0 < costs["convolution"] <= tolerance:
            return "convolution"
        if costs["dropped"] <= tolerance:
            return "dropped"
        return "content" if costs["content"] <= tolerance else "attention"


@torch.no_grad()
def heads_of(layer: GPSA2d) -> tuple[Head, ...]:
    """The `Head` properties of a layer's heads, in float64."""
    gate = torch.sigmoid(layer.gating_param.double() / layer.gate_temperature.double())
    term = layer.positional_term
    assert term is not None  # noqa: S101 - a whole layer has its taps
    pixels, peak = term.peaks(layer.position_temperature)
    weights = fold_value_into_taps(layer).double().flatten(1).norm(dim=1)
    total = weights.norm()
    shares = weights / total if total > 0 else weights
    taps = {tuple(offset): tap for tap, offset in enumerate(tap_offsets(layer.geometry).tolist())}
    positional = tuple(
        # 1 − (1 − gate) is 0 where the gate vanishes beside 1.
        Head(taps.get(tuple(pixel)), 1 - g * p, 1 - (1 - g), share)
        for pixel, g, p, share in zip(pixels.tolist(), gate.tolist(), peak.tolist(), shares.tolist(), strict=False)
    )
    return positional + tuple(Head(None, 1.0, 0.0, share) for share in shares.tolist()[len(positional) :])


def tolerances(heads: Iterable[Head]) -> list[float]:
    """The tolerances at which a decision changes, ascending, from 0."""
    costs = itertools.chain.from_iterable(head.costs.values() for head in heads)
    return sorted({0.0, *(cost for cost in costs if cost < torch.inf)})


def largest_within(count: int, error: Callable[[int], float], bound: float) -> int | None:
    """The last of `count` increasingly coarse choices with an error within `bound`, by bisection; or None.

    Errors mostly grow with the choice; where they do not, the result is still within the bound.
    """
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if error(middle) <= bound else (low, middle)
    return low if low >= 0 else None
