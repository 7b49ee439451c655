"""Explain a difference between two models: the first layer that departs, where, by how much, in which precision."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tcnn.config import HARD_TEMPERATURE
from tcnn.config.base import ErrorStats, Record
from tcnn.errors import RequestError
from tcnn.layers.backends.selection import use_backend
from tcnn.layers.gpsa import GPSA2d
from tcnn.models.checks import refuse_other_images, refuse_without_values, unwrapped
from tcnn.models.precision import exact_arithmetic
from tcnn.models.running import at_temperature, errors, flat, in_dtype, temperatures, told_in_one_line
from tcnn.models.trace import evaluating

TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Largest relative error of a layer that counts as equal."""
DECADES = range(-18, 4)
"""Powers of ten at which the histogram's classes begin."""


class Place(Record):
    """The element of an output that differs most."""

    image: int
    index: tuple[int, ...]
    """(channel, row, column) of a map; (output,) of logits."""
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


class _Seen:
    """What the layers of a model were given and gave, by name, in the order in which they first ran."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self.inputs: dict[str, tuple[Any, ...]] = {}
        self.outputs: dict[str, Tensor] = {}
        self._handles = [
            module.register_forward_hook(self._hook(name)) for name, module in model.named_modules() if name in names
        ]

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: object) -> None:
            if name not in self.outputs and isinstance(output, Tensor):
                self.inputs[name] = tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)
                self.outputs[name] = output.detach().clone()  # what follows may write into it

        return hook

    def close(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def explain(
    reference: nn.Module, candidate: nn.Module, images: Tensor, tolerances: dict[torch.dtype, float] | None = None
) -> Explanation:
    """Explain how a model differs from another of the same architecture, or from the CNN that it was converted from.

    Layers are matched by dotted name; both models run on the same images in float32 and float64, attention as
    attention, and every layer of the second once more on the input that it has in the first. A T-CNN is compared at
    τ = 1/46, where it is to equal its CNN.

    Args:
        images: (B, C, H, W), as both models expect them.
        tolerances: largest relative error by dtype; default 1e-5 and 1e-10.

    Neither model is changed. Raises `RequestError` for models without a common layer, or whose outputs have different
    shapes.
    """
    reference, candidate = unwrapped(reference), unwrapped(candidate)
    for model in (reference, candidate):
        refuse_without_values(model, "explain")
    refuse_other_images(images)
    bounds = {**TOLERANCES, **(tolerances or {})}
    names = _leaves(reference) & _leaves(candidate)
    if not names:
        raise RequestError("explain: the models have no layer of one name; are they of one architecture?")
    passes, worst = [], None
    histogram: dict[int, int] = {}
    unmatched = sorted(_leaves(reference) ^ _leaves(candidate))
    with exact_arithmetic(), torch.no_grad(), use_backend("fused"), _in_hard_limit(candidate):
        for dtype, bound in bounds.items():
            ours, theirs, expected, found = _run(reference, candidate, images, dtype, names)
            _refuse_other_shapes(expected, found)
            layers = _compare(reference, candidate, ours, theirs, dtype)
            unmatched += [n for n in ours.outputs if n not in {layer.name for layer in layers} and n not in unmatched]
            first = next((layer.name for layer in layers if layer.error.worst > bound), None)
            logits = errors(expected, found)
            passes.append(
                PrecisionPass(
                    dtype=str(dtype).removeprefix("torch."), tolerance=bound, logits=logits, layers=layers, first=first
                )
            )
            one, other = (ours.outputs[first], theirs.outputs[first]) if first else (expected, found)
            if not histogram or first:
                histogram, worst = _histogram(one, other), _worst(one, other)
    verdict, advice = _words(passes)
    return Explanation(
        passes=tuple(passes), unmatched=tuple(unmatched), histogram=histogram, worst=worst, verdict=verdict,
        advice=advice,
    )  # fmt: skip


def _refuse_other_shapes(expected: Tensor, found: Tensor) -> None:
    if expected.shape != found.shape:
        first, second = ("×".join(map(str, output.shape[1:])) for output in (expected, found))
        raise RequestError(
            f"explain: expected outputs of one shape, found {first} and {second}; a T-CNN whose stride was removed is "
            "to be compared with tcnn.without_stride(source, stride=…)"
        )


@contextmanager
def _in_hard_limit(model: nn.Module) -> Iterator[None]:
    if not any(isinstance(module, GPSA2d) for module in model.modules()):
        yield
        return
    with at_temperature(model, min(max(temperatures(model).values()), HARD_TEMPERATURE)):
        yield


def _leaves(model: nn.Module) -> set[str]:
    """Layers that compute: those with parameters of their own, and those without children."""
    return {
        name
        for name, module in model.named_modules()
        if name and (next(module.children(), None) is None or next(module.parameters(recurse=False), None) is not None)
    }


def _run(
    reference: nn.Module, candidate: nn.Module, images: Tensor, dtype: torch.dtype, names: set[str]
) -> tuple[_Seen, _Seen, Tensor, Tensor]:
    seen, outputs = [], []
    for model in (reference, candidate):
        own = in_dtype(model, dtype)
        watched = _Seen(own, names)
        try:
            with evaluating(own), told_in_one_line(model, images):
                # All images at once, as hooks see one call of a layer.
                place = next(own.parameters()).device
                outputs.append(flat(own(images.to(device=place, dtype=dtype)), len(images)))
        finally:
            watched.close()
        seen.append(watched)
    return seen[0], seen[1], outputs[0], outputs[1]


def _compare(
    reference: nn.Module, candidate: nn.Module, ours: _Seen, theirs: _Seen, dtype: torch.dtype
) -> tuple[Departure, ...]:
    layers = []
    for name, expected in ours.outputs.items():
        found = theirs.outputs.get(name)
        if found is None or found.shape != expected.shape:
            continue
        layer = in_dtype(candidate.get_submodule(name), dtype)
        layers.append(
            Departure(
                name=name, kinds=(type(reference.get_submodule(name)).__name__, type(layer).__name__),
                error=errors(expected, found), own=_own(layer, ours.inputs[name], expected),
            )
        )  # fmt: skip
    return tuple(layers)


def _own(layer: nn.Module, inputs: tuple[Any, ...], expected: Tensor) -> ErrorStats | None:
    try:
        with evaluating(layer):
            found = layer(*(x.clone() if isinstance(x, Tensor) else x for x in inputs))
    except (RuntimeError, TypeError, ValueError):  # it takes more than its positional arguments
        return None
    return errors(expected, found) if isinstance(found, Tensor) and found.shape == expected.shape else None


def _histogram(expected: Tensor, found: Tensor) -> dict[int, int]:
    """Elements by the power of ten of their difference, as a share of the largest expected value."""
    difference = (found.double() - expected.double()).abs().flatten()
    scale = expected.double().abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    powers = (difference / scale).log10().floor()
    powers = torch.where(powers.isfinite(), powers, torch.where(difference == 0, DECADES.start, DECADES.stop - 1))
    counts = powers.clamp(DECADES.start, DECADES.stop - 1).long() - DECADES.start
    return {
        power: int(count)
        for power, count in zip(DECADES, torch.bincount(counts, minlength=len(DECADES)).tolist(), strict=True)
        if count
    }


def _worst(expected: Tensor, found: Tensor) -> Place | None:
    difference = (found.double() - expected.double()).abs()
    difference = torch.where(difference.isnan(), torch.inf, difference)
    if not difference.max() > 0:
        return None
    image, *index = (int(each) for each in torch.unravel_index(difference.argmax(), difference.shape))
    place = (image, *index)
    return Place(image=image, index=tuple(index), expected=float(expected[place]), found=float(found[place]))


def _words(passes: list[PrecisionPass]) -> tuple[str, str]:
    """The verdict and what to try, from the most exact pass that departs."""
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
    if "Norm" in layer.kinds[1]:
        return verdict, "Its statistics or scales differ: was one of the models trained on, or put into training mode?"
    if layer.kinds[1] == "GPSA2d":
        advice = (
            "It has another filter than the convolution: other source weights (--weights, --against), or trained since."
        )
        return verdict, advice
    return verdict, "Its weights differ: are both models from the same weights (--weights, --against)?"
