"""How far and how widely heads look: non-locality (ConViT, Eq. 8) and entropy, and the circles of a Gaussian.

Shapes: B images, K heads, M queries, N keys, q some of the queries.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tcnn.analysis.kept import KeptLayer

CHUNK_ELEMENTS = 2**22
"""Largest attention map that is held at once: 32 MiB in float64, whatever the size of the layer's map."""


class Parts(NamedTuple):
    """One measure of every head, (K,) each, float64: of its attention, and of the two parts that the gate mixes."""

    total: Tensor
    content: Tensor
    positional: Tensor | None


class Measures(NamedTuple):
    """What is measured of one layer, averaged over images and queries."""

    non_locality: Parts
    """Pixels of the layer's map."""
    entropy: Parts
    """Nats; even attention has ln N."""
    prefix: Tensor
    """The share of attention that goes to class tokens and their like, (K,)."""


def non_locality(weights: Tensor, distances: Tensor) -> Tensor:
    """ConViT Eq. 8 before its mean over queries: Σ_j A_ij ‖δ_ij‖, (…, q, N) and (q, N) to (…, q), float64."""
    return (weights.double() * distances.double()).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """−Σ_j A_ij ln A_ij in nats, (…, q, N) to (…, q), float64."""
    return torch.special.entr(weights.double()).sum(-1)


@torch.no_grad()
def measure(layer: KeptLayer) -> Measures:
    """Measure a layer on the images that it was kept for, some queries at a time.

    A key of the prefix has no place, so its weight adds nothing to the non-locality.
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


def circle(strength: float, temperature: float, share: float) -> float:
    """The radius in pixels around a head's centre that holds a share of its positional attention, on an endless map.

    exp(−(α/τ)r²) is a Gaussian; the disc of radius r holds 1 − exp(−(α/τ)r²) of it (Cordonnier et al. 2020, Fig. 4,
    draws 50 % and 90 %). Below half a pixel or so the grid is too coarse for it: the head sees one pixel.
    """
    return math.sqrt(-math.log1p(-share) * temperature / strength)
