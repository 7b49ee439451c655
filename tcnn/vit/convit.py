"""Convolutional initialisation of ConViT: positional attention as a convolution of √K × √K taps, or at random.

d'Ascoli et al. 2021, *ConViT*, Eq. 5: v_pos = −α(1, −2Δ₁, −2Δ₂), so that a head's positional logits are −α‖δ − Δ‖² up
to a constant, W_val = I, and λ = 1. timm's models begin so with α = 1 and as many heads as are a square; for another
number its loop over taps leaves heads out without a word.

Shapes: K heads, H×W patches, N = H·W.
"""

from math import isqrt

import torch
from timm.models.convit import GPSA, ConVit
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.layers.convit import ConViTAttention, axis_attention
from tcnn.layers.terms.positions import Pair
from tcnn.vit.report import InitialisationReport, InitialisedLayer

RANDOM_STD = 0.02
"""Standard deviation of what timm draws before it puts the convolution in."""


@torch.no_grad()
def initialise_convit(
    model: ConVit, kind: str, strength: float, seed: int, generator: torch.Generator
) -> InitialisationReport:
    """Initialise the GPSA layers of a ConViT, in place.

    Args:
        kind: `convolution`; `random`, positions and W_val as timm draws other layers; `default`, as timm left them.
        strength: α > 0 of `convolution`.

    Raises: `RequestError` where the number of heads is no square, or the kind is one of other transformers.
    """
    if kind not in ("convolution", "random", "default"):
        raise RequestError(
            f"init: a ConViT takes convolution, random or default, found {kind!r}: its positions are relative"
        )
    if not 0 < strength < torch.inf:
        raise RequestError(f"locality: expected a strength above 0, for example 1, found {strength:g}")
    grid: Pair = model.patch_embed.grid_size[0], model.patch_embed.grid_size[1]
    found = []
    for name, layer in model.named_modules():
        if not isinstance(layer, GPSA):
            continue
        if kind == "convolution":
            make_convolution(name, layer, strength)
        elif kind == "random":
            for weight in (layer.pos_proj.weight, layer.v.weight):
                nn.init.trunc_normal_(weight, std=RANDOM_STD, generator=generator)
        if layer.pos_proj.bias is not None:
            layer.pos_proj.bias.zero_()
        if kind != "default":
            layer.gating_param.fill_(1)
        if kind == "convolution":
            found.append(_measured(name, layer, grid))
    return InitialisationReport(
        model=type(model).__name__, initialisation=kind, positions="keep", grid=grid, prefix_tokens=0, seed=seed,  # type: ignore[arg-type]
        layers=tuple(found),
    )  # fmt: skip


def make_convolution(name: str, layer: GPSA, strength: float) -> None:
    """Set W_pos and W_val of one layer, in place; raises `RequestError` where its heads are no square."""
    taps = tap_centres(layer.num_heads)
    if taps is None:
        side = isqrt(layer.num_heads)
        raise RequestError(
            f"{name}: expected a square number of heads, one for each tap of a kernel ({side * side} of {side}×{side}, "
            f"{(side + 1) ** 2} of {side + 1}×{side + 1}), found {layer.num_heads}; choose it with --heads"
        )
    down, right = taps.to(layer.pos_proj.weight).unbind(1)
    # timm's relative positions are (δ of columns, δ of rows, ‖δ‖²).
    layer.pos_proj.weight.copy_(strength * torch.stack((2 * right, 2 * down, torch.full_like(down, -1)), dim=1))
    layer.v.weight.copy_(torch.eye(layer.dim))
    layer.locality_strength = strength


def tap_centres(heads: int) -> Tensor | None:
    """Δ of a √K×√K kernel around its middle, (K, 2) row and column in patches; None where K is no square."""
    side = isqrt(heads)
    if side * side != heads:
        return None
    steps = torch.arange(side) - (side - 1) / 2
    # As timm numbers heads: h1 + √K·h2, with h1 along rows.
    right, down = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack((down.flatten(), right.flatten()), dim=1)


def _measured(name: str, layer: GPSA, grid: Pair) -> InitialisedLayer:
    """How often positional attention is largest as near to the centre as a patch is, and its weight there."""
    right, down, square = layer.pos_proj.weight.double().unbind(1)
    maps = torch.einsum(
        "kiy,kjx->kijyx", axis_attention(down, square, grid[0]), axis_attention(right, square, grid[1])
    ).flatten(3).flatten(1, 2)  # fmt: skip
    taps = tap_centres(layer.num_heads)
    assert taps is not None  # noqa: S101 - it was made of them
    places = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).double()
    apart = (places[None, None] - places[None, :, None] - taps.double()[:, None, None]).norm(dim=-1)  # (K, N, N)
    nearest = apart <= apart.amin(-1, keepdim=True) + 1e-6
    hits = nearest.gather(2, maps.argmax(-1, keepdim=True)).double().mean()
    weight = (maps * nearest).sum(-1).mean()
    offsets = tuple((row, column) for row, column in taps.tolist())
    return InitialisedLayer(name=name, offsets=offsets, hits=hits.item(), weight=weight.item())


def gated_layers(model: nn.Module) -> list[GPSA]:
    """The GPSA layers of timm's ConViT, its own or ours (`ConViTAttention`)."""
    return [module for module in model.modules() if isinstance(module, GPSA | ConViTAttention)]
