"""The noise on which two CNNs are compared (`lattice`): weights, maps, and maps that have grown.

Shapes: B images (one), C channels, h×w the source's map, H×W the dilated CNN's.
"""

import itertools
import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tcnn.layers.terms.positions import Pair
from tcnn.models.randomise import generator

LAYOUTS = ((2, 3), (1, 2))
"""Axes of rows and columns of a map: (B, C, h, w), or (B, h, w, C)."""


class Grown(NamedTuple):
    """How a map has grown: along which axes, and by which factors."""

    axes: Pair
    factors: Pair


def grown(old: torch.Size, new: torch.Size, factors: AbstractSet[Pair]) -> Grown | None:
    """How a map of the old shape became one of the new; None where it did not, or by none of these factors."""
    if len(old) != 4 or len(new) != 4 or old == new:
        return None
    for axes in LAYOUTS:
        if all(old[axis] == new[axis] for axis in range(4) if axis not in axes):
            for own in factors:
                if all(s * (old[a] - 1) < new[a] <= s * old[a] for a, s in zip(axes, own, strict=True)):
                    return Grown(axes, own)
    return None


def between(noise: Tensor, shape: torch.Size, how: Grown, order: int) -> Tensor:
    """A grown map with this one on the old pixels, and with its pixels in some order on those between."""
    made = noise.new_empty(shape)
    old, new = (one.movedim(how.axes, (2, 3)) for one in (noise, made))
    height, width = old.shape[2:]
    for phase in itertools.product(*map(range, how.factors)):
        part = new[:, :, phase[0] :: how.factors[0], phase[1] :: how.factors[1]]
        if phase == (0, 0):
            part.copy_(old)
            continue
        # For all maps of a size the same, so that their sums have the same pixels, too.
        count = part.shape[2] * part.shape[3]
        name = f"{phase} {height} {width}"
        chosen = torch.randperm(height * width, generator=generator(0, name), device="cpu")[:count]
        chosen = chosen[torch.randperm(count, generator=generator(order, name), device="cpu")]
        part.copy_(old.flatten(2)[:, :, chosen].unflatten(2, part.shape[2:]))
    return made


def unfolded(noise: Tensor, shape: torch.Size, maps: Mapping[Pair, tuple[Pair, Pair, Pair]], order: int) -> Tensor:
    """Attention's pixels, or weights between them, with those of a grown map along every axis that has grown.

    Args:
        maps: by the numbers of pixels of the old map and of the grown one, row by row: their heights and widths, and
            the factors by which it has grown.
    """
    for axis, pixels in enumerate(zip(noise.shape, shape, strict=True)):
        if pixels[0] != pixels[1]:
            old, new, factors = maps[pixels]
            rows = noise.movedim(axis, -1).unflatten(-1, old)
            found = between(
                rows.reshape(1, -1, *old), torch.Size((1, rows[..., 0, 0].numel(), *new)), Grown((2, 3), factors), order
            )
            noise = found.view(*rows.shape[:-2], pixels[1]).movedim(-1, axis)
    return noise


def drawn(shape: tuple[int, ...], seed: int, name: str) -> Tensor:
    """A map of noise."""
    return torch.randn(shape, generator=generator(seed, name), dtype=torch.float32, device="cpu")


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Noise for all parameters and buffers, by name: matrices and filters around 0, others around 1.

    The rows of a matrix, and the filters of a convolution, are windows of one row of noise, each a number further than
    the one before: no two are equal, as a normalisation would remove what they add, and they take little memory.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        own = generator(0, name)
        if not tensor.is_floating_point():
            found[name] = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        elif tensor.dim() < 2:
            found[name] = torch.rand(tensor.shape, generator=own, dtype=torch.float32, device="cpu") + 0.5
        else:
            inputs = max(1, math.prod(tensor.shape[1:]))
            row = torch.rand(len(tensor) + inputs, generator=own, dtype=torch.float32, device="cpu")
            strides = [math.prod(tensor.shape[axis:]) for axis in range(2, tensor.dim() + 1)]
            found[name] = ((row - 0.5) * (12 / inputs) ** 0.5).as_strided(tensor.shape, (1, *strides))
    return found
