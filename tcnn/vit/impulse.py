"""Impulse initialisation: every head of a ViT attends to one random offset, every filter of a ConvMixer is one tap.

Zheng, Li and Lucey, *Convolutional Initialization for Data-Efficient Vision Transformers*, §4.1 and §5.3: the attention
of a head begins as the matrix of a convolution whose filter is 1 at one random tap and 0 elsewhere. They fit W_qry and
W_key to such maps by 10,000 steps of Adam, in a ViT that adds its positions inside of every attention layer. Here both
are solved for, and in an ordinary ViT. Its tokens are sums of content, of what earlier blocks added, and of a position;
W_qry and W_key are the linear maps that best tell from them, by least squares over the tokens of some images, the
Fourier features of where a head looks and of where a token lies. Of positions without content that is the
pseudo-inverse of the positional embedding times the features.

The products of Fourier features are 1 at one offset and 0 at every other. With the harmonics ω = 2π·m/(2·n + 1),
m = 1…n, of an axis of n pixels, 2/(2·n + 1)·Σ cos ω·δ is 2n/(2n + 1) at δ = 0 and −1/(2n + 1) at every other whole
distance up to 2·n (the Dirichlet kernel without its constant, which a softmax does not see). A query that holds the
features of where it looks, and keys that hold those of where they lie, therefore attend to one pixel. All of them take
2·(H + W) numbers; fewer take the lowest harmonics, and the peak becomes wider.

In ConvMixer (§3 and §5.1 there) spatial filters need not be learned as long as they are linearly independent and there
are enough of them. So filters that are 1 at one random tap and 0 elsewhere, and never trained, do nearly as well as
learned ones. Such a filter is an attention map with one 1 in each row, which is what is made of a transformer's heads.

Shapes: B images, P prefix tokens, H, W the grid, N = H·W patches in row-major order, (y, x), D width, d head width,
K heads.
"""

import math
from collections.abc import Sequence

import torch
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import Attention
from torch import Tensor, nn

from tcnn.errors import RequestError
from tcnn.layers.terms.positions import Pair
from tcnn.vit.model import Tokens, query_key_logits, set_query_key
from tcnn.vit.report import InitialisationReport, InitialisedLayer

RIDGE = 1e-6
"""Share of the mean square of the tokens that is added to each direction's, so that the least squares are solvable."""
STEEPEST = 1e4
"""Largest factor on the logits of the features."""
MEASURED = 4
"""Number of images over which the height of the peak is measured."""


def coordinates(grid: Pair) -> Tensor:
    """(N, 2) float64: y and x of every position of the grid."""
    y, x = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return torch.stack([y.flatten(), x.flatten()], 1).double()


def fourier_features(points: Tensor, grid: Pair, width: int) -> Tensor:
    """Features of points (…, 2) on a grid, (…, width) float64, of squared norm close to 2; the rest of `width` is 0.

    An axis gets as many harmonics as its share of H + W, at most all of them.
    """
    across = min(grid[1], max(1, width // 2 - min(grid[0], max(1, round(width / 2 * grid[0] / sum(grid))))))
    found = []
    for axis, count in enumerate((min(grid[0], width // 2 - across), across)):
        harmonics = torch.arange(1, count + 1, dtype=torch.float64)
        angles = points[..., axis, None] * harmonics * (2 * math.pi / (2 * grid[axis] + 1))
        amplitude = (1 / count if count < grid[axis] else 2 / (2 * grid[axis] + 1)) ** 0.5
        found += [angles.cos() * amplitude, angles.sin() * amplitude]
    features = torch.cat(found, -1)
    return torch.nn.functional.pad(features, (0, width - features.shape[-1]))


def neighbours(grid: Pair, offset: Pair) -> Tensor:
    """(N, 2) float64: where every position looks at an offset (y, x); at the border it looks at the border."""
    moved = coordinates(grid) + torch.tensor(offset)
    return torch.minimum(moved.clamp(min=0), torch.tensor(grid) - 1.0)


def indices(points: Tensor, grid: Pair) -> Tensor:
    """(N,) which position of the grid each of the points (N, 2) is."""
    return (points[:, 0] * grid[1] + points[:, 1]).long()


def draw_offsets(heads: int, window: int, generator: torch.Generator) -> list[Pair]:
    """Random offsets (y, x) of the heads in a window around the pixel: all of it before one comes twice."""
    reach = window // 2
    drawn: list[int] = []
    while len(drawn) < heads:
        drawn += torch.randperm(window**2, generator=generator).tolist()
    return [(one // window - reach, one % window - reach) for one in drawn[:heads]]


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


def spatial_filters(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """The depthwise k×k convolutions of a model, by dotted name."""
    return [
        (name, module) for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d) and module.groups == module.in_channels > 1 and max(module.kernel_size) > 1
    ]  # fmt: skip


@torch.no_grad()
def initialise_convmixer(
    model: ConvMixer, kind: str, window: int | None, seed: int, generator: torch.Generator
) -> InitialisationReport:
    """Set the spatial filters to random impulses, in place, and freeze them: `requires_grad` is off, and biases are 0.

    Args:
        kind: `impulse`, or `default`, which leaves them as timm drew them, to be learned.
        window: taps lie in a window of so many pixels, odd; default the whole kernel.

    Raises: `RequestError` for another kind, or a window that is larger than the kernel.
    """
    if kind not in ("impulse", "default"):
        raise RequestError(f"init: a ConvMixer takes impulse or default, found {kind!r}: it has no attention")
    layers = []
    for name, conv in spatial_filters(model) if kind == "impulse" else []:
        side = conv.kernel_size[0]
        own = side if window is None else window
        if own > side or own % 2 != side % 2:
            raise RequestError(f"window: expected an odd number of pixels up to the kernel's {side}, found {own}")
        offsets = draw_offsets(conv.out_channels, own, generator)
        conv.weight.zero_()
        for channel, (down, right) in enumerate(offsets):
            conv.weight[channel, 0, side // 2 + down, side // 2 + right] = 1
        conv.weight.requires_grad_(False)
        if conv.bias is not None:
            conv.bias.zero_().requires_grad_(False)
        layers.append(InitialisedLayer(name=name, offsets=tuple(offsets), hits=1.0, weight=1.0))
    height, width = (getattr(model, "pretrained_cfg", None) or {}).get("input_size", (3, 224, 224))[1:]
    patch = model.stem[0].kernel_size
    return InitialisationReport(
        model=type(model).__name__, initialisation=kind, positions="keep", grid=(height // patch[0], width // patch[1]),  # type: ignore[arg-type]
        prefix_tokens=0, seed=seed, layers=tuple(layers),
    )  # fmt: skip
