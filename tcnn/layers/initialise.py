"""Initialise W_qry and W_key: on the CPU, in float32, so that a seed gives the same weights on every device.

Shapes: C channels, K heads, d head width.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

QueryKey = Literal["normal", "mimetic"]
"""Initialisation of W_qry and W_key: a truncated normal distribution of standard deviation 0.02, or `mimetic`."""


@torch.no_grad()
def draw_query_key(
    query: Tensor, key: Tensor, heads: int, kind: QueryKey = "normal", generator: torch.Generator | None = None
) -> None:
    """Initialise W_qry and W_key, (K·d, C) each, in place. On the meta device nothing is drawn."""
    if query.is_meta or isinstance(query, FakeTensor):
        return
    if kind == "normal":
        for weight in (query, key):
            drawn = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
            weight.copy_(nn.init.trunc_normal_(drawn, std=0.02, generator=generator))
        return
    pairs = [mimetic(query.shape[1], query.shape[0] // heads, generator) for _ in range(heads)]
    for weight, own in zip((query, key), zip(*pairs, strict=True), strict=True):
        weight.copy_(torch.cat(own))


def mimetic(channels: int, width: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Mimetic initialisation of one head: W_qry and W_key, (d, C) each, with W_qryᵀ W_key = 0.7·Z + 0.7·I.

    The product is the nearest of rank d. Z has independent normal entries of variance 1/d. A query then attends to
    similar pixels, as in trained transformers, where two small random matrices would attend to all alike.

    Source: Trockman and Kolter 2023, *Mimetic Initialization of Self-Attention Layers*, §3.
    """
    noise = torch.randn(channels, channels, generator=generator, dtype=torch.float32, device="cpu") * width**-0.5
    left, values, right = torch.linalg.svd(0.7 * noise + 0.7 * torch.eye(channels, device="cpu"))
    root = values[:width].sqrt()
    rows = torch.zeros(2, width, channels, device="cpu")
    rows[0, : len(root)] = (left[:, :width] * root).T
    rows[1, : len(root)] = right[:width] * root[:, None]
    return rows[0], rows[1]
