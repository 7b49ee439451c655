"""Measures of attention heads: non-locality (ConViT, Eq. 8), entropy, and the circles of positional attention.

Shapes: B images, K heads, M queries, N keys, q some of the queries.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.analysis.recorded import RecordedLayer

CHUNK_ELEMENTS = 2**22
"""Largest attention map in memory at once, in elements: 32 MiB in float64, whatever the size of the layer's map."""


class Parts(NamedTuple):
    """One measure of every head, (K,) each, float64: of its attention, and of its content and positional parts."""

    total: Tensor
    content: Tensor
    positional: Tensor | None


class Measures(NamedTuple):
    """Measures of one layer, averaged over images and queries."""

    non_locality: Parts
    """Mean attention distance in pixels of the layer's map."""
    entropy: Parts
    """In nats; uniform attention has ln N."""
    prefix: Tensor
    """Share of attention on class tokens and other prefix tokens, (K,)."""


def non_locality(weights: Tensor, distances: Tensor) -> Tensor:
    """Mean attention distance Σ_j A_ij ‖δ_ij‖ (ConViT Eq. 8 before its mean): (…, q, N), (q, N) to (…, q), float64."""
    return (weights.double() * distances.double()).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """Attention entropy −Σ_j A_ij ln A_ij in nats, (…, q, N) to (…, q), float64."""
    return torch.special.entr(weights.double()).sum(-1)


@torch.no_grad()
def measure(layer: RecordedLayer) -> Measures:
    """Measure the heads of a layer on its recorded images, some queries at a time.

    A prefix key has no position, so its weight adds nothing to the non-locality.
    """
    if layer.query.device.type == "mps":
        layer = layer.cpu()
    images, heads, queries, _ = layer.query.shape
    step = max(1, CHUNK_ELEMENTS // (images * heads * layer.key.shape[2]))
    sums: dict[str, Tensor] = {}

    def add(name: str, values: Tensor | None) -> None:
        if values is not None:  # (B, K, q), or (K, q) where images do not matter
            mean = values.sum(-1) if values.dim() == 2 else values.sum(-1).mean(0)
            sums[name] = sums.get(name, torch.zeros_like(mean)) + mean / queries

    for part in torch.arange(queries, device=layer.query.device).split(step):
        maps = layer.maps(part)
        distances = layer.grid.distances(part)
        for name, weights in maps._asdict().items():
            if weights is not None:
                add(f"far {name}", non_locality(weights[..., layer.prefix :], distances))
                add(f"wide {name}", entropy(weights))
        add("prefix", maps.total[..., : layer.prefix].double().sum(-1))
    far, wide = (
        Parts(sums[f"{kind} total"], sums[f"{kind} content"], sums.get(f"{kind} positional"))
        for kind in ("far", "wide")
    )
    return Measures(far, wide, sums["prefix"])


def circle(strength: float, share: float) -> float:
    """Radius in pixels around a head's centre that contains a share of its positional attention, on an unbounded map.

    Args:
        strength: α/τ, in 1/pixel².

    exp(−(α/τ)r²) is a Gaussian; the disc of radius r contains 1 − exp(−(α/τ)r²) of it (Cordonnier et al. 2020, Fig. 4,
    draws 50 % and 90 %). Below about half a pixel the grid is too coarse for it: the head attends to one pixel.
    """
    return math.sqrt(-math.log1p(-share) / strength)


def circles(layer: RecordedLayer) -> dict[str, list[list[float] | None] | None]:
    """`centres` of the heads' positional attention, from the query, and the `radii` that hold 50 % and 90 % of it.

    None for a head without a centre, and in place of both lists for a layer without any.
    """
    if layer.centres is None or layer.strength is None:
        return {"centres": None, "radii": None}
    centres: list[list[float] | None] = []
    radii: list[list[float] | None] = []
    for centre, strength in zip(layer.centres.tolist(), layer.strength.tolist(), strict=True):
        there = strength > 0 and all(map(math.isfinite, centre))
        centres.append(centre if there else None)
        radii.append([circle(strength, share) for share in (0.5, 0.9)] if there else None)
    none: list[list[float] | None] = [None] * (layer.heads - len(centres))  # content heads look at no position
    return {"centres": centres + none, "radii": radii + none}
