"""Which heads of a GPSA layer are something simpler: pure decisions, head by head.

Every simplification has a cost, an estimate of the relative error that it brings to the layer's output: the share of
the head's attention that it moves elsewhere, times the head's share of the output weights. A cost of 0 is exact: what
it neglects vanishes beside 1 in float64.

Shapes: K heads.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.layers.folded import HeadKind, taps_through_value
from tcnn.layers.gpsa import GPSA2d
from tcnn.layers.terms.positions import tap_offsets

REACH = 64
"""Pixels to either side over which positional attention is summed; a head that reaches farther is far from a tap."""


class Head(NamedTuple):
    """What of a head decides."""

    tap: int | None
    """The kernel's tap that its centre is nearest to, or None where that pixel is none of the kernel's."""
    elsewhere: float
    """The share of its attention that lies outside of that pixel, at most, whatever the map: 1 − gate·peak."""
    gate: float
    """The share of its attention that is positional."""
    weight: float
    """‖W_out^h W_val‖ over that of all heads together, in the Frobenius norm."""

    @property
    def costs(self) -> dict[HeadKind, float]:
        """The estimated relative error of every simplification."""
        tap = torch.inf if self.tap is None else self.elsewhere * self.weight
        return {"convolution": tap, "dropped": self.weight, "content": self.gate * self.weight}

    def kind(self, tolerance: float) -> HeadKind:
        """The simplest that this head can become at a cost within `tolerance`."""
        costs = self.costs
        # A head without weight is dropped, unless it is a tap to the last bit: then its zeros stay.
        hard = self.tap is not None and self.elsewhere == 0
        if hard or 0 < costs["convolution"] <= tolerance:
            return "convolution"
        if costs["dropped"] <= tolerance:
            return "dropped"
        return "content" if costs["content"] <= tolerance else "attention"


@torch.no_grad()
def heads_of(layer: GPSA2d) -> tuple[Head, ...]:
    """What a layer's heads are, in float64."""
    gate = torch.sigmoid(layer.gating_param.double() / layer.gate_temperature.double())
    centres = layer.attention_centers.double()
    pixels = centres.round()
    peak = positional_peak(layer.locality_strength.double() / layer.position_temperature.double(), centres - pixels)
    weights = taps_through_value(layer).double().flatten(1).norm(dim=1)
    total = weights.norm()
    shares = weights / total if total > 0 else weights
    taps = {tuple(offset): tap for tap, offset in enumerate(tap_offsets(layer.geometry).tolist())}
    positional = tuple(
        # 1 − (1 − gate) is 0 where the gate vanishes beside 1.
        Head(taps.get(tuple(pixel)), 1 - g * p, 1 - (1 - g), share)
        for pixel, g, p, share in zip(pixels.tolist(), gate.tolist(), peak.tolist(), shares.tolist(), strict=False)
    )
    return positional + tuple(Head(None, 1.0, 0.0, share) for share in shares.tolist()[len(positional) :])


def positional_peak(strength: Tensor, offset: Tensor) -> Tensor:
    """The weight that positional attention gives to the pixel nearest to its centre, at least, on any map, (K,).

    Args:
        strength: α/τ, (K,), in 1/pixel². offset: from that pixel to the centre, (K, 2), within ±½ pixel.

    A softmax over a larger map only has more terms, so the unbounded grid has the smallest weight; its axes are
    independent.
    """
    n = torch.arange(-REACH, REACH + 1, device=strength.device, dtype=strength.dtype)
    logits = -strength[:, None, None] * ((n - offset[..., None]).square() - offset[..., None].square())
    return (1 / logits.exp().sum(-1)).prod(-1)


def tolerances(heads: Iterable[Head]) -> list[float]:
    """Every tolerance at which something changes, ascending, 0 first."""
    costs = itertools.chain.from_iterable(head.costs.values() for head in heads)
    return sorted({0.0, *(cost for cost in costs if cost < torch.inf)})


def last_within(count: int, error: Callable[[int], float], bound: float) -> int | None:
    """The last of `count` ever coarser choices whose error is within `bound`, found by bisection; None if none is.

    Errors grow with the choice in the main; where they do not, what is returned is still within the bound.
    """
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if error(middle) <= bound else (low, middle)
    return low if low >= 0 else None
