"""Impulse initialisation of a ViT's queries and keys: every head of every block attends to one random offset.

Zheng, Li and Lucey, *Convolutional Initialization for Data-Efficient Vision Transformers*, §4.1 and §5.3: the attention
of a head begins as the matrix of a convolution whose filter is 1 at one random tap and 0 elsewhere. They fit W_qry and
W_key to such maps by 10,000 steps of Adam, in a ViT that adds its positions inside of every attention layer. Here both
are solved for, and in an ordinary ViT. Its tokens are sums of content, of what earlier blocks added, and of a position;
W_qry and W_key are the linear maps that best tell from them, by least squares over the tokens of some images, the
Fourier features of where a head looks and of where a token lies. Of positions without content that is the
pseudo-inverse of the positional embedding times the features.

Shapes: B images, P prefix tokens, N patches, D width, d head width, K heads.
"""

from collections.abc import Sequence

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor

from tcnn.layers.terms.positions import Pair
from tcnn.vit.model import Tokens, query_key_logits, set_query_key
from tcnn.vit.positions import coordinates, fourier_features, indices, neighbours

RIDGE = 1e-6
"""Share of the mean square of the tokens that is added to each direction's, so that the least squares are solvable."""
STEEPEST = 1e4
"""Largest factor on the logits of the features."""
MEASURED = 4
"""Number of images over which the height of the peak is measured."""


def solve(attention: Attention, z: Tensor, tokens: Tokens, offsets: Sequence[Pair], peak: float) -> None:
    """Set W_qry and W_key so that head k attends to its offset with a mean probability of `peak` (0 to 1).

    Args:
        attention: the layer, changed in place.
        z: its inputs, (B, P + N, D) float64.
        tokens: where they lie. Prefix tokens attend to all alike, and nobody looks for them.
        offsets: of each of the K heads, (y, x) in patches.
        peak: mean attention weight at the offset over all patches; less where no logits reach it.
    """
    width = z.shape[2]
    square = torch.einsum("bni,bnj->ij", z, z)
    square += RIDGE * square.diagonal().mean() * torch.eye(width, dtype=z.dtype)
    at_position = z.sum(0)[tokens.prefix :]  # features differ by position alone, so that a sum over images suffices
    here = fourier_features(coordinates(tokens.grid), tokens.grid, attention.head_dim)
    key = torch.linalg.solve(square, at_position.T @ here).T
    for head, offset in enumerate(offsets):
        aimed = neighbours(tokens.grid, offset)
        features = fourier_features(aimed, tokens.grid, attention.head_dim)
        query = torch.linalg.solve(square, at_position.T @ features).T
        set_query_key(attention, head, query, key)
        logits = query_key_logits(attention, z[:MEASURED], head)[:, tokens.prefix :].float()
        root = _factor(logits, indices(aimed, tokens.grid) + tokens.prefix, peak) ** 0.5
        set_query_key(attention, head, root * query, root * key)


def hit_rate(attention: Attention, z: Tensor, tokens: Tokens, offsets: Sequence[Pair]) -> tuple[float, float]:
    """How often a patch attends most to what lies at its head's offset, and with which mean probability."""
    hits, weights = [], []
    for head, offset in enumerate(offsets):
        aimed = indices(neighbours(tokens.grid, offset), tokens.grid) + tokens.prefix
        maps = query_key_logits(attention, z, head)[:, tokens.prefix :].float().softmax(2)
        hits.append((maps.argmax(2) == aimed).double().mean())
        weights.append(_at(maps, aimed).mean())
    return torch.stack(hits).mean().item(), torch.stack(weights).mean().item()


def _factor(logits: Tensor, aimed: Tensor, peak: float) -> float:
    """By which factor the logits (B, N, P + N) have a mean probability of `peak` at the keys `aimed`, (N,)."""
    low, high = 0.0, 1.0
    while high < STEEPEST and _at((high * logits).softmax(2), aimed).mean() < peak:
        low, high = high, 2 * high
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if _at((middle * logits).softmax(2), aimed).mean() < peak else (low, middle)
    return high


def _at(maps: Tensor, aimed: Tensor) -> Tensor:
    """The weights (B, N) of maps (B, N, P + N) at one key of each query."""
    return maps.gather(2, aimed[None, :, None].expand(len(maps), -1, 1))[..., 0]
