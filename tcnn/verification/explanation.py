"""Explanation of a difference: the layer that departs, errors by powers of ten, the worst place, verdict and advice."""

import math

import torch
from torch import Tensor

from tcnn.config.base import ErrorStats, Record
from tcnn.models.difference import as_real, distances

DECADES = range(-18, 4)
"""Powers of ten at which the histogram's classes begin."""


class Place(Record):
    """The element of an output that differs most."""

    image: int
    index: tuple[int, ...]
    """(channel, row, column) of a map; (output,) of logits; of complex numbers also 0 (real) or 1 (imaginary)."""
    expected: float
    found: float


class Departure(Record):
    """One layer that both models have: how its outputs differ, and how much of that is its own."""

    name: str
    kinds: tuple[str, str]
    """What it is in either model."""
    error: ErrorStats
    """Of its output, with all that came before."""
    own: ErrorStats | None
    """Of its output on the first model's input: what it adds itself; None where it cannot be run by itself."""


class PrecisionPass(Record):
    """The comparison in one precision, layers in the order in which they run."""

    dtype: str
    tolerance: float
    logits: ErrorStats
    layers: tuple[Departure, ...]
    first: str | None
    """The first layer whose output departs by more than the tolerance."""


class Explanation(Record):
    """Why two models differ, or that they do not."""

    passes: tuple[PrecisionPass, ...]
    unmatched: tuple[str, ...]
    """Layers that only one of the models has, or that have outputs of different shapes."""
    histogram: dict[int, int]
    """How many elements of the departing output (else of the logits) differ by at least 10ⁿ of its largest, by n."""
    worst: Place | None
    """Where that output differs most; None where nothing differs."""
    verdict: str
    advice: str

    @property
    def equal(self) -> bool:
        """Whether both agree in every precision."""
        return all(one.first is None and one.logits.worst <= one.tolerance for one in self.passes)


def histogram_of(expected: Tensor, found: Tensor) -> dict[int, int]:
    """Elements by the power of ten of their difference, as a share of the largest expected value."""
    difference = distances(expected, found).flatten()
    if not difference.numel():
        return {}
    sizes = as_real(expected).abs()
    scale = torch.where(sizes.isfinite(), sizes, 0).max().clamp_min(torch.finfo(torch.float64).tiny)
    powers = (difference / scale).log10().floor()
    powers = torch.where(powers.isfinite(), powers, torch.where(difference == 0, DECADES.start, DECADES.stop - 1))
    counts = powers.clamp(DECADES.start, DECADES.stop - 1).long() - DECADES.start
    return {
        power: int(count)
        for power, count in zip(DECADES, torch.bincount(counts, minlength=len(DECADES)).tolist(), strict=True)
        if count
    }


def worst_place(expected: Tensor, found: Tensor) -> Place | None:
    difference = distances(expected, found)
    if not (difference > 0).any():
        return None
    image, *index = (int(each) for each in torch.unravel_index(difference.argmax(), difference.shape))
    place = (image, *index)
    one, other = (as_real(x)[place] for x in (expected, found))
    return Place(image=image, index=tuple(index), expected=float(one), found=float(other))


def words(passes: list[PrecisionPass], stored: tuple[torch.dtype, torch.dtype], worst: Place | None) -> tuple[str, str]:
    """The verdict and what to try, from the most exact pass that departs.

    Args:
        stored: the dtypes of both models' weights.
        worst: where the departing output differs most.
    """
    departing = [one for one in passes if one.first is not None or one.logits.worst > one.tolerance]
    if not departing:
        return "The models compute the same function.", "Nothing: every layer agrees within the tolerance."
    exact = departing[-1]
    if len(departing) < len(passes) and exact.dtype == "float32":
        return (
            f"They agree in float64 and depart in float32, first at {exact.first or 'the output'}: it is rounding.",
            "Give a larger --tolerance if that is small enough for you; on a GPU switch TF32 off; judge in float64.",
        )
    if exact.first is None:
        return (
            "Every layer of one name agrees, the output does not.",
            "Look at what follows the last layer: another head, pooling, or an output that is scaled.",
        )
    layer = next(layer for layer in exact.layers if layer.name == exact.first)
    if layer.own is not None and layer.own.worst <= exact.tolerance:
        return (
            f"{layer.name} is the first whose output departs, and is itself the same: what it is given differs.",
            "Look at what is computed between it and the layer before: another activation, padding, stride, or order.",
        )
    verdict = f"{layer.name} ({layer.kinds[0]} → {layer.kinds[1]}) is the first to depart, by {layer.error.worst:.1e}."
    if stored[0] != stored[1]:
        one, other = (str(dtype).removeprefix("torch.") for dtype in stored)
        return verdict, f"Weights in {one} are compared with weights in {other}: give both models in the same dtype."
    if worst is None or not math.isfinite(worst.expected):  # nothing differs: it is NaN everywhere in both
        return (
            verdict,
            "It gives NaN or infinity in the first model, too: look at that one's weights, and at the images.",
        )
    if layer.kinds[1] == "FoldedGPSA2d":
        return (
            verdict,
            "Its heads were folded or pruned: compare it with the model that they were folded in, by tcnn fold.",
        )
    if "Norm" in layer.kinds[1]:
        return verdict, "Its statistics or scales differ: was one of the models trained on, or put into training mode?"
    if layer.kinds[0] != layer.kinds[1] and "GPSA2d" not in layer.kinds:
        return verdict, "It is another kind of layer: are both models of one architecture, with the same arguments?"
    if "GPSA2d" in layer.kinds:
        advice = (
            "It has another filter than the convolution: other source weights (--weights, --against), or trained since."
        )
        return verdict, advice
    return verdict, "Its weights differ: are both models from the same weights (--weights, --against)?"
